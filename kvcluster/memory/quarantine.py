"""Memory that is charged and not reused, because somebody may still touch it.

Two kinds of entry. *Held by a process*: a client could not unmap it, or its connection ended while it had it; freed
when the kernel says that the process is dead (its pidfd fires), never sooner. *Lost*: the device itself could not
release it; it stays until the device's own process ends.
Source: "Virtual Memory for KV Cache", "Why leaking is the right choice".
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.memory.handle import Handle


class Quarantine:
    """Handles in quarantine, by the session whose process must be gone; and the bytes that are lost."""

    def __init__(self) -> None:
        self._by_session: dict[str, list[Handle]] = {}
        self.lost_bytes = 0

    def add(self, session: str, handles: Sequence[Handle]) -> None:
        """These may be mapped by the session's process."""
        if handles:
            self._by_session.setdefault(session, []).extend(handles)

    def lose(self, size_bytes: int) -> None:
        """So many bytes could not be released to the driver."""
        self.lost_bytes += size_bytes

    def process_gone(self, session: str) -> list[Handle]:
        """The session's process is dead: its handles are nobody's any more."""
        return self._by_session.pop(session, [])

    def held_bytes(self, session: str) -> int:
        """Bytes that wait for the session's process to end."""
        return sum(handle.size_bytes for handle in self._by_session.get(session, []))

    @property
    def size_bytes(self) -> int:
        """All of it; equals the ledger's quarantine account."""
        return self.lost_bytes + sum(self.held_bytes(session) for session in self._by_session)
