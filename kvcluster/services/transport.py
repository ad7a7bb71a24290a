"""How frames get to a device and handles come back. Two implementations: in this process, and over Ray.

`send` does not wait, so that a top-up travels beside a step; a frame that was sent may have run even if no reply
comes. `redeem` brings the handles of the windows that frame `seq` handed over, in window order, as handles of the
client's own driver; `settled` says that they are mapped, so that the transport may drop its own hold on them, or keep
them for the next time. What the device says of handles that are gone is the transport's own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.services.progress_page import Memory as PageMemory
from kvcluster.wire.socket import Reclaim


class PendingReply(Protocol):
    def ready(self) -> bool:
        """Whether `result` would return at once."""

    def result(self, timeout_s: float) -> bytes:
        """The reply's bytes.

        Raises:
            DeviceUnreachable: none came in time, or the device is gone. The frame may or may not have run.
        """


class Sender(Protocol):
    def send(self, frame: bytes) -> PendingReply:
        """Start `frame` on its way.

        Raises:
            DeviceUnreachable: the way is closed. The frame may have run: the session is of no more use.
        """


class Transport(Sender, Protocol):
    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        """The handles of the windows that frame `seq` handed over: committed, sealed or joined.

        Raises:
            NotAllowed: there are none, or they were released.
            LimitReached: this process has no descriptors left. Nothing is held.
            DeviceUnreachable: the device is gone. Nothing is held.
        """

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        """The caller needs `handles` no longer; their mappings live on."""

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        """These are needed until `let_go`, mapped or not."""

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        """They are not any more."""

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the device demands back, unasked, since the last call. Never waits."""

    @property
    def page(self) -> PageMemory | None:
        """Where this session's progress page lies, if it has one: see `services.progress_page`."""

    @property
    def is_open(self) -> bool:
        """As `services.exchange.Line`."""

    @property
    def is_fenced(self) -> bool:
        """As `services.exchange.Line`."""

    def surrender(self) -> None:
        """As `services.exchange.Line`. Raises as it does."""

    def close(self) -> None:
        """End the session. The device takes back what it still had."""
