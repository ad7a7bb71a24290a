"""The batch job: feeds workers, writes what they finish, and replays what a dead worker had.

Every input line gets exactly one output line. The input is a stream: at most `lookahead` requests a worker are in
memory, whatever the file's length. A request that was on a worker that died is run again, before new lines are.
One that has seen all but one of `most_losses` workers die is a suspect: it runs alone on a worker, and if that dies
too it is answered with an error. So a request that kills its worker costs neither the rest of the file nor those
that ran beside it.

No Ray here and no threads: `Workers` is the seam, and tests drive the job with a stand-in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from kvcluster.services.batch.input import Line
from kvcluster.services.batch.output import ResultFile
from kvcluster.services.batch.results import Answer, encode_result
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.workers import AllWorkersLost, Event, Finished, WorkerLost, WorkerReady, Workers

WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """`model` is named in every answer; `created` gives the time in it, in whole seconds."""

    model: str
    total_lines: int
    lookahead: int
    created: Callable[[], int]
    most_losses: int = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """Lines with a result so far, earlier runs included; tokens and workers that died are of this run."""

    total: int
    done: int
    failed: int
    generated_tokens: int
    lost_workers: int = 0


@dataclass(frozen=True, slots=True)
class _Sent:
    line_number: int
    custom_id: str | None
    request: CompletionRequest


class BatchJob:
    """One run over the lines. `tell` is called after each result; it may raise to stop the job."""

    def __init__(
        self,
        lines: Iterator[Line],
        *,
        output: ResultFile,
        workers: Workers,
        spec: JobSpec,
        tell: Callable[[Progress], None],
    ) -> None:
        self._lines = lines
        self._output = output
        self._workers = workers
        self._spec = spec
        self._tell = tell
        self._in_flight: dict[int, dict[int, _Sent]] = {worker: {} for worker in range(workers.count)}
        self._returning: set[int] = set()
        self._again: deque[_Sent] = deque()
        self._suspects: deque[_Sent] = deque()
        self._losses: Counter[int] = Counter()
        failed = sum(done.failed for done in output.earlier.values())
        self._progress = Progress(spec.total_lines, len(output.earlier), failed, 0)

    def run(self) -> Progress:
        """Until every line has its result in the output.

        Raises:
            AllWorkersLost: nobody is left to do the rest.
            BatchFileError: the output cannot be written.
        """
        self._feed()
        while self._unfinished():
            for event in self._workers.wait(WAIT_S):
                self._handle(event)
            self._output.sync_if_due()
            self._feed()
        return self._progress

    def _unfinished(self) -> bool:
        return bool(self._suspects or self._again) or any(self._in_flight.values())

    def _feed(self) -> None:
        """Give every worker with room its share, in one submit each; while suspects wait, nothing but suspects."""
        shares: dict[int, list[_Sent]] = {}
        while (worker := self._worker_with_room()) is not None and (sent := self._next()) is not None:
            self._in_flight[worker][sent.line_number] = sent
            shares.setdefault(worker, []).append(sent)
        for worker, share in shares.items():
            self._workers.submit(worker, [(sent.line_number, sent.request) for sent in share])

    def _worker_with_room(self) -> int | None:
        """The least loaded worker that is there, unless all are full; a suspect fills a worker, and needs it empty."""
        room = 1 if self._suspects else self._spec.lookahead
        loads = {worker: len(sent) for worker, sent in self._in_flight.items() if not self._holds_suspect(sent)}
        worker = min(loads, key=loads.__getitem__, default=None)
        return worker if worker is not None and loads[worker] < room else None

    def _holds_suspect(self, sent: Iterable[int]) -> bool:
        return bool(self._losses) and any(self._losses[number] >= self._spec.most_losses - 1 for number in sent)

    def _next(self) -> _Sent | None:
        """The next request to hand out; lines that nobody can answer get their error on the way."""
        for waiting in (self._suspects, self._again):
            if waiting:
                return waiting.popleft()
        for line in self._lines:
            if line.number in self._output.earlier:
                continue
            if isinstance(line.asked, CompletionRequest):
                return _Sent(line.number, line.custom_id, line.asked)
            self._write(Answer(line.number, line.custom_id, line.asked))
        return None

    def _handle(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._finish(event)
        elif isinstance(event, WorkerLost):
            self._lose(event)
        else:
            self._welcome(event)

    def _finish(self, event: Finished) -> None:
        """The first outcome of a line counts, also when a worker that was given up reports after all."""
        for sent in self._in_flight.values():
            if (line := sent.pop(event.key, None)) is not None:
                return self._write(Answer(line.line_number, line.custom_id, event.outcome))
        for waiting in (self._suspects, self._again):
            for line in waiting:
                if line.line_number == event.key:
                    waiting.remove(line)
                    return self._write(Answer(line.line_number, line.custom_id, event.outcome))
        return None

    def _lose(self, event: WorkerLost) -> None:
        self._progress = replace(self._progress, lost_workers=self._progress.lost_workers + 1)
        self._returning.discard(event.worker)
        if event.returns:
            self._returning.add(event.worker)
        for sent in self._in_flight.pop(event.worker, {}).values():
            self._replay(sent, event.reason)
        if not self._in_flight and not self._returning:
            raise AllWorkersLost(reason=event.reason)

    def _replay(self, sent: _Sent, reason: str) -> None:
        self._losses[sent.line_number] += 1
        more = self._spec.most_losses - self._losses[sent.line_number]
        if more > 0:
            return (self._suspects if more == 1 else self._again).append(sent)
        message = f"{self._spec.most_losses} workers died while they had this request ({reason})"
        return self._write(Answer(sent.line_number, sent.custom_id, Refused(500, "worker_lost", message)))

    def _welcome(self, event: WorkerReady) -> None:
        self._returning.discard(event.worker)
        self._in_flight.setdefault(event.worker, {})

    def _write(self, answer: Answer) -> None:
        self._output.append(encode_result(answer, model=self._spec.model, created=self._spec.created()))
        self._losses.pop(answer.line_number, None)
        before, outcome = self._progress, answer.outcome
        tokens = before.generated_tokens + (outcome.completion_tokens if isinstance(outcome, Completion) else 0)
        failed = before.failed + isinstance(outcome, Refused)
        self._progress = replace(before, done=before.done + 1, failed=failed, generated_tokens=tokens)
        self._tell(self._progress)
