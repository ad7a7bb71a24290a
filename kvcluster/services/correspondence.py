"""One session's frames and replies, in number and in order: what was sent, and what was heard of it.

Nothing is sent twice here: a frame whose reply is lost may have run, and whoever sent it is told so. `traffic` is
counted on, from one incarnation of the owner to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcluster.attach.protocol import REPLY_TIMEOUT_S
from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.transport import PendingReply, Sender
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode


@dataclass(slots=True)
class Traffic:
    """What this client sent and got. A control message is a frame or its reply; redemptions are apart."""

    control_messages: int = 0
    redemptions: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    seq: int
    reply: PendingReply


class Correspondence:
    """For one thread. `epoch` is the device's incarnation."""

    def __init__(self, session: str, epoch: int, traffic: Traffic) -> None:
        self.traffic = traffic
        self._session = session
        self._epoch = epoch
        self._next_seq = 1
        self._ack = 0
        self._received: set[int] = set()

    def send(self, ops: Sequence[wire.Operation], transport: Sender) -> Sent:
        """Start a frame on its way.

        Raises:
            DeviceUnreachable: the way is closed. The frame may have run: the session is of no more use.
        """
        seq = self._next_seq
        frame = encode(wire.Frame(session=self._session, seq=seq, ack=self._ack, epoch=self._epoch, ops=tuple(ops)))
        reach(Failpoint.CLIENT_ASK)
        self._next_seq += 1  # a seq is taken by what may have been sent, and by nothing else: no gap is left behind
        self.traffic.control_messages += 1
        return Sent(seq, transport.send(frame))

    def receive(self, sent: Sent) -> wire.Reply:
        """The reply to a frame; waits for it.

        Raises:
            DeviceUnreachable: none came. What the frame did is unknown.
        """
        answer = decode_reply(sent.reply.result(REPLY_TIMEOUT_S))
        self.traffic.control_messages += 1
        reach(Failpoint.CLIENT_REPLIED)
        self._received.add(sent.seq)
        while self._ack + 1 in self._received:
            self._ack += 1
            self._received.remove(self._ack)
        return answer
