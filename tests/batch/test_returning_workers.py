"""A job that begins, or goes on, while nobody is there: who is on the way back is waited for, and gets nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from kvcluster.services.completion import CompletionRequest
from kvcluster.services.workers import AllWorkersLost, Event, WorkerLost, WorkerReady
from tests.batch.stand_in import EchoWorkers, results, run_job


class Returning(EchoWorkers):
    """Some are on their way back when the job begins; `news` comes one a wait, before any result."""

    def __init__(self, count: int, returning: Collection[int], *news: Event) -> None:
        super().__init__(count, news, returning)
        self.there = set(self.ready)

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        assert worker in self.there, "given to a worker that is not there"
        super().submit(worker, items)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        events = super().wait(timeout_s)
        self.there |= {event.worker for event in events if isinstance(event, WorkerReady)}
        return events


@pytest.mark.parametrize("returning", [[1], [0, 1]], ids=["one", "all"])
def test_a_worker_that_is_on_its_way_back_when_a_job_begins_gets_nothing_before_it_is_there(
    six: Path, out: Path, returning: list[int]
) -> None:
    workers = Returning(2, returning, *(WorkerReady(worker) for worker in returning))
    assert run_job(six, out, workers).done == 6
    assert sorted(results(out)) == [1, 2, 3, 4, 5, 6]
    assert {worker for worker, _ in workers.submitted} == {0, 1}


def test_a_job_whose_workers_do_not_come_back_after_all_says_so(six: Path, out: Path) -> None:
    workers = Returning(2, [0, 1], WorkerLost(0, "gone", returns=False), WorkerLost(1, "gone", returns=False))
    with pytest.raises(AllWorkersLost, match="gone"):
        run_job(six, out, workers)


def test_a_job_without_any_worker_says_so(six: Path, out: Path) -> None:
    with pytest.raises(AllWorkersLost, match="none was there when the job began"):
        run_job(six, out, EchoWorkers(0))


def test_a_worker_that_is_lost_beside_its_last_result_is_waited_for_while_lines_are_left(six: Path, out: Path) -> None:
    class Together(EchoWorkers):
        """Its one worker is lost with the news of each result, and has nothing then."""

        def __init__(self) -> None:
            super().__init__(1)
            self.back = deque[WorkerReady]()

        def wait(self, timeout_s: float) -> Sequence[Event]:
            if self.back:
                return [self.back.popleft()]
            self.back.append(WorkerReady(0))
            return [*super().wait(timeout_s), WorkerLost(0, "it was killed", returns=True)]

    assert run_job(six, out, Together(), lookahead=1).done == 6
