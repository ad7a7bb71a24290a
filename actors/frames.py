"""Frames to an owner of memory through Ray, and what is done where no reply comes.

A call whose reply is lost may have run. While the socket says that the owner lives the same bytes are sent again: it
answers them as it did, or executes them now, and never twice.

An owner that hangs (a stopped process) ends no connection and answers nothing. So whoever has waited for a reply as
long as an owner waits for a silent client, the owner's lease, asks on the socket whether it is awake
(`actors.seeking`); one that says nothing there for five seconds, because it is stopped or at one frame all that time,
is killed and started again, and its clients go on. One that answers, with many frames before ours, is waited for until
the time for a reply is over; then it is killed too, awake as it is: a client that left it alive would have to end
itself.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.owners import reason_of
from actors.seeking import SeekOwner
from kvcluster.attach.client import AttachClient
from kvcluster.errors import DeviceUnreachable
from kvcluster.failpoints import Failpoint, ReplyLost, reach
from kvcluster.wire.socket import Reclaim

AGAIN_S = 0.005  # before a frame is sent again whose reply was lost


class ActorSender:
    """Frames to `actor`, an owner of memory that hands over nothing, or has done so. `owner` ends one that hangs."""

    def __init__(self, actor: Any, attach: AttachClient, owner: SeekOwner) -> None:
        self._actor = actor
        self._attach = attach
        self._owner = owner

    def send(self, frame: bytes) -> _RayReply:
        return _RayReply(self._actor, frame, self._attach, self._owner)

    def pushes(self) -> tuple[Reclaim, ...]:
        return tuple(push for push in self._attach.pushes() if isinstance(push, Reclaim))

    @property
    def is_open(self) -> bool:
        return self._attach.alive

    @property
    def is_fenced(self) -> bool:
        return self._attach.is_fenced

    def surrender(self) -> None:
        self._attach.surrender()

    def close(self) -> None:
        self._attach.close()


class _RayReply:
    """The reply to a frame, and the frame, for as long as there is none."""

    def __init__(self, actor: Any, frame: bytes, attach: AttachClient, owner: SeekOwner) -> None:
        self.reference = actor.frame.remote(frame)
        self._sent_at = time.monotonic()
        self._actor = actor
        self._frame = frame
        self._attach = attach
        self._owner = owner

    def ready(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self, timeout_s: float) -> bytes:
        began, left_s = time.monotonic(), timeout_s
        wait_s = min(max(self._patience_s - (began - self._sent_at), 0.0), left_s)
        while True:
            try:
                data: bytes = ray.get(self.reference, timeout=wait_s)
                reach(Failpoint.CLIENT_REPLY)
                return data
            except GetTimeoutError:
                left_s -= wait_s  # not by the clock: this process may itself have been stopped
                self._check_awake(left_s, timeout_s)
                wait_s = min(self._patience_s, left_s)
            except RayTaskError:  # what the device raised: BadFrame, or a bug
                raise
            except (RayError, ReplyLost) as error:
                if not self._attach.alive or time.monotonic() > began + timeout_s:
                    raise self._unreachable(reason_of(error)) from None
                time.sleep(AGAIN_S)
                self.reference = self._actor.frame.remote(self._frame)

    @property
    def _patience_s(self) -> float:
        """The owner's lease, and no setting of this client: it is to end no owner that others are content with."""
        return self._attach.welcome.lease_s

    def _check_awake(self, left_s: float, timeout_s: float) -> None:
        """Raises DeviceUnreachable where it is waited for no more: it was ended."""
        epoch = self._attach.welcome.epoch
        if left_s <= 0:
            self._owner.end(epoch, f"it did not reply within {timeout_s:.0f} s")
            raise self._unreachable(f"no reply within {timeout_s:.0f} s") from None
        if self._owner.end_if_hung(epoch):
            raise self._unreachable(f"no reply within {self._patience_s:.0f} s, and it is not awake") from None

    def _unreachable(self, reason: str) -> DeviceUnreachable:
        return DeviceUnreachable(device=self._attach.welcome.device, reason=reason)
