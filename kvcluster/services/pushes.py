"""What a device has to say to its clients unasked: give something back, drop what you have imported, you are over.

`Fenced` is for a session whose lease has ended, and the last that is said to it. `Reclaim` comes of a refusal
(`services.pressure`), `Forget` of handles that were destroyed: a client that kept its import of one would keep its
memory, which the ledger calls free. Collected at the end of each of the device's acts and fetched by the transports:
whether anything waits is one attribute, read without the device's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvcluster.ids import HandleId
from kvcluster.services.pressure import Pressure
from kvcluster.services.sessions import Session
from kvcluster.wire.socket import MOST_FORGOTTEN, Fenced, Forget, Push, Reclaim


class Pushes:
    """Those of one device that were not fetched yet."""

    def __init__(self) -> None:
        self.has_any = False
        self._forget: dict[str, list[HandleId]] = {}
        self._reclaim: dict[str, Reclaim] = {}
        self._fenced: dict[str, Fenced] = {}

    def collect(self, pressure: Pressure, forgotten: Sequence[HandleId], sessions: Mapping[str, Session]) -> None:
        """Take over what the last act left to say."""
        if forgotten:
            for name, session in sessions.items():
                if known := session.forget(forgotten):
                    self._forget.setdefault(name, []).extend(known)
        for name in pressure.waiting():
            if plea := pressure.drain(name):
                self._reclaim[name] = Reclaim(size_bytes=plea.size_bytes, younger_than=plea.younger_than)
        self._note()

    def fence(self, fenced: Fenced) -> None:
        """This session is over, and listens still."""
        self.drop(fenced.session)
        self._fenced[fenced.session] = fenced
        self._note()

    def drain(self, session: str) -> tuple[Push, ...]:
        """What this session is to be told, once."""
        fenced, reclaim = self._fenced.pop(session, None), self._reclaim.pop(session, None)
        handles = self._forget.pop(session, [])
        self._note()
        return (*(push for push in (fenced, reclaim) if push), *_forgets(handles))

    def drain_all(self) -> tuple[tuple[str, Push], ...]:
        """The same of every session."""
        names = list(dict.fromkeys((*self._fenced, *self._reclaim, *self._forget)))
        return tuple((name, push) for name in names for push in self.drain(name))

    def drop(self, session: str) -> None:
        """It has ended: nobody listens."""
        self.drain(session)

    def _note(self) -> None:
        self.has_any = bool(self._forget or self._reclaim or self._fenced)


def _forgets(handles: list[HandleId]) -> Iterator[Forget]:
    for start in range(0, len(handles), MOST_FORGOTTEN):
        piece = handles[start : start + MOST_FORGOTTEN]
        yield Forget(handles=tuple((handle.number, handle.generation) for handle in piece))
