"""Clients that mean ill or leave early: nothing may be lost by it, and nothing may grow.

The same storms come `--storms` times, and a picture is taken after each: the device's ledger as GET /v1/kv shows it,
and descriptors, threads, mappings and resident bytes of every process that serves. Resident memory is warm only after
some: malloc keeps what it was given back (330 MB in the gateway after JSON of 2 MB, which went back minutes later; in
a replica 160 MB over 4,000 requests of any kind, and nothing more after). So the growth is given storm by storm, and
that of the last one counts. A client that behaves asks once a second all the while; its text is the same at the end.

    python -m benchmarks.serving.storms [--drops 1000] [--slow 200] [--storms 3]     about 4 minutes
    python -m benchmarks.serving.storms --quick                                      about 1 minute

It must show: no fault; no memory in the ledger but retained prefixes, as before; in the last storm growth of
descriptors, threads and mappings at most SLACK a process, and of resident memory at most SLACK_MB.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import report
from benchmarks.serving.client import BROKEN, Answer, Target, ask, completion, read_json
from benchmarks.serving.droppers import Slow, drop_all, read_slowly
from benchmarks.serving.endpoint import Beside, Endpoint, Wanted, arguments, endpoint
from benchmarks.serving.figures import endings, faults, first_tokens_s, milliseconds
from benchmarks.serving.hostile import Met, header_floods, hostile_json, huge_bodies
from benchmarks.serving.processes import Census, growth, kind

SETTLE_S = 30.0
SLACK, SLACK_MB = 4, 32.0
PROMPT = list(range(100, 124))
USUAL = {"max_tokens": 32}
# So little memory that retained prefixes fill it at once; and room for all slow readers, who are to be read to.
CROWDED = {"device_memory": "4MiB", "host_memory": "64MiB", "max_num_seqs": 64, "max_num_waiting": 256}


@dataclass(frozen=True, slots=True)
class Storm:
    """How much of each."""

    drops: int
    slow: int
    slow_s: float
    huge: int
    floods: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What must be the same before and after."""

    kv: Any
    census: Census | None
    text: str


async def storm(target: Target, how: Storm) -> dict[str, Any]:
    """All kinds, one after the other: what each came to."""
    said: dict[str, Any] = {"drops": await drop_all(target, how.drops)}
    said["slow_readers"] = await read_slowly(target, how.slow, Slow(how.slow_s, 200))
    for name, met in (
        ("hostile_json", await hostile_json(target)),
        ("huge_bodies", await huge_bodies(target, how.huge)),
        ("header_floods", await header_floods(target, how.floods)),
    ):
        said[name] = {"outcomes": _counted(met), "faults": _faults(met)}
    return said


async def picture(served: Endpoint) -> Picture:
    """Once nothing is under way any more: of two looks at the ledger that are the same, the second."""
    text = (await ask(served.target(), completion(served.models[0], PROMPT, **USUAL))).text
    until_s = time.perf_counter() + SETTLE_S
    kv = await _kv(served.target())
    while time.perf_counter() < until_s:
        await asyncio.sleep(2.0)
        earlier, kv = kv, await _kv(served.target())
        if _amounts(earlier) == _amounts(kv):
            break
    return Picture(kv, served.census(), text)


async def measure(served: Endpoint, how: Storm, count: int) -> dict[str, Any]:
    """So many storms, and what the last one left."""
    probes: list[Answer] = []
    probing = asyncio.create_task(_probe(served.target(), probes))
    await asyncio.sleep(3.0)
    said: dict[str, Any] = {}
    seconds, pictures = [], [await picture(served)]
    for number in range(count):
        began_s = time.perf_counter()
        said = await storm(served.target(), how)
        seconds.append(round(time.perf_counter() - began_s, 1))
        pictures.append(await picture(served))
        print(f"storm {number + 1} of {count}: {seconds[-1]} s", file=sys.stderr)
    probing.cancel()
    before, after = pictures[-2:]
    return {
        "storm_s": seconds,
        "last_storm": said,
        "behaved": _behaved(probes),
        "ledger": _difference(before.kv, after.kv),
        "growth": _grown(before, after),
        "sums": [seen.census.summary() for seen in pictures if seen.census],
        "resident_mb": _resident(pictures),
        "same_text": len({seen.text for seen in pictures}) == 1 and after.text != "",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--drops", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--storms", type=int, default=3)
    chosen = parser.parse_args()
    with endpoint(chosen, Wanted(settings=CROWDED)) as served:
        beside = Beside([served])
        measured = asyncio.run(measure(served, _storm(chosen), 2 if chosen.quick else chosen.storms))
        told = beside.said()
    report("serving storms", {}, beside=told, verdict=_verdict(measured), **measured)


