"""Which blocks an owner of memory knows, as a numbered log that others follow from far away.

A block is known as long as anything that is listed begins with all tokens up to its end: so it is stored once, by the
first that brings it, and removed once, with the last, however many prefixes have it. Whoever follows says the number of
the last event that it has seen, and gets what changed since; or all that is known, where the log reaches back no
further, or that is less to say. What was stored and removed in between is not said at all.

Blocks are named by the first 16 bytes of their chain's digest (`token_chain`): half of what is kept and sent. To make
two chains of one name takes 2**64 digests, and wins a request that is sent to the wrong place, where it is computed.

Memory: 92 bytes a known block (measured), and 1 MiB at most for the events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

NAME_BYTES = 16
MOST_EVENTS = 16_384


@dataclass(frozen=True, slots=True)
class News:
    """What changed behind event `after`, up to event `number`: names, one after another, in no order.

    Without `after` it is all that is known at `number`, and `removed` is empty.
    """

    number: int
    after: int | None
    stored: bytes
    removed: bytes = b""


class KnownLog:
    """Of one owner, from its first event, number 1. For one thread."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        self.number = 0
        self._known: set[bytes] = set()
        self._changed: deque[bytes] = deque(maxlen=most_events)  # the newest last; how it ended is in what is known

    def __len__(self) -> int:
        """How many blocks are known."""
        return len(self._known)

    def stored(self, digest: bytes) -> None:
        """The block of this digest is known from now on. One that is known already: nothing."""
        name = block_name(digest)
        if name not in self._known:
            self._known.add(name)
            self._count(name)

    def removed(self, digest: bytes) -> None:
        """Nothing that is listed has it any more. One that is not known: nothing."""
        name = block_name(digest)
        if name in self._known:
            self._known.remove(name)
            self._count(name)

    def since(self, number: int) -> News:
        """What happened behind this event; all that is known where that cannot be said, or is longer.

        Takes a step an event, or a step a block that is known, whichever is less.
        """
        behind = self.number - number
        if not 0 <= behind <= min(len(self._changed), len(self._known)):
            return News(self.number, None, b"".join(self._known))
        names = set(islice(reversed(self._changed), behind))
        stored = names & self._known
        return News(self.number, number, b"".join(stored), b"".join(names - stored))

    def _count(self, name: bytes) -> None:
        self.number += 1
        self._changed.append(name)


def block_name(digest: bytes) -> bytes:
    """By which name the block of this digest is told of."""
    return digest[:NAME_BYTES]


def names_in(blob: bytes) -> Iterator[bytes]:
    """The names that stand there one after another."""
    return (blob[at : at + NAME_BYTES] for at in range(0, len(blob), NAME_BYTES))
