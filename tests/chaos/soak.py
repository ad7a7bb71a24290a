"""`python -m tests.chaos.soak` (make soak): random kills under load for so many minutes, and then nothing has grown.

In each round the load runs and somebody dies: a worker, or in the first half of the time an owner of memory too, by
SIGKILL after a random result or at a random failpoint. All texts must be those of an undisturbed run, and after each
round all books must sum with nobody holding a byte. At the end every owner, which by then has seen half of the rounds'
workers die, and this process are compared with themselves at their start: descriptors, mappings, threads and memory.

Exit code 0: all of it held. The seed is printed, and `--seed` plays the same kills again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvcluster.failpoints import Passer
from kvcluster.testing.deployment import Deployment
from kvcluster.testing.pytest_plugin import simulated
from tests.chaos.cases import Act, all_cases
from tests.chaos.loads import LOADS, Loads, run

LOAD = LOADS["pages"]  # its workers use a device and host pages
MAY_GROW = {"descriptors": 8, "mappings": 64, "threads": 4, "kilobytes": 24 * 1024}
"""Of Ray's own: a connection and its threads for each process that called lately, and what an allocator keeps."""


@dataclass(frozen=True, slots=True)
class Level:
    """What one process has, as the kernel says."""

    descriptors: int
    mappings: int
    threads: int
    kilobytes: int  # its own; what it shares with others is counted by the ledger

    def above(self, before: Level) -> dict[str, tuple[int, int]]:
        """What has grown by more than it may: then and now."""
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in MAY_GROW}
        return {name: (then, now) for name, (then, now) in pairs.items() if now > then + MAY_GROW[name]}


def level_of(pid: int) -> Level:
    """Now."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return Level(
        len(os.listdir(folder / "fd")),
        len((folder / "maps").read_bytes().splitlines()),
        int(status["Threads"]),
        int(status["RssAnon"].split()[0]),
    )


class Soak:
    """One deployment, and what its processes had when they were young."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self._deployment = deployment
        self._random = random.Random(seed)
        self._points = [case for case in all_cases() if case.act is Act.ARMED and case.load == LOAD.name and case.text]
        self._texts: tuple[str, ...] = ()
        self.young: dict[int, Level] = {}
        self.rounds = self.kills = self.replays = self.recomputed_tokens = 0

    def begin(self) -> None:
        """Warm up, twice, so that what is made once is made."""
        for salt in ("first", "again"):
            self._texts = run(self._deployment, LOAD, salt=salt).texts
        self._deployment.assert_quiet()
        self._look()

    def round(self, *, owners_too: bool) -> None:
        """Raises AssertionError where a text differs or a byte is missing."""
        self.rounds += 1
        self._deployment.disarm()
        on_result = self._fault(owners_too=owners_too)
        answers = run(self._deployment, LOAD, salt=f"round {self.rounds}", on_result=on_result)
        assert answers.texts == self._texts, f"round {self.rounds}: another text than undisturbed"
        self._deployment.assert_quiet()
        self.kills += sum(len(pids) for name, pids in self._deployment.happened().items() if "=kill" in name)
        self.replays += answers.replays
        self.recomputed_tokens += answers.recomputed_tokens
        self._look()

    def grown(self) -> dict[str, dict[str, tuple[int, int]]]:
        """By process, what has grown."""
        here = {
            f"process {pid}": (before, level_of(pid)) for pid, before in self.young.items() if pid in self._living()
        }
        return {name: above for name, (before, now) in here.items() if (above := now.above(before))}

    def _living(self) -> list[int]:
        owners = [pid for kind in (Passer.DEVICE, Passer.PAGES) for pid in self._deployment.pids(kind)]
        return [os.getpid(), *owners]

    def _look(self) -> None:
        for pid in self._living():
            self.young.setdefault(pid, level_of(pid))

    def _fault(self, *, owners_too: bool) -> Callable[[int], None]:
        if self._random.random() < 0.5:
            points = [case for case in self._points if owners_too or case.kind is Passer.REQUEST]
            self._deployment.arm(self._random.choice(points).text)
            return lambda _: None
        kind = self._random.choice(list(Passer)[:3]) if owners_too else Passer.REQUEST
        victims = [self._random.choice(self._deployment.pids(kind))]
        moment = self._random.randrange(1, 12)
        return lambda done: self._kill(victims.pop()) if victims and done == moment else None

    def _kill(self, pid: int) -> None:
        self.kills += 1
        os.kill(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory() as scratch, simulated(1, cpus=8) as (site, mark):
        deployment = Loads(site, Path(scratch), mark=mark).opened(LOAD)
        try:
            return _soaked(deployment, chosen.seed, chosen.minutes * 60)
        finally:
            deployment.close()


def _soaked(deployment: Deployment, seed: int, seconds: float) -> int:
    soak = Soak(deployment, seed)
    soak.begin()
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        soak.round(owners_too=passed < seconds / 2)
        print(f"{passed:6.0f} s  round {soak.rounds}, {soak.kills} kills, {soak.replays} replays", flush=True)
    grown = soak.grown()
    for pid, young in soak.young.items():
        if Path(f"/proc/{pid}").exists():
            print(f"process {pid}: {young} then, {level_of(pid)} now")
    deployment.disarm()
    deployment.assert_nothing_lost()
    print(f"{soak.rounds} rounds, {soak.kills} kills, {soak.replays} replays, {soak.recomputed_tokens} tokens again")
    print(f"grown: {grown or 'nothing'}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
