"""What a process costs the GPU, and when it is really gone: a context's bytes; the pidfd against a running kernel.

Memory of a killed process is used again when its pidfd fires, so nothing of it may run or hold memory then.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

from benchmarks.gpu_check.children import Child, started
from benchmarks.gpu_check.raw import Mapped, Raw, number_at
from benchmarks.gpu_check.setting import Broken, Found, Setting, Skipped
from kvcluster.units import format_bytes

KERNEL_S = 60  # far longer than anybody waits for it
PATIENCE_S = 10.0


def check_context(setting: Setting) -> Found:
    """What the device has less free while another process has a context. Raises Skipped on the stand-in."""
    if setting.is_stand_in:
        raise Skipped("the stand-in's contexts take no memory")
    raw = Raw(setting.ordinal)
    figures: dict[str, int | str] = {}
    for what, act in (("a bare context", "hold_context"), ("torch's with its kernels", "hold_torch")):
        before = raw.free_bytes()
        try:
            with started(act, setting.ordinal) as child:
                child.says()
                figures[what] = before - raw.free_bytes()
        except Skipped as reason:
            figures[what] = str(reason)
    told = (f"{what}: {format_bytes(size) if isinstance(size, int) else size}" for what, size in figures.items())
    return Found("; ".join(told), figures)


def check_killed(setting: Setting) -> Found:
    """SIGKILL a child whose kernel counts into our memory: when its pidfd fires, its bytes are free, the count stands.

    Raises:
        Broken: the kernel never ran, or ran on after the pidfd had fired, or the memory did not become free.
    """
    raw = Raw(setting.ordinal)
    shared, descriptor = raw.writable(), -1
    try:
        descriptor = raw.export(shared.handle)
        arguments = (setting.ordinal, shared.size_bytes, setting.held_bytes, KERNEL_S)
        before = raw.free_bytes()
        with started("run_kernel", *arguments, descriptors=[descriptor]) as child:
            has_kernel = bool(child.says()["kernel"])
            if has_kernel:
                _wait_until_it_counts(shared)
            figures = {"held_bytes": before - raw.free_bytes(), "kernel": has_kernel}
            figures |= _kill(raw, shared, child, before)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return _judged(figures)


def _kill(raw: Raw, shared: Mapped, child: Child, free_before: int) -> dict[str, Any]:
    """Milliseconds from the SIGKILL on."""
    pidfd = os.pidfd_open(child.process.pid)
    try:
        start = time.perf_counter()
        os.kill(child.process.pid, signal.SIGKILL)
        fired, _, _ = select.select([pidfd], [], [], KERNEL_S / 2)
        figures: dict[str, Any] = {"pidfd_ms": _since(start)}
    finally:
        os.close(pidfd)
    if not fired:
        raise Broken("the pidfd of a killed process did not fire", figures)
    child.ended()  # it is over; the stand-in counts it for as long as its name is there
    count, still_held = number_at(shared.address), free_before - raw.free_bytes()
    figures |= {"held_bytes_when_it_fired": still_held, "count_read_ms": _since(start)}
    return figures | _watched(raw, shared, start, (count, free_before))


def _watched(raw: Raw, shared: Mapped, start: float, begin: tuple[int, int]) -> dict[str, Any]:
    """Until the count has stood still for a while and the memory is free, or patience ends."""
    count, free_before = begin
    moved_ms = free_ms = None
    quiet_since = time.perf_counter()
    while time.perf_counter() - start < PATIENCE_S and (free_ms is None or time.perf_counter() - quiet_since < 0.5):
        if (now := number_at(shared.address)) != count:
            count, moved_ms, quiet_since = now, _since(start), time.perf_counter()
        if free_ms is None and free_before - raw.free_bytes() < raw.granule:
            free_ms = _since(start)
        time.sleep(0.001)
    return {"last_count_after_it_ms": moved_ms, "memory_free_ms": free_ms}


def _judged(figures: dict[str, Any]) -> Found:
    if figures["last_count_after_it_ms"] is not None:
        raise Broken("a kernel ran on after the pidfd of its killed process had fired", figures)
    if figures["memory_free_ms"] is None:
        raise Broken(f"a killed process's memory was not free after {PATIENCE_S:.0f} s", figures)
    kernel = "its kernel had ended" if figures["kernel"] else "there was no kernel: the stand-in runs none"
    return Found(
        f"pidfd after {figures['pidfd_ms']:.1f} ms ({kernel}; {format_bytes(figures['held_bytes_when_it_fired'])} of "
        f"{format_bytes(figures['held_bytes'])} held then), all free after {figures['memory_free_ms']:.1f} ms",
        figures,
    )


def _wait_until_it_counts(shared: Mapped) -> None:
    end = time.perf_counter() + PATIENCE_S
    first = number_at(shared.address)
    while number_at(shared.address) in (0, first):
        if time.perf_counter() > end:
            raise Broken("the child's kernel did not count")
        time.sleep(0.001)


def _since(start: float) -> float:
    return round((time.perf_counter() - start) * 1e3, 2)
