"""The way to an owner of memory in this very process: a call. Frames are encoded and decoded as on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.wire.socket import Reclaim

if TYPE_CHECKING:
    from kvcluster.services.device import DeviceService
    from kvcluster.services.frame_service import FrameService


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply that is here."""

    data: bytes

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        return self.data


class DirectSender:
    """To a service that hands over nothing, or has done so: the transport of `LocalPages`."""

    def __init__(self, service: FrameService, session: str) -> None:
        self._service = service
        self._session = session

    def send(self, frame: bytes) -> Answered:
        return Answered(self._service.frame(frame))

    def pushes(self) -> tuple[Reclaim, ...]:
        """What is to be forgotten was only borrowed."""
        if not self._service.has_pushes:
            return ()
        return tuple(push for push in self._service.pushes(self._session) if isinstance(push, Reclaim))

    @property
    def is_open(self) -> bool:
        return True

    @property
    def is_fenced(self) -> bool:
        return False

    def surrender(self) -> None:
        self._service.surrendered(self._session)

    def close(self) -> None:
        self._service.disconnected(self._session)


class DirectTransport(DirectSender):
    """To a device: the transport of `LocalDevice`. Its handles are borrowed; nobody follows a process that died."""

    page = None

    def __init__(self, service: DeviceService, session: str) -> None:
        super().__init__(service, session)
        self._device = service

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._device.handles(self._session, seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        """Borrowed, so there is nothing to drop."""

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        """Borrowed: there is nothing that would be dropped."""

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        """Borrowed."""
