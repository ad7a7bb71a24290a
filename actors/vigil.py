"""Watching the processes of one machine, to say how each ended: the kernel tells it to whoever watched them alive.

So a SIGKILL is told from a crash without anybody having asked the dead one anything. Processes of other machines end
unseen here; what is known of those is what their clients and jobs tell.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from actors.boundary import run_or_die
from kvcluster.driver.exits import Watched, watch
from kvcluster.services.chronicle import Who
from kvcluster.services.session_file import began_at

TICK_S = 0.2
REAPED_WITHIN_S = 10.0  # of its end, by its parent; then nobody will say how it ended


def watch_begun(pid: int, started: int) -> Watched | None:
    """The process of this machine that began at `started` (`session_file.began_at`), from now on; None where it is
    gone, though its id may be another one's by now: how that one ends is nobody's word about this one.

    Raises:
        OSError: this process cannot have another descriptor.
    """
    process = watch(pid)
    if process is not None and began_at(pid) != started:
        process.close()
        return None
    return process


@dataclass(slots=True)
class _Watch:
    who: Who
    process: Watched
    ended_at: float | None = None


def open_vigil(ended: Callable[[Who, str], None]) -> Vigil:
    """A vigil on a thread of its own, for as long as this process lives; see `Vigil`."""
    vigil = Vigil(ended)
    threading.Thread(target=run_or_die, args=(vigil.run,), name="vigil", daemon=True).start()
    return vigil


class Vigil:
    """`ended` is called once for each that ends, on the vigil's own thread, with what the kernel says.

    With nothing of an end in order, and of one whose end the kernel does not tell: its parent did not reap it within
    `REAPED_WITHIN_S`, or the kernel is an older one.
    """

    def __init__(self, ended: Callable[[Who, str], None]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._watched: dict[int, _Watch] = {}  # by descriptor
        self._stopping = threading.Event()

    def begin(self, who: Who, started: int) -> None:
        """Watch this process, which began then, from now on; one that is gone, or one too many, is not watched.

        One that is watched already: nothing.
        """
        with self._lock:
            if any(each.who == who for each in self._watched.values()):
                return
        with suppress(OSError):
            if (process := watch_begun(who.pid, started)) is not None:
                with self._lock:
                    self._watched[process.descriptor] = _Watch(who, process)

    def run(self) -> None:
        """Until `end`. The whole of a thread."""
        while not self._stopping.is_set():
            self._look()

    def end(self) -> None:
        """Watch nobody any more."""
        self._stopping.set()

    def _look(self) -> None:
        with self._lock:
            watched = dict(self._watched)
        poller = select.poll()
        for descriptor, each in watched.items():
            if each.ended_at is None:
                poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(TICK_S * 1000):
            watched[descriptor].ended_at = time.monotonic()
        for descriptor, each in watched.items():
            if each.ended_at is not None:
                self._conclude(descriptor, each, each.ended_at)

    def _conclude(self, descriptor: int, each: _Watch, ended_at: float) -> None:
        """Tell how it ended, once its parent has reaped it."""
        ending = each.process.ending()
        if ending is None and time.monotonic() < ended_at + REAPED_WITHIN_S:
            return
        with self._lock:
            del self._watched[descriptor]
        each.process.close()
        self._ended(each.who, ending or "")
