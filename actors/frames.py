"""Frames to an owner of memory through Ray, and what is done where no reply comes.

A call whose reply is lost may have run. While the socket says that the owner lives the same bytes are sent again: it
answers them as it did, or executes them now, and never twice.

An owner that hangs (a stopped process) ends no connection and answers nothing. So whoever has waited for a reply as
long as an owner waits for a silent client, its lease, asks on the socket whether it is awake (`actors.seeking`); one
that is not, or is at one frame for all that time, is killed and started again, and its clients go on after a lease and
five seconds, not after minutes. One that is awake, with many frames before ours, is waited for until the time for a
reply is over; then it is killed too, whatever keeps it: a client that left it alive would have to end itself.
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
    """Frames to `actor`, an owner of memory that hands over nothing, or has done so.

    Where it is known how another incarnation is found, by `owner`'s rules, one that hangs is ended.
    """

    def __init__(self, actor: Any, attach: AttachClient, owner: SeekOwner | None = None) -> None:
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

    def __init__(self, actor: Any, frame: bytes, attach: AttachClient, owner: SeekOwner | None) -> None:
        self.reference = actor.frame.remote(frame)
        self._sent_at = time.monotonic()
        self._actor = actor
        self._frame = frame
        self._attach = attach
        self._owner = owner

    def ready(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self, timeout_s: float) -> bytes:
        began, silent_s = time.monotonic(), 0.0
        patience_s = min(timeout_s, self._owner.hang_s) if self._owner else timeout_s
        wait_s = max(patience_s - (began - self._sent_at), 0.0) if self._owner else timeout_s
        while True:
            try:
                data: bytes = ray.get(self.reference, timeout=wait_s)
                reach(Failpoint.CLIENT_REPLY)
                return data
            except GetTimeoutError:
                silent_s += wait_s  # not by the clock: this process may itself have been stopped
                wait_s = patience_s
                self._check_awake(silent_s, timeout_s)
            except RayTaskError:  # what the device raised: BadFrame, or a bug
                raise
            except (RayError, ReplyLost) as error:
                if not self._attach.alive or time.monotonic() > began + timeout_s:
                    raise self._unreachable(reason_of(error)) from None
                time.sleep(AGAIN_S)
                self.reference = self._actor.frame.remote(self._frame)

    def _check_awake(self, silent_s: float, timeout_s: float) -> None:
        """Raises DeviceUnreachable where it is waited for no more: it was ended, if anybody knows how to."""
        epoch = self._attach.welcome.epoch
        if silent_s >= timeout_s:
            if self._owner:
                self._owner.end(epoch, f"it did not reply within {timeout_s:.0f} s")
            raise self._unreachable(f"no reply within {timeout_s:.0f} s") from None
        if self._owner and self._owner.end_if_hung(epoch):
            raise self._unreachable(f"no reply within {self._owner.hang_s:.0f} s, and it is not awake") from None

    def _unreachable(self, reason: str) -> DeviceUnreachable:
        return DeviceUnreachable(device=self._attach.welcome.device, reason=reason)
