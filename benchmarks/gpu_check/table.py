"""The check's outcomes for people: a line a part, and below it the figures that are worth a look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu_check.parts import PARTS, Outcome

CALLS = ("create", "map", "set_access", "unmap", "release", "export", "import")


def table(device: str, outcomes: Mapping[str, Outcome]) -> str:
    lines = [f"gpu-check on {device}", ""]
    for name, outcome in outcomes.items():
        lines.append(f"{PARTS[name].title:28} {outcome.status:8} {outcome.seconds:6.1f} s  {outcome.sentence}")
    for name, rows in (("calls", _calls), ("attention", _attention), ("probes", _probes)):
        if name in outcomes and outcomes[name].figures:
            lines += ["", *rows(outcomes[name].figures)]
    return "\n".join(lines)


def _calls(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "microseconds, median / p99".ljust(28) + "".join(f"{call:>16}" for call in CALLS)
    for what, calls in figures.items():
        if isinstance(calls, Mapping):
            cells = (
                f"{calls[call]['median_us']:.1f} / {calls[call]['p99_us']:.1f}" if call in calls else ""
                for call in CALLS
            )
            yield f"{what:28}" + "".join(f"{cell:>16}" for cell in cells)


def _attention(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "decode attention".ljust(28) + "    GB/s  of contiguous   us a call   us to issue"
    for kernel, arms in figures.items():
        if not isinstance(arms, Mapping) or kernel == "largest_error":
            continue
        yield f"{kernel}: {arms['refused']}" if "refused" in arms else kernel
        for arm, told in arms.items():
            if isinstance(told, Mapping):
                speed = f"{told['gb_s']:8.0f}{told['ratio']:15.3f}"
                yield f"  {arm:26}{speed}{told['call_us']:12.1f}{told['issued_us']:14.1f}"


def _probes(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, told in figures.items():
        yield f"{name}: {told['question']}"
        for what, answer in told["answers"].items():
            other = f"   (stand-in: {told['stand-in'][what]})" if what in told.get("differs", ()) else ""
            yield f"  {what}: {answer}{other}"
