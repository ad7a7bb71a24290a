"""A client's search for the next incarnation of its owner of memory, where Ray alone would not bring it about.

Ray starts an owner again when its process dies, for good. Its clients are of its node: they read in its file where it
listens, and ask Ray for no more than its handle. What Ray does not see to is done here, by whichever client comes to it
first: a process that hangs is killed, an owner that was ended on purpose or could not begin is made again, and one that
cannot begin, or dies again and again as soon as it was found, is given up with the reason.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError

from actors.owners import OwnerKind, living_owner, reason_of
from actors.supervisor import tell_death
from kvcluster.attach.client import AttachClient
from kvcluster.attach.knocking import silent_process
from kvcluster.errors import DeviceUnreachable
from kvcluster.services.chronicle import Who
from kvcluster.services.contact import Link, Way
from kvcluster.services.hellos import Hellos, Lost
from kvcluster.services.session_file import Listening, listening_at

W = TypeVar("W", bound=Way)

POLL_S = 0.005
GIVE_UP_S = 120.0
HELLO_TIMEOUT_S = 10.0
KNOCK_S = 5.0  # in which one that lives answers
STUCK_S = 60.0  # one that says for so long neither where it listens nor anything else is ended by Ray
MAKE_AGAIN_S = 3.0  # an owner that Ray does not start again was ended on purpose or could not begin, and is made anew
MOST_BEGINNINGS = 4  # that fail, and then it is clear why
FLAP_S = 5.0  # one that dies so soon after it was found
MOST_FLAPS = 20  # in a row, and then it will not stay


@dataclass(slots=True)
class Flaps:
    """How often in a row an owner died as soon as it was found."""

    found_at: float = float("-inf")
    count: int = 0

    def lost(self, now_s: float) -> None:
        self.count = self.count + 1 if now_s - self.found_at < FLAP_S else 0


@dataclass(frozen=True, slots=True)
class SeekOwner:
    """Finds an owner's next incarnation: a `services.contact.Seek`, but for what is opened with it.

    `path` is that of its file; its address says it, because its environment may be another than its clients'. `make`
    makes the owner's actor where there is none, and waits for nothing. `hang_s` is how long it may be silent to one who
    asks: its clients' lease, for it is to be no worse than they.
    """

    kind: OwnerKind
    name: str
    node_id: str
    path: Path
    make: Callable[[], Any]
    hang_s: float
    flaps: Flaps = field(default_factory=Flaps)

    def next_one(
        self, epoch: int, session: str, opened: Callable[[Any, AttachClient], W], stopping: threading.Event
    ) -> Link[W]:
        """What `opened` makes of the actor and the connection of an incarnation that is not that of `epoch`.

        It is welcomed as `session`, or under another name where that was used up by a hello whose answer was lost.

        Raises:
            DeviceUnreachable: none comes in `GIVE_UP_S`, or `stopping` is set, or Ray does not answer; or the one of
                `epoch` lives and has ended the session (`services.hellos`); or it cannot begin, or will not stay, and
                the error says why. Nothing stays open.
            KvClusterError, OSError: it refuses, or this process cannot use it. Nothing stays open.
        """
        if epoch:  # else it was not lost
            self._check_stays()
        hellos = Hellos(self.path, Lost(self.name, epoch, session), find=self._actor, opened=opened)
        try:
            link = self._met(hellos, epoch, stopping)
        except RayError as error:
            raise self._unreachable(reason_of(error)) from None
        self.flaps.found_at = time.monotonic()
        return link

    def end_if_hung(self, epoch: int) -> bool:
        """Kill the process of that incarnation if it says nothing on its socket; whether it was, or is another's turn.

        It may take `KNOCK_S`. Ray starts the owner again, as after any death.
        """
        there = listening_at(self.path)
        if there is None or there.epoch != epoch:
            return True
        timeout_s = min(self.hang_s, KNOCK_S)
        return self._kill(there, after_s=timeout_s, cause=f"it did not answer for more than {self.hang_s:.0f} s")

    def end(self, epoch: int, cause: str) -> None:
        """Kill the process of that incarnation, where it still is the one that is there."""
        there = listening_at(self.path)
        if there is not None and there.epoch == epoch:
            self._kill(there, after_s=0.0, cause=cause)

    def _kill(self, there: Listening, *, after_s: float, cause: str) -> bool:
        pidfd = silent_process(there.address, timeout_s=after_s)
        if pidfd is None:
            return False
        self._tell(there.epoch, cause)
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
        return True

    def _met(self, hellos: Hellos[Any, W], epoch: int, stopping: threading.Event) -> Link[W]:
        began, silence, making = time.monotonic(), _Silence(), _Making(self.make)
        while not stopping.wait(POLL_S) and (waited_s := time.monotonic() - began) < GIVE_UP_S:
            if (link := hellos.say()) is not None:
                self._tell(epoch, "")  # whoever saw how may say more
                return link
            making.go_on(waited_s)
            if making.failures == MOST_BEGINNINGS:
                raise self._unreachable(f"it cannot begin: {making.reason}")
            self._break(silence)
        reason = f"no other process of it came within {GIVE_UP_S:.0f} s"
        raise self._unreachable(f"{reason} ({making.reason})" if making.reason else reason)

    def _break(self, silence: _Silence) -> None:
        """End whoever has been silent for too long: by its socket, or where it has none, by Ray's handle."""
        there = listening_at(self.path)
        silent_s = silence.of(there)
        if there is not None and silent_s > self.hang_s and self.end_if_hung(there.epoch):
            silence.begin_anew()
        elif silent_s > STUCK_S and (actor := self._actor()) is not None:
            silence.begin_anew()
            ray.kill(actor, no_restart=False)

    def _check_stays(self) -> None:
        self.flaps.lost(time.monotonic())
        if self.flaps.count >= MOST_FLAPS:
            raise self._unreachable(f"it died {MOST_FLAPS} times within {FLAP_S:.0f} s of being found")

    def _tell(self, epoch: int, cause: str) -> None:
        if epoch:
            tell_death(Who(self.kind, self.name, self.node_id, 0, epoch), cause)

    def _actor(self) -> Any | None:
        return living_owner(self.kind, self.name, self.node_id)

    def _unreachable(self, reason: str) -> DeviceUnreachable:
        return DeviceUnreachable(device=self.name, reason=reason)


class _Silence:
    """Since when an incarnation, or nobody, is what the file tells of."""

    def __init__(self) -> None:
        self._seen: Listening | None = None
        self._since = time.monotonic()

    def of(self, there: Listening | None) -> float:
        """How long it has lasted, in seconds."""
        if there != self._seen:
            self._seen = there
            self.begin_anew()
        return time.monotonic() - self._since

    def begin_anew(self) -> None:
        """Something was done about it."""
        self._since = time.monotonic()


class _Making:
    """Makes an owner's actor, where there is none, again and again, and hears why it could not begin."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._next_s = MAKE_AGAIN_S
        self._asked: Any = None
        self.failures = 0
        self.reason = ""

    def go_on(self, waited_s: float) -> None:
        """Never waits. Raises RayError where Ray makes none."""
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            self._hear(self._asked)
            self._asked = None
        if self._asked is None and waited_s > self._next_s:
            self._next_s = waited_s + MAKE_AGAIN_S
            self._asked = self._make().address.remote()

    def _hear(self, answer: Any) -> None:
        try:
            ray.get(answer, timeout=0)
        except RayActorError as error:
            if "creation task" in str(error):
                self.failures += 1
                self.reason = reason_of(error)
        except RayError:  # it is there, and something else is wrong: its clients will hear of it
            return
