"""How a client finds its owner of memory again when that is lost: in the background, while the client computes.

An owner is lost when its connection ends, or a frame gets no answer. Whoever knows how looks for the next incarnation
(`Seek`) on a thread of its own; the port polls, and goes on with the new way at a step boundary. What is mapped stays
mapped meanwhile. Where nobody knows how (the owner is in this very process), a loss is an error of whoever asks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kvcluster.errors import DeviceUnreachable, KvClusterError
from kvcluster.wire.socket import Welcome

CLOSE_WITHIN_S = 1.0  # of a search that is stopped; what asks a hung owner may take longer, and ends by itself


class Way(Protocol):
    """How an owner is reached."""

    def close(self) -> None:
        """End the session."""


W = TypeVar("W", bound=Way)


@dataclass(frozen=True, slots=True)
class Link(Generic[W]):
    """An owner that answered the hello of `session`: what it said of itself, and `way`, how it is reached.

    Where `session` is another one than was sought for, the owner has heard of that one and ended it.
    """

    session: str
    welcome: Welcome
    way: W


class Seek(Protocol[W]):
    """How an owner is found again."""

    def __call__(self, session: str, epoch: int, *, stopping: threading.Event) -> Link[W]:
        """An incarnation other than that of `epoch`, which welcomed `session`; with 0 any one that is there.

        Waits for it, but not for ever, and not once `stopping` is set.

        Raises:
            KvClusterError: it does not come back, or serves this session no more. Nothing stays open.
        """


class Contact(Generic[W]):
    """Of one port. For one thread; what seeks has a thread of its own, which `close` ends."""

    def __init__(self, seek: Seek[W] | None, *, close_within_s: float = CLOSE_WITHIN_S) -> None:
        self._seek = seek
        self._close_within_s = close_within_s
        self._stopping = threading.Event()
        self._finding = threading.Lock()
        self._is_closed = False  # then what is found is closed at once
        self._thread: threading.Thread | None = None
        self._found: Link[W] | None = None
        self._failure: BaseException | None = None

    @property
    def is_seeking(self) -> bool:
        """Whether the owner is being sought."""
        return self._thread is not None

    @property
    def can_seek(self) -> bool:
        """Whether somebody knows how to find the owner again."""
        return self._seek is not None

    def lose(self, session: str, epoch: int, loss: DeviceUnreachable) -> None:
        """The owner of this epoch is gone: look for its next, to say hello as `session`. Once is enough.

        Raises:
            DeviceUnreachable: `loss`; nobody here knows how to find it again.
        """
        if self._seek is None or self._stopping.is_set():
            raise loss
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._look, args=(session, epoch), name="kvcluster-seek", daemon=True
            )
            self._thread.start()

    def found(self) -> Link[W] | None:
        """The owner, once it has been found: the caller's. Never waits.

        Raises:
            KvClusterError: it will not be.
        """
        thread = self._thread
        if thread is None or thread.is_alive():
            return None
        thread.join()
        self._thread = None
        found, failure, self._found, self._failure = self._found, self._failure, None, None
        if failure is not None:
            raise failure
        return found

    def close(self) -> Link[W] | None:
        """Seek no more; returns what was found meanwhile, for the caller to close.

        Waits for a search that is under way, but not for long. One that goes on after that closes what it finds.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._close_within_s)
            self._thread = None
        with self._finding:
            self._is_closed = True
            found, self._found = self._found, None
        return found

    def _look(self, session: str, epoch: int) -> None:
        assert self._seek is not None  # or nothing was lost
        try:
            found = self._seek(session, epoch, stopping=self._stopping)
        except (KvClusterError, OSError, RuntimeError, ValueError) as failure:
            self._failure = failure
            return
        with self._finding:
            if not self._is_closed:
                self._found = found
                return
        found.way.close()
