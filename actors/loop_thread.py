"""The thread that opens a replica and runs its loop: of a job's request actor, and of a served model alike.

What the loop says is handed to `publish` on this thread, after every step, also where that is nothing; `over` is
called once, when the loop has ended as it was told to, or failed. A broken invariant ends the process. Who waits for
what was said, and how, is the caller's.

Threads of OpenMP spin for a short while before they sleep. Measured with gemma3-270m in bfloat16, 8 sequences, 2
threads on 2 cores, in seconds for 24 tokens of each: alone 1.7 (1.35 with ten times the spinning and 2.4 without any,
both from runs of 48 tokens); two such processes at once 3.9, and 13 with ten times the spinning.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from actors.loop import Told, serve
from actors.metrics import WorkerTelling
from actors.spec import WorkerSpec
from actors.supervisor import tell_own_death
from kvcluster.errors import InvariantBroken
from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.answered import Answered
from kvcluster.services.standing import WorkerState, WorkerWord

if TYPE_CHECKING:
    from actors.replica import Replica

LAST_WORDS_S = 0.5


class LoopThread:
    """One replica, opened once. All but `open` may be called from any thread, at any time."""

    def __init__(
        self,
        spec: WorkerSpec,
        find_device: Callable[[], str],
        *,
        publish: Callable[[Told], None],
        over: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._find_device = find_device
        self._publish = publish
        self._over = over
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-loop", daemon=True)
        self._heard_at = time.monotonic()
        self._answered = Answered()
        self._model = spec.model or Path(spec.model_folder).name
        self._telling = WorkerTelling(self._model)
        self.replica: Replica | None = None
        self.failure: BaseException | None = None
        self.has_ended = False

    def open(self) -> Replica:
        """Open the replica and start its loop.

        Raises:
            Whatever `open_replica` or `find_device` raise. The thread has ended then, and no session stays open.
        """
        self._thread.start()
        with self._news:
            self._news.wait_for(lambda: self.replica or self.failure)
            if self.failure:
                raise self.failure
        return self.opened

    @property
    def opened(self) -> Replica:
        """Raises ValueError before `open` has returned."""
        if self.replica is None:
            raise ValueError("open comes first")
        return self.replica

    @property
    def silent_s(self) -> float:
        """How long ago the loop was at a step boundary, or waited for work; since it was opened."""
        return time.monotonic() - self._heard_at if self.replica else 0.0

    @property
    def state(self) -> WorkerState:
        if self.failure is not None:
            return WorkerState.FAILED
        if self.has_ended:
            return WorkerState.STOPPED
        if self._stopping.is_set():
            return WorkerState.STOPPING
        return WorkerState.SERVING if self.replica else WorkerState.OPENING

    def standing(self) -> WorkerWord:
        """How it stands, for `kvcluster status` and `top`."""
        if self.replica is None:
            return WorkerWord(os.getpid(), self._spec.device, self.state, model=self._model)
        done = self.replica.service.statistics()
        return WorkerWord(
            os.getpid(),
            self.replica.port.welcome.device,
            self.state,
            running=done.running,
            waiting=done.waiting,
            generated_tokens=done.generated_tokens,
            answered=self._answered,
            model=self._model,
        )

    def stop(self, timeout_s: float | None = None) -> None:
        """End the loop at its next step and give all memory back; wait for it, no longer than so."""
        self._stopping.set()
        reach(Failpoint.REQUEST_STOPPING)
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout_s)

    def fail(self, failure: BaseException) -> None:
        """It is of no use any more: `over` hears of it."""
        with self._news:
            self.failure = failure
            self._news.notify_all()
        self._over()

    def _run(self) -> None:
        try:
            replica = self._open()
            try:
                serve(replica.service, stopping=self._stopping, publish=self._hand_over)
            finally:
                replica.close()
            self.has_ended = True
            self._over()
        except InvariantBroken as broken:
            traceback.print_exc()
            tell_own_death(f"broken invariant: {broken}", within_s=LAST_WORDS_S)
            os._exit(1)
        except BaseException as failure:  # noqa: BLE001 - the actor boundary: whoever waits for us hears of it
            self.fail(failure)

    def _open(self) -> Replica:
        """On the loop's own thread: a thread of another one's making computes with one thread only (OpenMP)."""
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # read when torch is loaded
        gc.disable()  # all of this stays: to look for rubbish in it again and again takes a fifth of the start
        try:
            from actors.replica import open_replica  # here, because it takes seconds; not in the process that makes us

            reach(Failpoint.REQUEST_STARTED)
            replica = open_replica(self._spec, self._find_device())
        finally:
            gc.freeze()
            gc.enable()
        reach(Failpoint.REQUEST_OPENED)
        self._heard_at = time.monotonic()
        with self._news:
            self.replica = replica
            self._news.notify_all()
        return replica

    def _hand_over(self, said: Told) -> None:
        self._heard_at = time.monotonic()
        self._answered = self._answered.after(each for _, each in said)
        if said:
            reach(Failpoint.REQUEST_FINISHED)
        self._publish(said)
        self._telling.tell(self.opened.port.welcome.device, self.opened.service.statistics, self._answered)
