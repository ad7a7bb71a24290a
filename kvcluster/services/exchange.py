"""One port's frames and replies with its owner of memory, from session to session and incarnation to incarnation.

While the owner is lost (`services.contact`) nothing is sent, and what was sent and not answered counts as not executed:
the process that may have executed it is dead, or has ended the session, and nothing that it gave was taken. Where
nobody knows how to find an owner again, a loss is an error, and what was asked may have run.

What a port does with a new incarnation, or a new session, is its own: a device's goes on with what is mapped
(`services.recovery`), and one of host pages begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Generic, NoReturn, Protocol, TypeVar

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DeviceUnreachable, InvariantBroken, KvClusterError, SessionEnded, StaleEpoch
from kvcluster.ids import new_session
from kvcluster.services.contact import Contact, Link, Seek, Way
from kvcluster.services.correspondence import Correspondence, Sent, Traffic
from kvcluster.services.transport import Sender, Transport
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import error_of
from kvcluster.wire.socket import Reclaim, Welcome

SentTo = tuple[Correspondence, Sent | None]
"""In whose order a frame stands, and what was sent; None: it could not be."""

_ENDS = frozenset({StaleEpoch.__name__, SessionEnded.__name__})


class Line(Sender, Protocol):
    """How frames get to an owner, and how one sees that it is there."""

    @property
    def is_open(self) -> bool:
        """Whether the owner is there, as far as one can see without asking."""

    @property
    def is_fenced(self) -> bool:
        """Whether the owner said that the session is over; it is heard by `pushes`."""

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the owner demands back, since the last call. Never waits."""

    def surrender(self) -> None:
        """Say that nothing of the session is mapped here any more, and end it.

        Raises:
            DeviceUnreachable: that was not heard. What the session had waits for the process's end.
        """

    def close(self) -> None:
        """End the session. The owner takes back what it still had."""


L = TypeVar("L", bound=Line)
W = TypeVar("W", bound=Way)


class Touch(Enum):
    """How it stands with an owner, unless it was found just now: that is a `Link`."""

    REACHED = "reached"
    GONE = "gone"  # its socket is closed
    SOUGHT = "sought"
    ENDED = "ended"  # it has ended the session, and nothing that this process has is its own any more


