"""Fences over CUDA events: what of a stream's work was under way when the fence was made.

Asking about an event can spoil a graph's capture as a memory call can, so a fence passes the driver's door each time
and waits by asking again, with the door free meanwhile: other calls go on, and a capture need not wait for a kernel.

An event is used again once its fence is gone. Nothing is called when a fence is dropped: the event is only put
aside, and recording it anew is legal even while its last work runs.
"""

from __future__ import annotations

import time
import weakref

from kvcluster.driver.cuda_hardware import CudaHardware
from kvcluster.driver.strict import Entrance

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 1e-3


class CudaFence:
    """`kvcluster.driver.protocol.Fence` over one event."""

    def __init__(self, cuda: CudaHardware, entrance: Entrance, event: int) -> None:
        self._cuda = cuda
        self._entrance = entrance
        self._event = event
        self._is_done = False

    def done(self) -> bool:
        """
        Raises:
            DriverError: the work failed, or the driver was closed before it was seen to end.
        """
        if not self._is_done:
            self._is_done = self._has_ended()
        return self._is_done

    def wait(self) -> None:
        """Raises as `done` does."""
        pause_s = _FIRST_PAUSE_S
        while not self.done():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _has_ended(self) -> bool:
        with self._entrance.passing("fence"), self._cuda.bound() as cuda:
            return cuda.has_ended(self._event)


class Events:
    """A driver's events, each in use by one fence or put aside."""

    def __init__(self, cuda: CudaHardware) -> None:
        self._cuda = cuda
        self._aside: list[int] = []

    def fence(self, entrance: Entrance, stream: int) -> CudaFence:
        """Called at the door, with the context bound.

        Raises:
            CudaFailed: nothing changed.
        """
        event = self._aside.pop() if self._aside else self._cuda.create_event()
        fence = CudaFence(self._cuda, entrance, event)
        weakref.finalize(fence, self._aside.append, event).atexit = False
        self._cuda.record(event, stream)
        return fence

    def destroy(self) -> None:
        """Those that no fence uses; the others stay to the process's end."""
        while self._aside:
            self._cuda.destroy_event(self._aside.pop())
