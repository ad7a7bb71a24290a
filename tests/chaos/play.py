"""One case, played: the load runs, the fault happens, and then everything must be as if nothing had been.

What must hold is the same for all: the texts are those of an undisturbed run, every prompt is answered once, all books
sum with nobody holding a byte, what the case's text says did happen, and no more workers and tokens were lost than that
takes (`tests.chaos.bounds`). Whatever does not hold is the case's sentence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvcluster.testing.arming import parse_faults
from kvcluster.testing.deployment import Answers, Deployment
from kvcluster.testing.waiting import eventually
from tests.chaos.bounds import overrun
from tests.chaos.cases import Act, Case
from tests.chaos.command import answered_by_command
from tests.chaos.loads import LOADS, Loads, run

IDLE_EXIT_S = 1.0
ATTEMPTS = 4  # a sequence comes back to the device in most runs, not in each: it depends on who ends first


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds_lost` is the run's time beyond that of the undisturbed one, or how long a command lived that died.

    `complaint` is empty where all held.
    """

    case: Case
    kills: int = 0
    losses: tuple[str, ...] = ()
    replays: int = 0
    recomputed_tokens: int = 0
    seconds_lost: float = 0.0
    whole_s: float = 0.0
    complaint: str = ""


class Stage:
    """The deployments that cases are played on, one at a time: opened when a case needs another one."""

    def __init__(self, loads: Loads, cases: tuple[Case, ...]) -> None:
        self._loads = loads
        self.cases = cases
        self._wanted: dict[str, Answers] = {}
        self._open: Deployment | None = None
        self._is: tuple[str, bool] | None = None

    def play(self, case: Case) -> Outcome:
        """Never raises for what the case shows: that is its complaint."""
        began = time.monotonic()
        try:
            outcome = _PLAYS[case.act](self, case)
        except Exception as failure:  # noqa: BLE001 - a table of all cases, whatever one of them does
            outcome = Outcome(case, complaint=f"{type(failure).__name__}: {failure}"[:2000])
        if outcome.complaint:
            self.clear()
        return replace(outcome, whole_s=time.monotonic() - began)

    def wanted(self, load: str) -> Answers:
        """What the load says undisturbed, from a deployment of its own kind."""
        return self._wanted[load]

    def deployment(self, load: str, *, held: bool = False) -> Deployment:
        """One that runs and is quiet, in which nothing is armed; with `held` its newcomers are, see `Act.HELD`."""
        if self._open is None or self._is != (load, held):
            self.clear()
            faults = [case.held for case in self.cases if held and case.load == load and case.act is Act.HELD]
            self._open, self._is = self._loads.opened(LOADS[load], newcomers=faults), (load, held)
            for fault in faults:
                _mark(self._open, fault).write_text("0\n")  # it happened already: let go by its case
            self._open.start()
            self._learn(load, self._open)
        self._open.disarm()
        return self._open

    def opened(self, load: str, **settings: Any) -> Deployment:
        """One of the case's own; nothing else is open meanwhile."""
        self.clear()
        self._open = self._loads.opened(LOADS[load], **settings)
        return self._open

    def learn(self, load: str) -> None:
        """Know what the load says."""
        if load not in self._wanted:
            self.deployment(load)

    def ended(self) -> None:
        """What was open was ended by the case."""
        self._open = self._is = None

    def clear(self) -> None:
        if self._open is not None:
            self._open.close()
        self.ended()

    def _learn(self, load: str, deployment: Deployment) -> None:
        first = run(deployment, LOADS[load], salt="first")
        again = run(deployment, LOADS[load], salt="again")  # the first one paid for what is made once
        assert again.texts == first.texts
        self._wanted[load] = again
        deployment.assert_quiet()


def armed(stage: Stage, case: Case) -> Outcome:
    deployment = stage.deployment(case.load)
    deployment.arm(case.text)
    for attempt in range(ATTEMPTS):
        answers = run(deployment, LOADS[case.load], salt=f"{case.name} {attempt}")
        if not _missing(case, deployment) or answers.texts != stage.wanted(case.load).texts:
            break
    return _judged(stage, case, deployment, answers)


def held(stage: Stage, case: Case) -> Outcome:
    deployment = stage.deployment(case.load, held=True)
    others = {other.held for other in stage.cases if other.load == case.load and other.act is Act.HELD}
    for fault in others - {case.held}:
        _mark(deployment, fault).write_text("0\n")
    deployment.arm(case.text)
    return _judged(stage, case, deployment, run(deployment, LOADS[case.load], salt=case.name))


def stopped(stage: Stage, case: Case) -> Outcome:
    deployment = stage.deployment(case.load)
    if case.text:
        deployment.arm(case.text)
    assert case.stops is not None
    pid = deployment.pids(case.stops)[0]
    with _going_on(deployment, pid, case.seconds) as stop:
        answers = run(deployment, LOADS[case.load], salt=case.name, on_result=stop)
    return _judged(stage, case, deployment, answers)


