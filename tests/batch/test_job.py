"""The job under every kind of news: dead workers, late reports, refusals, a million lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.services.batch.input import Line
from kvcluster.services.batch.job import BatchJob, JobSpec, Progress
from kvcluster.services.batch.opening import open_results
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.workers import (
    AllWorkersLost,
    ClusterStopped,
    Event,
    Finished,
    WorkerLost,
    WorkerReady,
    WorkerStopped,
)
from tests.batch.stand_in import EchoWorkers, echo, line, results, run_job, write_input
from tests.examples import examples


class Dying(EchoWorkers):
    """A lost worker loses what it had; `at` says at which waits which workers are lost (and come back)."""

    def __init__(self, count: int, at: dict[int, WorkerLost]) -> None:
        super().__init__(count)
        self._at = at
        self._waits = itertools.count(1)
        self._holding: dict[int, dict[int, CompletionRequest]] = {worker: {} for worker in range(count)}
        self._back: list[int] = []

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        assert worker not in self._back, "given to a worker that is not there"
        self.submitted += [(worker, key) for key, _ in items]
        self._holding[worker].update(items)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        lost = self._at.get(next(self._waits))
        if lost is not None and lost.worker not in self._back:
            self._holding[lost.worker].clear()
            self._back += [lost.worker] if lost.returns else []
            return [lost]
        for held in self._holding.values():
            if held:
                key, request = held.popitem()
                return [Finished(key, echo(request))]
        return [WorkerReady(self._back.pop())]


class Poisoned(EchoWorkers):
    """A worker that gets the poison dies with all that it has, and is back at the next wait."""

    def __init__(self, count: int, poison: int) -> None:
        super().__init__(count)
        self.deaths = 0
        self._poison = poison
        self._holding: dict[int, dict[int, CompletionRequest]] = {worker: {} for worker in range(count)}

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        self._holding[worker].update(items)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        for worker, held in self._holding.items():
            if self._poison in held:
                held.clear()
                self.deaths += 1
                return [WorkerLost(worker, "killed by signal 11", True), WorkerReady(worker)]
        held = next(held for held in self._holding.values() if held)
        key, request = held.popitem()
        return [Finished(key, echo(request))]


def texts(out: Path) -> dict[int, str]:
    return {number: one["response"]["body"]["choices"][0]["text"] for number, one in results(out).items()}


WHOLE = {n: f"<prompt {n}>" for n in range(1, 7)}


def test_every_line_is_answered_in_openais_form(six: Path, out: Path) -> None:
    told: list[Progress] = []
    assert run_job(six, out, told=told) == told[-1] == Progress(total=6, done=6, failed=0, generated_tokens=18)
    found = results(out)[3]
    assert re.fullmatch("req_3_[0-9a-f]{12}", found["response"].pop("request_id"))
    assert found == {
        "id": "batch_req_3",
        "custom_id": "id 3",
        "response": {
            "status_code": 200,
            "body": {
                "id": "cmpl-3",
                "object": "text_completion",
                "created": 1_700_000_000,
                "model": "echo",
                "choices": [{"index": 0, "text": "<prompt 3>", "logprobs": None, "finish_reason": "length"}],
                "usage": {
                    "prompt_tokens": 2,
                    "completion_tokens": 3,
                    "total_tokens": 5,
                    "prompt_tokens_details": {"cached_tokens": 0},
                },
            },
        },
        "error": None,
    }
    assert [one.done for one in told] == [1, 2, 3, 4, 5, 6]


def test_a_refusal_by_a_worker_is_that_lines_error_alone(six: Path, out: Path) -> None:
    class Refusing(EchoWorkers):
        def outcome(self, key: int, request: CompletionRequest) -> Completion | Refused:
            too_long = Refused(400, "context_length_exceeded", "body.prompt has 9 tokens and the model's context is 8")
            return too_long if key == 4 else echo(request)

    progress = run_job(six, out, Refusing())
    assert (progress.done, progress.failed) == (6, 1)
    assert results(out)[4]["response"]["status_code"] == 400
    assert results(out)[4]["error"] == {
        "code": "context_length_exceeded",
        "message": "line 4: body.prompt has 9 tokens and the model's context is 8",
    }


@pytest.mark.parametrize("returns", [True, False])
def test_what_a_dead_worker_had_is_run_by_another(six: Path, out: Path, returns: bool) -> None:
    for wait in range(1, 7):
        workers = Dying(2, {wait: WorkerLost(0, "killed", returns)})
        out.unlink(missing_ok=True)
        assert run_job(six, out, workers).failed == 0
        assert texts(out) == WHOLE


@settings(max_examples=examples(60), deadline=None)
@given(
    deaths=st.dictionaries(st.integers(1, 20), st.integers(0, 2), max_size=8),
    lookahead=st.integers(1, 4),
)
def test_with_any_deaths_of_workers_that_come_back_every_line_has_one_result(
    tmp_path_factory: pytest.TempPathFactory, deaths: dict[int, int], lookahead: int
) -> None:
    folder = tmp_path_factory.mktemp("job")
    asked = write_input(folder / "in.jsonl", *(line(f"id {n}", f"prompt {n}") for n in range(1, 7)))
    workers = Dying(3, {wait: WorkerLost(worker, "killed", True) for wait, worker in deaths.items()})
    progress = run_job(asked, folder / "out.jsonl", workers, lookahead=lookahead)
    found = results(folder / "out.jsonl")
    assert found.keys() == WHOLE.keys()
    assert progress.failed == sum(one["error"] is not None for one in found.values())
    assert progress.failed == 0 or len(deaths) >= 3


def test_a_request_that_three_workers_died_of_is_an_error_and_the_rest_is_served(tmp_path: Path, out: Path) -> None:
    asked = write_input(tmp_path / "in.jsonl", line("poison"))
    workers = Dying(1, {wait: WorkerLost(0, "killed by signal 11", True) for wait in (1, 3, 5)})
    progress = run_job(asked, out, workers)
    assert (progress.failed, progress.lost_workers) == (1, 3)
    assert results(out)[1]["response"]["status_code"] == 500
    assert results(out)[1]["error"]["code"] == "worker_lost"
    assert "killed by signal 11" in results(out)[1]["error"]["message"]
    assert [key for _, key in workers.submitted] == [1, 1, 1]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("poison", [1, 3, 6])
def test_a_request_that_kills_its_worker_costs_no_other_request_its_answer(
    six: Path, out: Path, count: int, poison: int
) -> None:
    workers = Poisoned(count, poison)
    assert run_job(six, out, workers, lookahead=4).failed == 1
    found = results(out)
    assert found[poison]["error"]["code"] == "worker_lost"
    assert [number for number, one in found.items() if one["error"]] == [poison]
    assert workers.deaths == 3


def test_when_no_worker_is_left_and_none_returns_the_job_ends_and_keeps_its_results(six: Path, out: Path) -> None:
    dying = Dying(2, {3: WorkerLost(0, "killed", False), 4: WorkerLost(1, "killed too", False)})
    with pytest.raises(AllWorkersLost, match=r"killed too.*run the same command again"):
        run_job(six, out, dying)
    assert len(results(out)) == 2
    run_job(six, out)
    assert texts(out) == WHOLE


def test_a_worker_that_does_not_come_back_after_all_is_counted_as_gone(six: Path, out: Path) -> None:
    script = [WorkerLost(0, "killed", True), WorkerLost(1, "killed", True), WorkerLost(0, "too often", False)]
    with pytest.raises(AllWorkersLost, match="no memory"):
        run_job(six, out, EchoWorkers(script=[*script, WorkerLost(1, "no memory", False)]))


@pytest.mark.parametrize("ready_first", [False, True])
def test_reports_that_come_after_a_worker_was_given_up_count_once(six: Path, out: Path, ready_first: bool) -> None:
    """They arrive while their line waits to be run again, or while it runs again on another worker."""
    lost = [WorkerLost(0, "silent", True), WorkerLost(1, "silent", True)]
    reports = [Finished(key, Completion(text, "stop", 1, 1)) for key, text in ((3, "late"), (3, "later"), (77, "odd"))]
    back: list[Event] = [WorkerReady(0), WorkerReady(1)]
    script = [*lost, *back, *reports] if ready_first else [*lost, *reports, *back]
    assert run_job(six, out, EchoWorkers(script=script)).done == 6
    assert texts(out) == {**WHOLE, 3: "late"}


def test_only_so_many_requests_are_in_memory_as_the_lookahead_says(out: Path) -> None:
    read = 0

    def endless() -> Iterator[Line]:
        nonlocal read
        for number in range(1, 10_001):
            read = number
            yield Line(number, str(number), CompletionRequest(f"prompt {number}"))

    class Counting(EchoWorkers):
        def wait(self, timeout_s: float) -> Sequence[Event]:
            assert read - done.done <= 3 * 5
            return super().wait(timeout_s)

    done = Progress(0, 0, 0, 0)

    def tell(progress: Progress) -> None:
        nonlocal done
        done = progress

    spec = JobSpec("echo", 10_000, lookahead=5, created=lambda: 0)
    with open_results(out) as output:
        BatchJob(endless(), output=output, workers=Counting(3), spec=spec, tell=tell).run()
    assert done.done == 10_000


def test_work_is_divided_evenly(six: Path, out: Path) -> None:
    workers = EchoWorkers(count=3)
    run_job(six, out, workers)
    assert sorted(worker for worker, _ in workers.submitted) == [0, 0, 1, 1, 2, 2]


def test_an_input_without_lines_is_done_at_once(tmp_path: Path, out: Path) -> None:
    assert run_job(write_input(tmp_path / "in.jsonl"), out) == Progress(0, 0, 0, 0)
    assert out.read_bytes() == b""


def test_a_job_whose_cluster_is_stopped_keeps_what_was_finished_and_a_second_run_does_the_rest(
    six: Path, out: Path
) -> None:
    workers = EchoWorkers(script=[WorkerStopped(1)])
    workers.unreported = [Finished(3, Completion("<three>", "length", 2, 3))]
    with pytest.raises(ClusterStopped, match="the same command continues where it stopped"):
        run_job(six, out, workers)
    assert sorted(results(out)) == [3]
    assert run_job(six, out).done == 6
    assert sorted(results(out)) == [1, 2, 3, 4, 5, 6]


def test_what_is_reported_beside_a_workers_stop_counts(six: Path, out: Path) -> None:
    class Both(EchoWorkers):
        def wait(self, timeout_s: float) -> Sequence[Event]:
            return [WorkerStopped(0), *super().wait(timeout_s)]

    with pytest.raises(ClusterStopped):
        run_job(six, out, Both())
    assert len(results(out)) == 1