class Exchange(Generic[L, W]):
    """For one thread. `line` is how the owner is reached now, `session` and `welcome` what it was met with.

    `traffic` counts on, whatever incarnation it is.
    """

    def __init__(self, session: str, welcome: Welcome, line: L, seek: Seek[W] | None) -> None:
        self.session = session
        self.welcome = welcome
        self.line = line
        self.traffic = Traffic()
        self._letters = Correspondence(session, welcome.epoch, self.traffic)
        self._contact = Contact(seek)
        self._is_over = False
        self._reclaims: list[Reclaim] = []

    @property
    def can_be_found(self) -> bool:
        """Whether an owner that dies is sought, so that its loss is an outcome and no error."""
        return self._contact.can_seek

    @property
    def is_lost(self) -> bool:
        """Whether nothing is answered before a port's `in_touch` says so: the owner is sought, or ended the session."""
        return self._contact.is_seeking or self._is_over

    def look(self) -> Touch | Link[W]:
        """How it stands; an owner that was found is the caller's to `go_on` with. Never waits.

        Raises:
            KvClusterError: the owner is lost for good. What is mapped stays mapped.
        """
        if self._contact.is_seeking:
            return self._contact.found() or Touch.SOUGHT
        self._reclaims += self.line.pushes()
        if self.line.is_fenced or self._is_over:
            return Touch.ENDED
        return Touch.REACHED if self.line.is_open else Touch.GONE

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the owner demands back since the last call. Never waits."""
        heard, self._reclaims = self._reclaims, []
        return (*heard, *self.line.pushes())

    # --- frames ---------------------------------------------------------------------------------------------------

    def send(self, ops: Sequence[wire.Operation]) -> SentTo:
        """A frame on its way; none, while the owner is lost.

        Raises:
            DeviceUnreachable: the way is closed, and nobody finds another.
        """
        if self.is_lost:
            return self._letters, None
        try:
            return self._letters, self._letters.send(ops, self.line)
        except DeviceUnreachable as loss:
            self.lose(loss)
            return self._letters, None

    def is_answered(self, sent: SentTo) -> bool:
        """Whether `receive` would not wait."""
        letters, one = sent
        return letters is not self._letters or one is None or one.reply.ready()

    def receive(self, sent: SentTo) -> wire.Reply:
        """The reply to a frame.

        Raises:
            DeviceUnreachable: none came. Where the owner `can_be_found`, what the frame asked counts as not executed;
                else what it did is unknown.
        """
        letters, one = sent
        if letters is not self._letters or one is None:
            raise self.loss("it was lost before it answered")
        try:
            reply = letters.receive(one)
        except DeviceUnreachable as loss:
            self.lose(loss)
            raise
        if reply.fault and reply.fault.error in _ENDS and self.can_be_found:
            error = error_of(reply.fault)
            raise self._not_served(error) from error
        return reply

    def hear(self, sent: SentTo) -> wire.Reply | DeviceUnreachable:
        """The reply to a frame, or the loss of an owner that `can_be_found`: what was asked is not executed then.

        Raises:
            DeviceUnreachable: no reply came, and nobody here finds the owner again. What it did is unknown.
        """
        try:
            return self.receive(sent)
        except DeviceUnreachable as loss:
            if not self.can_be_found:
                raise
            return loss

    def redeem(self: Exchange[Transport, W], sent: SentTo) -> Sequence[PhysicalHandle]:
        """The handles that an answered frame handed over, as `Transport.redeem` has them; it is counted.

        Raises:
            DeviceUnreachable: the owner died, or has ended the session. Nothing is held. Where it `can_be_found`,
                nothing is sent before it is, and what it gave is gone.
            Whatever it refuses with, or this process: as `Transport.redeem`. What it gave is to be given back.
        """
        _, one = sent
        assert one is not None  # or nothing was answered
        try:
            handles = self.line.redeem(one.seq)
        except KvClusterError as failure:
            if (loss := self._not_served(failure)) is failure:
                raise
            raise loss from failure
        self.traffic.redemptions += 1
        return handles

    def give_back(self, ops: Sequence[wire.Operation]) -> None:
        """Tell the owner what it gave and could not be used here.

        It hears nothing where it is lost: what died took along what it gave, and what ended the session has it back.

        Raises:
            DeviceUnreachable: as `hear`.
            InvariantBroken: it does not take it.
        """
        if not ops or self.is_lost:
            return
        reply = self.hear(self.send(ops))
        if isinstance(reply, DeviceUnreachable):
            return
        for result in reply.results:
            if result.fault:
                raise InvariantBroken(sentence=f"the owner does not take back what it gave: {result.fault}")

    def _not_served(self, failure: KvClusterError) -> KvClusterError:
        """The owner answered with `failure`; what is to be told of it, once it is clear whether somebody is lost."""
        if not self.can_be_found:
            return failure
        match failure:
            case StaleEpoch():
                self.lose(self.loss(str(failure)))
            case SessionEnded():
                self._is_over = True
            case DeviceUnreachable() if not self.line.is_open:
                self.lose(failure)
            case _:
                return failure
        return self.loss(str(failure))

    # --- losing and finding ---------------------------------------------------------------------------------------

    def loss(self, reason: str) -> DeviceUnreachable:
        """The error of an owner that is lost."""
        return DeviceUnreachable(device=self.welcome.device, reason=reason)

    def lose(self, loss: DeviceUnreachable) -> None:
        """The owner is gone: look for its next incarnation. Raises as `Contact.lose`."""
        self._contact.lose(self.session, self.welcome.epoch, loss)

    def begin_again(self) -> NoReturn:
        """The session is over: look for the owner, whichever incarnation it is, under another name.

        Raises:
            SessionEnded: of the session that is over, always; but for
            DeviceUnreachable: nobody here knows how to find the owner.
        Either way the line is closed, and `session` is the next one's name already.
        """
        ended = self.session
        self.line.close()
        self.session, self._is_over = new_session(), False
        self._contact.lose(self.session, 0, self.loss("it ended the session"))
        raise SessionEnded(session=ended)

    def go_on(self, link: Link[W], line: L) -> None:
        """The owner was found, as `link` says, and `line` leads there: frames go there, beginning with the first."""
        self.line.close()
        self.session, self.welcome, self.line = link.session, link.welcome, line
        self._letters = Correspondence(self.session, self.welcome.epoch, self.traffic)

    def close(self) -> None:
        """Seek no more, and end the session, as well as one that was begun meanwhile."""
        link = self._contact.close()
        self.line.close()
        if link is not None:
            link.way.close()
