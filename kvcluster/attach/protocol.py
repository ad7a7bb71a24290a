"""What the attach server asks of the service behind it, and what it hands over.

For each session that was welcomed the server says `disconnected` once and then `gone` once, in this order, whatever
happened: EOF is not death, and only the pidfd says death. Or it says `surrendered` once, and then nothing more: that
was the client's own last word. (A server that is closed says none of them.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcluster.ids import ImportKey
from kvcluster.wire.socket import Hello, Push, Welcome

REPLY_TIMEOUT_S = 60.0  # for a frame's reply and for a redemption alike: both may wait for the device's one lock


@dataclass(frozen=True, slots=True)
class HandedHandle:
    """One handle of a ticket; `fd` is None where the client has imported it already."""

    key: ImportKey
    size_bytes: int
    fd: int | None


@dataclass(frozen=True, slots=True)
class Descriptors:
    """A piece of a ticket that names `total` handles, in window order. Whoever receives it closes its descriptors."""

    handles: tuple[HandedHandle, ...]
    total: int

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(handle.fd for handle in self.handles if handle.fd is not None)


@dataclass(frozen=True, slots=True)
class Survivor:
    """A client of an earlier incarnation of the owner: a session that has not said hello to this one.

    `pidfd` is its process's, and whose it is passes to whoever watches it. It may have `size_bytes` mapped, not more.
    """

    session: str
    pid: int
    pidfd: int
    size_bytes: int


class SessionEvents(Protocol):
    """Called on the server's one thread, with nothing of the server's held; may take the service's lock.

    A KvClusterError from `hello` or `redeem` goes to the client. Any other error, and any from another method, is a
    bug: it ends `serve`, which closes everything first.
    """

    def hello(self, hello: Hello, *, pid: int) -> Welcome:
        """A process wants to attach. After an error its connection is closed."""

    def redeem(self, session: str, seq: int, start: int = 0, known: frozenset[ImportKey] = frozenset()) -> Descriptors:
        """The handles of the windows that frame `seq` committed: at most `MAX_DESCRIPTORS` from handle `start` on, with
        a new descriptor for each that is not `known`. Asked for when they can be sent, so that few are open at once."""

    def heartbeat(self, session: str) -> None:
        """The session is alive."""

    def disconnected(self, session: str) -> None:
        """Its connection ended. The process may live, and may still write into what it has mapped."""

    def gone(self, session: str) -> None:
        """Its process is dead, by the pidfd."""

    def surrendered(self, session: str) -> None:
        """Its process has nothing of it mapped any more, and never will, and says so. The connection is closed next."""

    def idle(self) -> None:
        """About once a second, under any load: time for housekeeping."""

    def all_pushes(self) -> Sequence[tuple[str, Push]]:
        """What the service has to say to sessions unasked, each once. Called after every turn of the loop."""
