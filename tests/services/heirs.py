"""Clients of a device that note what they computed and die, and others that go on. Nothing is mapped but pages."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvcluster.ids import RequestId
from kvcluster.services.progress_page import ProgressPage, Slot, mapped
from kvcluster.wire import messages as wire
from tests.services.device_world import EVERY, GRANULE, TOKENS, Client, DeviceWorld, Request

LABEL, OTHER = b"l" * 16, b"o" * 16


class Noting:
    """A client with a page."""

    def __init__(self, world: DeviceWorld, tenant: str = "") -> None:
        self._service = world.service
        self.client: Client = world.client(tenant)
        [handed] = self._service.redeem(self.client.session, 0).handles
        assert handed.fd is not None
        self.page = ProgressPage(mapped(handed.fd))
        self._slots: dict[bytes, Slot] = {}
        os.close(handed.fd)

    def computed(
        self, granules: int = 3, *, tokens: int | None = None, label: bytes = LABEL, ids: Sequence[int] = (5, 6)
    ) -> Request:
        """A request of so many granules, and the note that its `tokens` tokens are written (all of them)."""
        request = self.client.open()
        request.grow(granules * TOKENS, granules)
        self.note(request, granules * TOKENS if tokens is None else tokens, label=label, ids=ids)
        return request

    def note(self, request: Request, tokens: int, *, label: bytes = LABEL, ids: Sequence[int] = (5, 6)) -> Slot:
        slot = self._slots.get(label) or self.page.begin(label)
        assert slot is not None
        self._slots[label] = slot
        more_ids = ids[slot.emitted :]
        slot.wrote(RequestId(self.client.session, request.key.number), tokens, more_ids, computed=tokens)
        return slot

    def lost(self, label: bytes) -> None:
        """The memory of this text is about to go."""
        self._slots[label].lost()

    def orphan(self) -> None:
        """Its connection ends; it may live."""
        self._service.disconnected(self.client.session)

    def die(self) -> None:
        self.orphan()
        self._service.gone(self.client.session)
        self.page.close()  # its mappings go with it; nobody reads there any more


def adopt(
    client: Client, *dead: Noting, groups: tuple[wire.Group, ...] = EVERY, label: bytes = LABEL, root: bytes = b""
) -> tuple[Request, wire.Adopted]:
    """A new request, and what it gets of these, the newest first."""
    request = client.open(groups, root=root)
    return request, ask(request, *dead, label=label)


def ask(request: Request, *dead: Noting, label: bytes = LABEL) -> wire.Adopted:
    sessions = tuple(noting.client.session for noting in dead)
    [answer] = request.client.ask(wire.Adopt(request=request.key, sessions=sessions, label=label))
    assert isinstance(answer, wire.Adopted)
    return answer


def granule_count(runs: Sequence[wire.Run]) -> int:
    return sum(run.count for run in runs)


__all__ = ["GRANULE", "LABEL", "OTHER", "Noting", "adopt", "ask", "granule_count"]
