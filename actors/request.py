"""The request actor: a model replica and its continuous-batching loop, on memory of one device for life.

The loop (`actors.loop`) runs on a thread of its own; Ray's threads only hand requests in and results out. When the
loop fails, `collect` raises what it failed with, once what had finished before was collected; the actor is of no use
any more: its owner ends it and replays its requests.

Threads of OpenMP spin for a short while before they sleep. Measured with gemma3-270m in bfloat16, 8 sequences, 2
threads on 2 cores, in seconds for 24 tokens of each: alone 1.7 (1.35 with ten times the spinning and 2.4 without any,
both from runs of 48 tokens); two such processes at once 3.9, and 13 with ten times the spinning.
"""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.gpus import given_gpu
from actors.loop import Outcomes, serve
from actors.spec import Collected, Opened, Placed, WorkerFigures, WorkerSpec
from actors.supervisor import announce, tell_own_death
from kvcluster.errors import InvariantBroken
from kvcluster.failpoints import Failpoint, Passer, arm_with, process_is, reach
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.session_file import began_at
from kvcluster.services.standing import WorkerState, WorkerWord

if TYPE_CHECKING:
    from actors.replica import Replica


WORKER = "request"  # its kind, with which its name begins
SHUTDOWN_S = 5.0
LAST_WORDS_S = 0.5


class RequestActor:
    """Made and fed by `actors.workers`. `open` comes first and once; the rest may be called from any thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        process_is(Passer.REQUEST)
        if spec.settings.failpoints:
            arm_with(spec.settings.failpoints)
        self._spec = spec
        self._news = threading.Condition()
        self._outcomes: Outcomes = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._has_ended = False
        self._loop = threading.Thread(target=self._run, name="request-loop", daemon=True)
        self._replica: Replica | None = None
        if spec.name:
            announce(WORKER, spec.name)

    def place(self) -> Placed:
        """Its process, and the device that it is to sit at.

        Raises:
            DeviceMissing, DriverError: it is a GPU that Ray gave, and CUDA does not give it.
        """
        pid = os.getpid()
        return Placed(self._spec.device or given_gpu(), pid, began_at(pid) or 0)

    def open(self) -> Opened:
        """Open the replica (see `open_replica`, whose errors it raises) and start the loop."""
        self._loop.start()
        with self._news:
            self._news.wait_for(lambda: self._replica or self._failure)
            if self._failure:
                raise self._failure
        port, pages = self._opened.port, self._opened.pages
        return Opened(os.getpid(), port.welcome.device, pages.welcome.device if pages else "", port.session)

    def submit(self, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        """Queue requests, each under its caller's key. A key that is under way fails the actor: nobody hears us."""
        try:
            for key, request in items:
                self._opened.service.submit(key, request)
            reach(Failpoint.REQUEST_SUBMITTED)
        except ValueError as failure:
            self._fail(failure)

    def collect(self, timeout_s: float) -> Collected:
        """What finished since the last call; waits for the first up to `timeout_s`. The last after a stop says so.

        Raises:
            Whatever ended the loop. Requests without an outcome are lost with this actor.
        """
        with self._news:
            self._news.wait_for(lambda: self._outcomes or self._failure or self._has_ended, timeout=timeout_s)
            if self._failure and not self._outcomes:
                raise self._failure
            outcomes, self._outcomes = self._outcomes, []
            is_last = self._has_ended
        if outcomes:
            reach(Failpoint.REQUEST_COLLECTED)
        return Collected(outcomes, self.figures(), is_last, self._opened.port.session)

    def figures(self) -> WorkerFigures:
        """What this worker did so far."""
        done = self._opened.service.statistics()
        return WorkerFigures(
            peak_reserved_bytes=done.peak_reserved_bytes,
            peak_committed_bytes=done.peak_committed_bytes,
            peak_live_bytes=done.peak_live_bytes,
            control_messages=done.control_messages,
            driver_calls=done.driver_calls,
            recomputed_tokens=done.recomputed_tokens,
            adoptions=done.adoptions,
        )

    def stop(self) -> None:
        """End the loop at its next step and give all memory back. Requests without an outcome are dropped."""
        self._end_loop(None)

    def standing(self) -> WorkerWord:
        """How it stands, for `kvcluster status`."""
        if self._replica is None:
            return WorkerWord(os.getpid(), self._spec.device, self._state)
        done = self._replica.service.statistics()
        device = self._replica.port.welcome.device
        return WorkerWord(os.getpid(), device, self._state, running=done.running, waiting=done.waiting)

    def __ray_shutdown__(self) -> None:
        """Ray calls it when this process is told to end (SIGTERM), or is not needed any more: memory goes back first.

        Nothing depends on it: after SIGKILL, which it does not see, the owners of the memory take it back.
        """
        self._end_loop(SHUTDOWN_S)

    def arm(self, text: str) -> None:
        """Arm this process's failpoints, for fault tests: see `kvcluster.failpoints.arm_with`. Raises as it does."""
        arm_with(text)

    @property
    def _state(self) -> WorkerState:
        if self._failure is not None:
            return WorkerState.FAILED
        if self._has_ended:
            return WorkerState.STOPPED
        if self._stopping.is_set():
            return WorkerState.STOPPING
        return WorkerState.SERVING if self._replica else WorkerState.OPENING

    def _end_loop(self, timeout_s: float | None) -> None:
        """Tell the loop to end, and wait until it has; no longer than so."""
        self._stopping.set()
        reach(Failpoint.REQUEST_STOPPING)
        if self._loop.ident is not None:  # it was started
            self._loop.join(timeout_s)

    @property
    def _opened(self) -> Replica:
        if self._replica is None:
            raise ValueError("open comes first")
        return self._replica

    def _run(self) -> None:
        try:
            replica = self._open()
            try:
                serve(replica.service, stopping=self._stopping, publish=self._publish)
            finally:
                replica.close()
            with self._news:
                self._has_ended = True
                self._news.notify_all()
        except InvariantBroken as broken:
            traceback.print_exc()
            tell_own_death(f"broken invariant: {broken}", within_s=LAST_WORDS_S)
            os._exit(1)
        except BaseException as failure:  # noqa: BLE001 - the actor boundary: whoever waits for us hears of it
            self._fail(failure)

    def _open(self) -> Replica:
        """On the loop's own thread: a thread of another one's making computes with one thread only (OpenMP)."""
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # read when torch is loaded
        gc.disable()  # all of this stays: to look for rubbish in it again and again takes a fifth of the start
        try:
            from actors.replica import open_replica  # here, because it takes seconds; not in the process that makes us

            reach(Failpoint.REQUEST_STARTED)
            replica = open_replica(self._spec, self.place().device)
        finally:
            gc.freeze()
            gc.enable()
        reach(Failpoint.REQUEST_OPENED)
        with self._news:
            self._replica = replica
            self._news.notify_all()
        return replica

    def _publish(self, outcomes: Outcomes) -> None:
        if outcomes:
            reach(Failpoint.REQUEST_FINISHED)
            with self._news:
                self._outcomes += outcomes
                self._news.notify_all()

    def _fail(self, failure: BaseException) -> None:
        with self._news:
            self._failure = failure
            self._news.notify_all()