def ending(stage: Stage, case: Case) -> Outcome:
    deployment = stage.deployment(case.load)
    answers = run(deployment, LOADS[case.load], salt=case.name)
    deployment.arm(case.text)
    deployment.close_workers()
    complaint = _missing(case, deployment)
    deployment.disarm()
    deployment.assert_nothing_lost()
    stage.ended()
    outcome = _figures(stage, case, answers, deployment)
    return replace(outcome, kills=1, complaint=complaint or overrun_of(outcome))


def idle(stage: Stage, case: Case) -> Outcome:
    """The owner dies while it leaves; whoever comes next finds or makes another one."""
    stage.learn(case.load)
    deployment = stage.opened(case.load, idle_exit_s=IDLE_EXIT_S)
    run(deployment, LOADS[case.load], salt="before")
    deployment.arm(case.text)
    deployment.close_workers()
    eventually(lambda: not _missing(case, deployment), "the owner leaves")
    answers = run(deployment, LOADS[case.load], salt="after")
    outcome = _judged(stage, case, deployment, answers)
    deployment.assert_nothing_lost()
    stage.ended()
    return outcome


def job(stage: Stage, case: Case) -> Outcome:
    """The command dies in the middle, and the same command ends what it began."""
    stage.learn(case.load)
    deployment = stage.opened(case.load)
    twice = answered_by_command(deployment, LOADS[case.load], case.text)
    complaint = _missing(case, deployment)
    if twice.texts != stage.wanted(case.load).texts[: len(twice.texts)]:
        complaint = "another text than undisturbed"
    kills = sum(len(pids) for pids in deployment.happened().values())
    deployment.disarm()
    deployment.assert_nothing_lost()
    stage.ended()
    return Outcome(case, kills=kills, seconds_lost=twice.first_s, complaint=complaint)


def node(stage: Stage, case: Case) -> Outcome:
    """The last of the nodes goes at the first result. Its cluster is of no use to other cases."""
    deployment = stage.deployment(case.load)
    last = len(deployment.nodes) - 1

    def remove(done: int) -> None:
        if done == 1:
            deployment.remove_node(last)

    answers = run(deployment, LOADS[case.load], salt=case.name, on_result=remove)
    return replace(_judged(stage, case, deployment, answers), kills=1)


_PLAYS: dict[Act, Callable[[Stage, Case], Outcome]] = {
    Act.ARMED: armed,
    Act.HELD: held,
    Act.STOPPED: stopped,
    Act.ENDING: ending,
    Act.IDLE: idle,
    Act.JOB: job,
    Act.NODE: node,
}


def _judged(stage: Stage, case: Case, deployment: Deployment, answers: Answers) -> Outcome:
    deployment.assert_quiet()
    outcome = _figures(stage, case, answers, deployment)
    if answers.texts != stage.wanted(case.load).texts:
        return replace(outcome, complaint="another text than undisturbed")
    return replace(outcome, complaint=_missing(case, deployment) or overrun_of(outcome))


def overrun_of(outcome: Outcome) -> str:
    """What it cost beyond what its case may, in words; empty where it did not."""
    losses, tokens = outcome.losses, outcome.recomputed_tokens
    words = overrun(outcome.case, lost_workers=len(losses), recomputed_tokens=tokens)
    return f"{words} ({'; '.join(losses)})" if words and losses else words


def _figures(stage: Stage, case: Case, answers: Answers, deployment: Deployment) -> Outcome:
    killed = {pid for name, pids in deployment.happened().items() if "=kill" in name for pid in pids if pid}
    return Outcome(
        case,
        kills=len(killed),
        losses=answers.losses,
        replays=answers.replays,
        recomputed_tokens=answers.recomputed_tokens,
        seconds_lost=answers.seconds - stage.wanted(case.load).seconds,
    )


def _missing(case: Case, deployment: Deployment) -> str:
    """What was armed and did not happen, in words."""
    happened = {name for name, pids in deployment.happened().items() if any(pids)}
    missed = [fault.name for fault in parse_faults(case.text) if fault.name not in happened]
    return f"never passed: {', '.join(missed)}" if missed else ""


def _mark(deployment: Deployment, fault: str) -> Path:
    [parsed] = parse_faults(fault)
    return deployment.marks / parsed.name


@contextmanager
def _going_on(deployment: Deployment, pid: int, seconds: float) -> Iterator[Callable[[int], None]]:
    """What stops the process at the first result, so that it goes on after so long; waited for."""
    timers: list[threading.Timer] = []

    def stop(done: int) -> None:
        if done == 1 and not timers:
            deployment.stop(pid)
            timers.append(threading.Timer(seconds, deployment.go_on, [pid]))
            timers[0].start()

    yield stop
    for timer in timers:
        timer.join()


def as_json(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """For the results file."""
    return [
        {
            "case": outcome.case.name,
            "kind": str(outcome.case.kind),
            "load": outcome.case.load,
            "act": str(outcome.case.act),
            "faults": outcome.case.text,
            "kills": outcome.kills,
            "lost_workers": len(outcome.losses),
            "losses": outcome.losses,
            "replays": outcome.replays,
            "recomputed_tokens": outcome.recomputed_tokens,
            "seconds_lost": round(outcome.seconds_lost, 2),
            "complaint": outcome.complaint,
        }
        for outcome in outcomes
    ]
