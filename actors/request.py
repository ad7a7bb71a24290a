"""The request actor: a model replica and its continuous-batching loop, on memory of one device for life.

The loop (`actors.loop`) runs on a thread of its own; Ray's threads only hand requests in and results out. When the
loop fails, `collect` raises what it failed with, once what had finished before was collected; the actor is of no use
any more: its owner ends it and replays its requests.

Threads of OpenMP spin for a short while before they sleep. Measured with gemma3-270m in bfloat16, 8 sequences, 2
threads on 2 cores, in seconds for 24 tokens of each: alone 1.7 (1.35 with ten times the spinning and 2.4 without any,
both from runs of 48 tokens); two such processes at once 3.9, and 13 with ten times the spinning.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.gpus import given_gpu
from actors.loop import Outcomes, serve
from actors.spec import Collected, Opened, WorkerFigures, WorkerSpec
from kvcluster.errors import InvariantBroken
from kvcluster.services.completion import CompletionRequest

if TYPE_CHECKING:
    from actors.replica import Replica


class RequestActor:
    """Made and fed by `actors.workers`. `open` comes first and once; the rest may be called from any thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._news = threading.Condition()
        self._outcomes: Outcomes = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._loop = threading.Thread(target=self._run, name="request-loop", daemon=True)
        self._replica: Replica | None = None

    def place(self) -> str:
        """The name of the device that it is to sit at.

        Raises:
            DeviceMissing, DriverError: it is a GPU that Ray gave, and CUDA does not give it.
        """
        return self._spec.device or given_gpu()

    def open(self) -> Opened:
        """Open the replica (see `open_replica`, whose errors it raises) and start the loop."""
        self._loop.start()
        with self._news:
            self._news.wait_for(lambda: self._replica or self._failure)
            if self._failure:
                raise self._failure
        pages = self._opened.pages
        return Opened(os.getpid(), self._opened.port.welcome.device, pages.welcome.device if pages else "")

    def submit(self, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        """Queue requests, each under its caller's key. A key that is under way fails the actor: nobody hears us."""
        try:
            for key, request in items:
                self._opened.service.submit(key, request)
        except ValueError as failure:
            self._fail(failure)

    def collect(self, timeout_s: float) -> Collected:
        """What finished since the last call; waits for the first up to `timeout_s`.

        Raises:
            Whatever ended the loop. Requests without an outcome are lost with this actor.
        """
        with self._news:
            self._news.wait_for(lambda: self._outcomes or self._failure, timeout=timeout_s)
            if self._failure and not self._outcomes:
                raise self._failure
            outcomes, self._outcomes = self._outcomes, []
        return Collected(outcomes, self.figures())

    def figures(self) -> WorkerFigures:
        """What this worker did so far."""
        done = self._opened.service.statistics()
        return WorkerFigures(
            peak_reserved_bytes=done.peak_reserved_bytes,
            peak_committed_bytes=done.peak_committed_bytes,
            peak_live_bytes=done.peak_live_bytes,
            control_messages=done.control_messages,
            driver_calls=done.driver_calls,
        )

    def stop(self) -> None:
        """End the loop at its next step and give all memory back. Requests without an outcome are dropped."""
        self._stopping.set()
        if self._loop.ident is not None:  # it was started
            self._loop.join()

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
        except InvariantBroken:
            traceback.print_exc()
            os._exit(1)
        except BaseException as failure:  # noqa: BLE001 - the actor boundary: whoever waits for us hears of it
            self._fail(failure)

    def _open(self) -> Replica:
        """On the loop's own thread: a thread of another one's making computes with one thread only (OpenMP)."""
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # read when torch is loaded
        from actors.replica import open_replica  # here, because it takes seconds, and not in the process that makes us

        replica = open_replica(self._spec, self.place())
        with self._news:
            self._replica = replica
            self._news.notify_all()
        return replica

    def _publish(self, outcomes: Outcomes) -> None:
        if outcomes:
            with self._news:
                self._outcomes += outcomes
                self._news.notify_all()

    def _fail(self, failure: BaseException) -> None:
        with self._news:
            self._failure = failure
            self._news.notify_all()
