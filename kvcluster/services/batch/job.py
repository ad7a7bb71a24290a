"""The batch job: feeds workers, writes what they finish, and replays what a dead worker had.

Every input line gets exactly one output line. The input is a stream: at most `lookahead` requests a worker are in
memory, whatever the file's length. A request that was on a worker that died is run again, before new lines are; by
whoever sits at the same device, as long as that keeps what was computed.
One that has seen all but one of `most_losses` workers die is a suspect: it runs alone on a worker, and if that dies
too it is answered with an error. So a request that kills its worker costs neither the rest of the file nor those
that ran beside it.

No Ray here and no threads: `Workers` is the seam, and tests drive the job with a stand-in.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.batch.input import Line
from kvcluster.services.batch.output import ResultFile
from kvcluster.services.batch.results import Answer, encode_result
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.workers import (
    AllWorkersLost,
    ClusterStopped,
    Event,
    Finished,
    WorkerLost,
    WorkerReady,
    Workers,
    WorkerStopped,
)

WAIT_S = 1.0
DRAIN_S = 0.5


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
    """`homes` are the workers at whose device something of it is kept, until that moment of `time.monotonic`."""

    line_number: int
    custom_id: str | None
    request: CompletionRequest
    digest: str = ""
    homes: tuple[int, ...] = ()
    kept_until: float = 0.0

    def answer(self, outcome: Completion | Refused) -> Answer:
        """What is to be written of it."""
        return Answer(self.line_number, self.custom_id, outcome, self.digest)

    def again(self) -> _Sent:
        """From its first token on."""
        return replace(self, request=replace(self.request, died_with=()))

    def after(self, loss: WorkerLost) -> _Sent:
        """Where that worker ended, if its device still knows."""
        if not loss.session:
            return self
        request = replace(self.request, died_with=(loss.session, *self.request.died_with))
        homes, kept_until = (loss.worker, *loss.beside), time.monotonic() + loss.kept_s
        return replace(self, request=request, homes=homes, kept_until=kept_until)


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
        self._in_flight: dict[int, dict[int, _Sent]] = {worker: {} for worker in workers.ready}
        self._returning = set(workers.returning)
        self._has_more_lines = True
        self._again: deque[_Sent] = deque()
        self._suspects: deque[_Sent] = deque()
        self._losses: Counter[int] = Counter()
        self._is_stopped = False
        failed = sum(done.failed for done in output.earlier.values())
        self._progress = Progress(spec.total_lines, len(output.earlier), failed, 0)

    def run(self) -> Progress:
        """Until every line has its result in the output.

        Raises:
            AllWorkersLost: nobody is left to do the rest.
            ClusterStopped: the workers were told to stop. What they had finished is in the output.
            BatchFileError: the output cannot be written.
        """
        if not self._in_flight and not self._returning:
            raise AllWorkersLost(reason="none was there when the job began")
        self._feed()
        while self._unfinished():
            for event in self._workers.wait(WAIT_S):
                self._handle(event)
            if self._is_stopped:
                self.drain()
                raise ClusterStopped
            self._output.sync_if_due()
            self._feed()
        return self._progress

    def drain(self) -> None:
        """Write what workers finished and did not tell yet, before the job is given up. Comes last."""
        for event in self._workers.drain(DRAIN_S):
            self._finish(event)

    def _unfinished(self) -> bool:
        is_waiting = bool(self._suspects or self._again) or self._has_more_lines
        return is_waiting or any(self._in_flight.values())

    def _feed(self) -> None:
        """Give every worker with room its share, in one submit each; while suspects wait, nothing but suspects."""
        shares: dict[int, list[_Sent]] = {}
        while (found := self._next_share()) is not None:
            worker, sent = found
            self._in_flight[worker][sent.line_number] = sent
            shares.setdefault(worker, []).append(sent)
        for worker, share in shares.items():
            self._workers.submit(worker, [(sent.line_number, sent.request) for sent in share])
            reach(Failpoint.JOB_SUBMITTED)

    def _next_share(self) -> tuple[int, _Sent] | None:
        """Who gets what next; nobody, where all are full or nothing is left for them."""
        for worker in self._workers_with_room():
            if (sent := self._next(worker)) is not None:
                return worker, sent
        return None

    def _workers_with_room(self) -> list[int]:
        """The least loaded first; a suspect fills a worker, and needs it empty."""
        room = 1 if self._suspects else self._spec.lookahead
        loads = {worker: len(sent) for worker, sent in self._in_flight.items() if not self._holds_suspect(sent)}
        return sorted((worker for worker, load in loads.items() if load < room), key=loads.__getitem__)

    def _holds_suspect(self, sent: Iterable[int]) -> bool:
        return bool(self._losses) and any(self._losses[number] >= self._spec.most_losses - 1 for number in sent)

    def _next(self, worker: int) -> _Sent | None:
        """The next request to hand out to it; lines that nobody can answer get their error on the way."""
        if self._suspects:
            return self._suspects.popleft()
        for sent in self._again:
            if worker in sent.homes or not self._waits_for_home(sent):
                self._again.remove(sent)
                return sent
        for line in self._lines:
            if line.number in self._output.earlier:
                continue
            if isinstance(line.asked, CompletionRequest):
                return _Sent(line.number, line.custom_id, line.asked.with_seed(), line.digest)
            self._write(Answer(line.number, line.custom_id, line.asked, line.digest))
        self._has_more_lines = False
        return None

    def _waits_for_home(self, sent: _Sent) -> bool:
        """Whether to compute it elsewhere would be to compute it again: a worker is there, or on its way."""
        is_coming = any(home in self._in_flight or home in self._returning for home in sent.homes)
        return is_coming and time.monotonic() < sent.kept_until

    def _handle(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._finish(event)
        elif isinstance(event, WorkerLost):
            self._lose(event)
        elif isinstance(event, WorkerStopped):
            self._is_stopped = True
        else:
            self._welcome(event)

    def _finish(self, event: Finished) -> None:
        """The first outcome of a line counts, also when a worker that was given up reports after all."""
        for sent in self._in_flight.values():
            if (line := sent.pop(event.key, None)) is not None:
                return self._write(line.answer(event.outcome))
        for waiting in (self._suspects, self._again):
            for line in waiting:
                if line.line_number == event.key:
                    waiting.remove(line)
                    return self._write(line.answer(event.outcome))
        return None

    def _lose(self, event: WorkerLost) -> None:
        reach(Failpoint.JOB_LOST)
        self._progress = replace(self._progress, lost_workers=self._progress.lost_workers + 1)
        self._returning.discard(event.worker)
        if event.returns:
            self._returning.add(event.worker)
        for sent in self._in_flight.pop(event.worker, {}).values():
            self._replay(sent, event)
        if not self._in_flight and not self._returning:
            raise AllWorkersLost(reason=event.reason)

    def _replay(self, sent: _Sent, event: WorkerLost) -> None:
        """It goes on where its worker died; the last time it begins again: what was computed may be what is wrong."""
        self._losses[sent.line_number] += 1
        more = self._spec.most_losses - self._losses[sent.line_number]
        if more == 1:
            return self._suspects.append(sent.again())
        if more > 0:
            return self._again.append(sent.after(event))
        message = f"{self._spec.most_losses} workers died while they had this request ({event.reason})"
        return self._write(sent.answer(Refused(500, "worker_lost", message)))

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
