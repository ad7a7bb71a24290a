"""What the other process of a part does: `python -m benchmarks.gpu_check.child ACT ORDINAL ...`, a line of JSON each.

Descriptors come last, by number. An act that ends by the hardware's hand is one that should.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import socket
import sys
from typing import Any

from benchmarks.gpu_check.kernel import Counting
from benchmarks.gpu_check.raw import Raw, ask, number_at
from benchmarks.gpu_check.setting import Skipped
from benchmarks.gpu_check.timing import Stopwatch
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Access
from kvcluster.testing.driver_contract.bench import poke
from kvcluster.transaction import Progress


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def hold_context(ordinal: int) -> None:
    """A primary context and nothing in it."""
    Raw(ordinal)
    say("there")
    sys.stdin.read()


def hold_torch(ordinal: int) -> None:
    """What torch makes of it: its context, its libraries' kernels, and one small tensor."""
    if importlib.util.find_spec("torch") is None:
        raise Skipped("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise Skipped("torch sees no GPU")
    torch.ones(8, device=f"cuda:{ordinal}").sum().item()
    say("there")
    sys.stdin.read()


def import_times(ordinal: int, size_bytes: int, *descriptors: int) -> None:
    """Import each descriptor, and release what came of it; times of both."""
    driver, watch, handles = open_cuda_driver(f"cuda:{ordinal}"), Stopwatch(), []
    for descriptor in descriptors:
        with watch.timed("import"):
            handles.append(driver.import_fd(descriptor, size_bytes))
    for handle in handles:
        with watch.timed("release of an import"):
            driver.release(handle)
    driver.close()
    say(watch.times_us)


def store_into_read_only(ordinal: int, size_bytes: int, descriptor: int) -> None:
    """Read through a mapping for reading, then store through it by a kernel; where the CPU reaches it, by the CPU."""
    raw = Raw(ordinal)
    mapped = raw.adopted(descriptor, size_bytes, writes=False)
    say(number_at(mapped.address))
    try:
        counting = Counting()
    except Skipped:
        ctypes.c_uint64.from_address(mapped.address).value = 1
        raise
    found = {"launch": str(counting.launch(mapped.address, 0)), "wait": str(ask("cuCtxSynchronize"))}
    found["the next copy"] = str(ask("cuMemcpyDtoH", bytearray(8), mapped.address, 8))
    say(found | {"the next create": str(ask("cuMemCreate", raw.granule, raw.property, 0))})


def bequeath(ordinal: int, size_bytes: int, peer: int) -> None:
    """Create memory, write a word into it, send it away, and wait to be killed."""
    driver = open_cuda_driver(f"cuda:{ordinal}")
    handle, address = driver.create(size_bytes), driver.reserve(size_bytes)
    driver.map(address, [handle], Progress())
    driver.set_access(address, size_bytes, Access.READ_WRITE)
    poke(driver, address, b"bequeathed")
    driver.synchronize()
    with socket.socket(fileno=peer) as heir:
        socket.send_fds(heir, [b"."], [driver.export_fd(handle)])
        sys.stdin.read()


def run_kernel(ordinal: int, size_bytes: int, held_bytes: int, seconds: int, descriptor: int) -> None:
    """Count into another's memory for so long, with memory of its own beside it, until it is killed."""
    raw = Raw(ordinal)
    shared = raw.adopted(descriptor, size_bytes, writes=True)
    raw.writable(held_bytes // raw.granule)
    try:
        must_run = Counting().launch(shared.address, seconds)
    except Skipped:
        say({"kernel": False})
    else:
        say({"kernel": must_run.code == 0, "launch": str(must_run)})
    sys.stdin.read()


_ACTS = (hold_context, hold_torch, import_times, store_into_read_only, bequeath, run_kernel)


def _main() -> None:
    act = next(act for act in _ACTS if act.__name__ == sys.argv[1])
    try:
        act(*map(int, sys.argv[2:]))
    except Skipped as reason:
        say({"skipped": str(reason)})
    sys.stdout.flush()
    os._exit(0)  # nothing of a context that may be lost is taken down


if __name__ == "__main__":
    _main()
