"""Memory that is charged and not reused, because somebody may still touch it.

Two kinds of entry. *Held by a process*: a client could not unmap it, or its connection ended while it had it; freed
when the kernel says that the process is dead (its pidfd fires), never sooner. *Lost*: the device itself could not
release it; it stays until the device's own process ends. Both are charged to the tenant whose memory it was; what was
pooled when it was lost is nobody's, and charged to the nameless tenant: who gave everything back pays for nothing.
Source: "Virtual Memory for KV Cache", "Why leaking is the right choice".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvcluster.memory.handle import Handle, bytes_by_tenant, bytes_of


class Quarantine:
    """Handles in quarantine, by the session whose process must be gone; and the bytes that are lost."""

    def __init__(self) -> None:
        self._by_session: dict[str, list[Handle]] = {}
        self._lost: Counter[str] = Counter()

    def add(self, session: str, handles: Sequence[Handle]) -> None:
        """These may be mapped by the session's process."""
        if handles:
            self._by_session.setdefault(session, []).extend(handles)

    def lose(self, lost: Mapping[str, int]) -> None:
        """So many bytes of each tenant could not be released to the driver."""
        self._lost.update(lost)

    def take_out(self, session: str, handles: Sequence[Handle]) -> None:
        """The session's process is dead, and these, which waited for that, are somebody's."""
        taken = set(handles)
        self._by_session[session] = [handle for handle in self._by_session.get(session, ()) if handle not in taken]

    def process_gone(self, session: str) -> list[Handle]:
        """The session's process is dead: its handles are nobody's any more."""
        return self._by_session.pop(session, [])

    def held_bytes(self, session: str) -> int:
        """Bytes that wait for the session's process to end."""
        return bytes_of(self._by_session.get(session, []))

    def held_by_session(self) -> dict[str, int]:
        """The same of every session for whose process anything waits."""
        return {session: bytes_of(handles) for session, handles in self._by_session.items()}

    def lost_by(self, tenant: str) -> int:
        """The tenant's bytes that never come back."""
        return self._lost[tenant]

    def used_by(self, tenant: str) -> int:
        """All of the tenant's; equals its account in the ledger."""
        held = sum(bytes_by_tenant(handles).get(tenant, 0) for handles in self._by_session.values())
        return self._lost[tenant] + held

    @property
    def lost_bytes(self) -> int:
        """Bytes that never come back, everybody's."""
        return sum(self._lost.values())

    @property
    def size_bytes(self) -> int:
        """All of it; equals the quarantine accounts of the ledger together."""
        return self.lost_bytes + sum(map(bytes_of, self._by_session.values()))
