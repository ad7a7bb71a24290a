"""A port whose device was lost: it goes on with the next incarnation, or begins again once its session is over.

After a restart everything that is mapped here stays, and the device is told of it before it is asked for anything
(`services.renewal`). A session that the device has ended has no memory: all of it is unmapped and closed, and the
device is told so, this incarnation or the next. How a device is sought is in `services.contact`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from kvcluster.errors import DeviceUnreachable, SessionEnded
from kvcluster.services.client_half import ClientHalf
from kvcluster.services.contact import Link
from kvcluster.services.exchange import Exchange
from kvcluster.services.open_memories import OpenMemories
from kvcluster.services.renewal import register_all
from kvcluster.services.transport import Transport
from kvcluster.wire import messages as wire
from kvcluster.wire.restart import MOST_GIVEN_UP

if TYPE_CHECKING:
    from kvcluster.services.progress_page import ProgressPage


class Recovery:
    """Of one port: `opened` is what it has open, and `half` unmaps. Registers `most_registered` requests in a frame."""

    def __init__(
        self,
        exchange: Exchange[Transport, Transport],
        half: ClientHalf,
        opened: OpenMemories,
        *,
        most_registered: int,
    ) -> None:
        self._exchange = exchange
        self._half = half
        self._opened = opened
        self._most_registered = most_registered
        self._given_up: list[str] = []  # sessions of which nothing is mapped, and nobody has heard so

    def go_on(self, link: Link[Transport], progress: ProgressPage | None) -> bool:
        """Everything that is open goes on with the device that was found; whether it has heard all of it.

        What is not settled was not executed. What a successor is to know is noted where this device reads it.

        Raises:
            SessionEnded: it was found under another name than was sought, so that it has ended the session: every
                memory is closed.
            DeviceUnreachable: it has other granules, and its session is ended again. What is mapped stays mapped.
            Whatever it refuses to hear: what is mapped stays mapped; under another name every memory is closed already,
                and this is raised in place of SessionEnded. The port's session is the one that was found.
        """
        exchange, before, sought = self._exchange, self._exchange.welcome, self._exchange.session
        if link.welcome.granule_bytes != before.granule_bytes:
            link.way.close()
            raise exchange.loss(f"it came back with granules of {link.welcome.granule_bytes} bytes")
        self._opened.lose(exchange.loss("it was restarted before it answered"))
        exchange.go_on(link, link.way)
        if progress is not None and link.way.page is not None:
            progress.move_to(link.way.page)
        is_over = link.session != sought
        if is_over:
            self._give_up(sought)
        is_heard = self._register(before.epoch)
        if is_over:
            raise SessionEnded(session=sought)
        return is_heard

    def begin_again(self) -> NoReturn:
        """The session is over: unmap everything, say so, and look for the device under another name.

        Raises:
            SessionEnded, DeviceUnreachable: as `Exchange.begin_again`. Every memory is closed.
        """
        ended = self._exchange.session
        self._give_up(ended)
        if not self._half.quarantined_bytes:
            with suppress(DeviceUnreachable):  # whoever is found next hears it again: this one may die of hearing it
                self._exchange.line.surrender()
        self._exchange.begin_again()

    def _register(self, before_epoch: int) -> bool:
        """Tell the device what there is here of earlier incarnations; whether it has heard all of it."""
        kept_bytes = self._half.quarantined_bytes
        given_up = () if kept_bytes else tuple(self._given_up[-MOST_GIVEN_UP:])
        try:
            register_all(
                self._exchange,
                self._opened.all(),
                before_epoch=before_epoch,
                complete=wire.Complete(kept_bytes=kept_bytes, given_up=given_up),
                most_requests=self._most_registered,
            )
        except DeviceUnreachable:
            if not self._exchange.is_lost:
                raise
            return False  # it died again
        self._given_up.clear()
        return True

    def _give_up(self, session: str) -> None:
        """Every memory is unmapped and closed: nothing is left of the session, whether its device hears so or not."""
        self._given_up.append(session)
        self._opened.give_up(self._half.end)
