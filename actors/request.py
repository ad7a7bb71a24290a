"""The request actor: a model replica and its continuous-batching loop, on memory of one device for life.

The loop (`actors.loop`) runs on a thread of its own (`actors.loop_thread`); Ray's threads only hand requests in and
results out. When the loop fails, `collect` raises what it failed with, once what had finished before was collected;
the actor is of no use any more: its owner ends it and replays its requests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from actors.gpus import given_gpu
from actors.loop import Told
from actors.loop_thread import LoopThread
from actors.spec import Collected, Opened, Placed, WorkerFigures, WorkerSpec
from actors.supervisor import announce
from kvcluster.failpoints import Failpoint, Passer, arm_with, process_is, reach
from kvcluster.services.completion import Completion, CompletionRequest, Refused, answers_among
from kvcluster.services.session_file import began_at
from kvcluster.services.standing import WorkerWord

WORKER = "request"  # its kind, with which its name begins
SHUTDOWN_S = 5.0


class RequestActor:
    """Made and fed by `actors.workers`. `open` comes first and once; the rest may be called from any thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        process_is(Passer.REQUEST)
        if spec.settings.failpoints:
            arm_with(spec.settings.failpoints)
        self._spec = spec
        self._news = threading.Condition()
        self._outcomes: list[tuple[int, Completion | Refused]] = []
        self._loop = LoopThread(spec, lambda: self.place().device, publish=self._publish, over=self._over)
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
        replica = self._loop.open()
        port, pages = replica.port, replica.pages
        return Opened(os.getpid(), port.welcome.device, pages.welcome.device if pages else "", port.session)

    def submit(self, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        """Queue requests, each under its caller's key. A key that is under way fails the actor: nobody hears us."""
        try:
            for key, request in items:
                self._loop.opened.service.submit(key, request)
            reach(Failpoint.REQUEST_SUBMITTED)
        except ValueError as failure:
            self._loop.fail(failure)

    def collect(self, timeout_s: float) -> Collected:
        """What finished since the last call; waits for the first up to `timeout_s`. The last after a stop says so.

        Raises:
            Whatever ended the loop. Requests without an outcome are lost with this actor.
        """
        with self._news:
            self._news.wait_for(lambda: self._outcomes or self._loop.failure or self._loop.has_ended, timeout=timeout_s)
            if self._loop.failure and not self._outcomes:
                raise self._loop.failure
            outcomes, self._outcomes = self._outcomes, []
            is_last = self._loop.has_ended
        if outcomes:
            reach(Failpoint.REQUEST_COLLECTED)
        return Collected(outcomes, self.figures(), is_last, self._loop.opened.port.session)

    def figures(self) -> WorkerFigures:
        """What this worker did so far."""
        done = self._loop.opened.service.statistics()
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
        self._loop.stop()

    def standing(self) -> WorkerWord:
        """How it stands, for `kvcluster status`."""
        return self._loop.standing()

    def __ray_shutdown__(self) -> None:
        """Ray calls it when this process is told to end (SIGTERM), or is not needed any more: memory goes back first.

        Nothing depends on it: after SIGKILL, which it does not see, the owners of the memory take it back.
        """
        self._loop.stop(SHUTDOWN_S)

    def arm(self, text: str) -> None:
        """Arm this process's failpoints, for fault tests: see `kvcluster.failpoints.arm_with`. Raises as it does."""
        arm_with(text)

    def _publish(self, told: Told) -> None:
        if outcomes := answers_among(told):
            with self._news:
                self._outcomes += outcomes
                self._news.notify_all()

    def _over(self) -> None:
        with self._news:
            self._news.notify_all()
