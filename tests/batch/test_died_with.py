"""What a job tells the next worker of a request that died with one: where to go on, and how to draw the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvcluster.services.completion import CompletionRequest
from kvcluster.services.workers import Event, Finished, WorkerLost, WorkerReady
from tests.batch.stand_in import EchoWorkers, echo, line, results, run_job, write_input


class Mortal(EchoWorkers):
    """One worker, which dies of the first request in each of the sessions that it is given, and remembers all."""

    def __init__(self, *sessions: str) -> None:
        super().__init__(1)
        self.had: list[CompletionRequest] = []
        self._sessions = list(sessions)
        self._returning = False

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        self.had += [request for _, request in items]
        super().submit(worker, items)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        if self._returning:
            self._returning = False
            return [WorkerReady(0)]
        if not self._sessions:
            return super().wait(timeout_s)
        self._pending.clear()
        self._returning = True
        return [WorkerLost(0, "it was killed", returns=True, session=self._sessions.pop(0))]


def had(tmp_path: Path, workers: Mortal, **body: object) -> list[CompletionRequest]:
    run_job(write_input(tmp_path / "in.jsonl", line("one", "hello", **body)), tmp_path / "out.jsonl", workers=workers)
    return workers.had


def test_a_request_that_died_with_a_worker_names_its_session(tmp_path: Path) -> None:
    assert [request.died_with for request in had(tmp_path, Mortal("s"))] == [(), ("s",)]


def test_the_last_try_begins_again_because_what_was_computed_may_be_what_is_wrong(tmp_path: Path) -> None:
    assert [request.died_with for request in had(tmp_path, Mortal("s", "t"))] == [(), ("s",), ()]


def test_a_worker_that_had_no_session_is_not_named(tmp_path: Path) -> None:
    assert [request.died_with for request in had(tmp_path, Mortal(""))] == [(), ()]


def test_a_seed_that_nobody_gave_is_drawn_once(tmp_path: Path) -> None:
    first, second = had(tmp_path, Mortal("s"), temperature=0.7)
    assert first.seed is not None
    assert first.seed == second.seed


def test_what_draws_nothing_gets_no_seed(tmp_path: Path) -> None:
    [request] = had(tmp_path, Mortal(), temperature=0)
    assert request.seed is None


class Pair(EchoWorkers):
    """Two workers: the first dies at once and comes back after `waits` waits; the other one answers one a wait."""

    def __init__(self, waits: int, *, kept_s: float, returns: bool = True, beside: tuple[int, ...] = ()) -> None:
        super().__init__(2)
        self.answered: dict[int, int] = {}  # by the worker
        self._holding: dict[int, dict[int, CompletionRequest]] = {0: {}, 1: {}}
        lost = WorkerLost(0, "it was killed", returns=returns, session="s", kept_s=kept_s, beside=beside)
        back = [*[None] * waits, WorkerReady(0)] if returns else []
        self._news: list[Event | None] = [lost, *back]

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        self._holding[worker].update(items)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        news = self._news.pop(0) if self._news else None
        if isinstance(news, WorkerLost):
            self._holding[0].clear()
        if news is not None:
            return [news]
        for worker, holding in self._holding.items():
            for key in list(holding):
                self.answered[key] = worker
                return [Finished(key, echo(holding.pop(key)))]
        return []


def who_answered(tmp_path: Path, workers: Pair) -> dict[int, int]:
    lines = [line(f"id {n}", f"prompt {n}") for n in range(6)]
    run_job(write_input(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl", workers=workers, lookahead=2)
    assert sorted(results(tmp_path / "out.jsonl")) == [1, 2, 3, 4, 5, 6]
    return workers.answered


def test_what_a_worker_left_waits_for_whoever_sits_there_next_while_others_do_other_lines(tmp_path: Path) -> None:
    assert {key for key, worker in who_answered(tmp_path, Pair(10, kept_s=60)).items() if worker == 0} == {1, 3}


def test_what_a_worker_left_goes_to_another_at_the_same_device_at_once(tmp_path: Path) -> None:
    assert set(who_answered(tmp_path, Pair(10, kept_s=60, beside=(1,))).values()) == {1}


def test_nobody_waits_for_a_worker_that_does_not_come_back_or_left_nothing(tmp_path: Path) -> None:
    assert set(who_answered(tmp_path, Pair(0, kept_s=60, returns=False)).values()) == {1}
    (tmp_path / "out.jsonl").unlink()
    assert set(who_answered(tmp_path, Pair(10, kept_s=0)).values()) == {1}
