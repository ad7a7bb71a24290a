"""SIGKILL of a replica, and of a device actor, while streams run: who notices, and for how long.

Two devices, a replica at each; a closed loop of streaming clients. CALM_S after it began one process is killed, and
the load goes on. All is well once no answer went wrong any more and as many processes of each kind run as before. The
model is one whose steps take longer than HTTP does: what a replica said before it died arrives nevertheless, and of a
smaller one that may be all.

    python -m benchmarks.serving.kills [--rounds 2]     about 3 minutes
    python -m benchmarks.serving.kills --quick          about 1 minute

It must show: after a replica's death an error event or a 503 for its own streams alone; after a device's death nothing
but 503 for new requests; no stream lost; all well within seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import report
from benchmarks.serving.bodies import Random
from benchmarks.serving.client import Answer, Ending
from benchmarks.serving.endpoint import Beside, Endpoint, Wanted, arguments, endpoint
from benchmarks.serving.figures import endings, faults
from benchmarks.serving.loads import RAMP_S, Load, closed_loop
from benchmarks.serving.processes import DEVICE, OURS, REPLICA, kind

VICTIMS = (REPLICA, DEVICE)
STREAMS, PROMPT_TOKENS, TOKENS = 8, 24, 96
CALM_S, AFTER_S, LOOK_S = 8.0, 30.0, 0.2


@dataclass(frozen=True, slots=True)
class Death:
    """One kill under load. `back_s`: until as many processes ran as before; None: not while the load lasted."""

    victim: str
    killed_s: float
    back_s: float | None
    load: Load

    @property
    def under_way(self) -> list[Answer]:
        """At the moment of the kill."""
        return [one for one in self.load.answers if one.asked_s <= self.killed_s <= one.ended_s]

    @property
    def wrong(self) -> list[Answer]:
        return [one for one in self.load.answers if one.ending is not Ending.DONE]

    @property
    def well_s(self) -> float | None:
        """Seconds from the kill until all is well."""
        last_s = max((one.ended_s - self.killed_s for one in self.wrong), default=0.0)
        return None if self.back_s is None else max(last_s, self.back_s)


async def kill_under_load(served: Endpoint, victim: str, *, after_s: float) -> Death:
    """Let a load run, and kill the oldest process of the kind in its midst."""
    target = served.target()
    bodies = Random(target.model, prompt_tokens=PROMPT_TOKENS, max_tokens=TOKENS, seed=time.perf_counter_ns())
    loading = asyncio.create_task(closed_loop(target, bodies, streams=STREAMS, seconds=CALM_S + after_s))
    await asyncio.sleep(CALM_S)
    before = _kinds(served)
    pid = _oldest(served, victim)
    os.kill(pid, signal.SIGKILL)
    killed_s = time.perf_counter()
    print(f"killed {victim} {pid}", file=sys.stderr)
    back_s = await _back_after(served, before, pid, killed_s)
    return Death(victim, killed_s, back_s, await loading)


async def measure(served: Endpoint, rounds: int, *, after_s: float) -> list[Death]:
    deaths = []
    for _ in range(rounds):
        for victim in VICTIMS:
            deaths.append(await kill_under_load(served, victim, after_s=after_s))
            await asyncio.sleep(2.0)
    return deaths


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    with endpoint(chosen, Wanted({"small": "llama_31m"}, devices=2)) as served:
        if served.root is None:
            parser.error("--pid is needed with --url, to find whom to kill")
        beside = Beside([served])
        rounds, after_s = (1, 15.0) if chosen.quick else (chosen.rounds, AFTER_S)
        deaths = asyncio.run(measure(served, rounds, after_s=after_s))
        told = beside.said()
    report("serving kills", {}, beside=told, deaths=[_said(death) for death in deaths])


def _kinds(served: Endpoint) -> Counter[str]:
    seen = served.census()
    assert seen is not None
    return Counter(kind(one.name) for one in seen.serving.values())


def _oldest(served: Endpoint, victim: str) -> int:
    seen = served.census()
    assert seen is not None
    found = sorted(pid for pid, one in seen.serving.items() if kind(one.name) == victim)
    if not found:
        raise RuntimeError(f"no process is a {victim}: there are {sorted(one.name for one in seen.processes.values())}")
    return found[0]


async def _back_after(served: Endpoint, before: Counter[str], pid: int, killed_s: float) -> float | None:
    """Until as many of each kind run again, without the one that died."""
    until_s = killed_s + AFTER_S
    while (now_s := time.perf_counter()) < until_s:
        seen = served.census()
        assert seen is not None
        living = Counter(kind(one.name) for number, one in seen.serving.items() if number != pid)
        if all(living[name] >= before[name] for name in OURS):
            return now_s - killed_s
        await asyncio.sleep(LOOK_S)
    return None


def _said(death: Death) -> dict[str, Any]:
    load = death.load
    calm = Load(load.began_s, death.killed_s, load.visits)
    late = Load(load.ended_s - CALM_S - RAMP_S, load.ended_s, load.visits)
    return {
        "victim": death.victim,
        "under_way": endings(death.under_way),
        "wrong": endings(death.wrong),
        "wrong_after_s": [round(one.ended_s - death.killed_s, 2) for one in death.wrong][:40],
        "all_answers": endings(load.answers),
        "processes_back_after_s": death.back_s and round(death.back_s, 2),
        "well_after_s": death.well_s and round(death.well_s, 2),
        "goodput_before": round(calm.goodput, 1),
        "goodput_in_the_end": round(late.goodput, 1),
        "said": faults(death.wrong),
    }


if __name__ == "__main__":
    main()