def _storm(chosen: argparse.Namespace) -> Storm:
    if chosen.quick:
        return Storm(drops=200, slow=40, slow_s=3.0, huge=4, floods=16)
    return Storm(drops=chosen.drops, slow=chosen.slow, slow_s=10.0, huge=20, floods=100)


async def _probe(target: Target, probes: list[Answer]) -> None:
    """A client that behaves."""
    while True:
        probes.append(await ask(target, completion(target.model, PROMPT, **USUAL)))
        await asyncio.sleep(1.0)


async def _kv(target: Target) -> Any:
    with suppress(*BROKEN):
        return await read_json(target, "/v1/kv")
    return None


def _amounts(kv: Any, path: str = "") -> dict[str, Any]:
    """The numbers in a JSON document, by their path; those that count events or tell a time are left out."""
    if isinstance(kv, dict):
        parts = [_amounts(value, f"{path}.{name}") for name, value in kv.items()]
    elif isinstance(kv, list):
        parts = [_amounts(value, f"{path}[{number}]") for number, value in enumerate(kv)]
    else:
        is_amount = isinstance(kv, int) and ("bytes" in path or "session" in path)
        return {path: kv} if is_amount else {}
    return {name: value for part in parts for name, value in part.items()}


def _difference(before: Any, after: Any) -> dict[str, list[Any]]:
    """What is not as it was: both values by path. Retained prefixes are as good as free."""
    early, late = _settled(_amounts(before)), _settled(_amounts(after))
    return {path: [early.get(path), late.get(path)] for path in {*early, *late} if early.get(path) != late.get(path)}


def _settled(amounts: dict[str, Any]) -> dict[str, Any]:
    """Free and retained bytes of an owner as one amount."""
    settled = dict(amounts)
    for path in [path for path in amounts if path.endswith(".retained")]:
        free = f"{path.removesuffix('.retained')}.free"
        settled[free] = settled.get(free, 0) + settled.pop(path)
    return settled


def _grown(before: Picture, after: Picture) -> dict[str, dict[str, float]]:
    return growth(before.census, after.census) if before.census and after.census else {}


def _resident(pictures: Sequence[Picture]) -> dict[str, list[float]]:
    """Of each process, before the storms and after each."""
    seen = [one.census.serving for one in pictures if one.census]
    pids = set.intersection(*(set(one) for one in seen)) if seen else set()
    return {f"{kind(seen[0][pid].name)} {pid}": [round(one[pid].rss_bytes / 1e6, 1) for one in seen] for pid in pids}


def _counted(met: Sequence[Met]) -> dict[str, int]:
    return dict(sorted(Counter(one.outcome for one in met).items()))


def _faults(met: Sequence[Met]) -> list[str]:
    return [f"{one.name}: {one.outcome} {one.body[:200]}" for one in met if one.is_fault]


def _behaved(probes: Sequence[Answer]) -> dict[str, Any]:
    first_ms = milliseconds(first_tokens_s(probes))
    return {"endings": endings(probes), "first_token_ms": first_ms, "faults": faults(probes)}


def _verdict(measured: dict[str, Any]) -> dict[str, Any]:
    grown = measured["growth"].values()
    counts = [one[name] for one in grown for name in ("descriptors", "threads", "mappings")]
    storms = measured["last_storm"]
    return {
        "faults": sum(len(part["faults"]) for part in storms.values() if "faults" in part),
        "lost_streams": storms["slow_readers"].get("lost", 0),
        "most_growth": max(counts, default=0),
        "most_growth_mb": max((one["rss_mb"] for one in grown), default=0.0),
        "allowed": {"growth": SLACK, "growth_mb": SLACK_MB},
        "same_text": measured["same_text"],
        "ledger_differs_in": sorted(measured["ledger"]),
    }


if __name__ == "__main__":
    main()
