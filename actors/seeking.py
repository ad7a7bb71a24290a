"""A client's search for the next incarnation of its owner of memory, where Ray alone would not bring it about.

Ray starts an owner again when its process dies, for good. Its clients are of its node: they read in its file where it
listens, and ask Ray for no more than its handle. What Ray does not see to is done here, by whichever client comes to it
first: a process that hangs is killed, an owner that was ended on purpose or could not begin is made again, and one that
cannot begin, or dies again and again as soon as it was found, is given up with the reason. So is one of which nothing
is heard: a process that hangs before it is in the file is nobody's to kill here.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError

from actors.owners import Sought, living_owner, make_owner, reason_of
from actors.supervisor import tell_death
from kvcluster.attach.client import AttachClient
from kvcluster.attach.knocking import process_at, silent_process
from kvcluster.errors import DeviceUnreachable
from kvcluster.services.chronicle import Who
from kvcluster.services.contact import Link, Way
from kvcluster.services.hellos import Hellos, Lost
from kvcluster.services.session_file import Listening, begun_at, listening_at

W = TypeVar("W", bound=Way)

POLL_S = 0.005
GIVE_UP_S = 120.0
HELLO_TIMEOUT_S = 10.0
KNOCK_S = 5.0  # in which one that lives answers, whoever knocks
CONNECT_S = 1.0  # for a place in the queue of one that is ended
STUCK_S = 60.0  # one that has begun, and after so long listens nowhere, is ended by Ray
MAKE_AGAIN_S = 3.0  # an owner that Ray does not start again was ended on purpose or could not begin, and is made anew
MOST_BEGINNINGS = 4  # that fail, and then it is clear why
SHORT_LIFE_S = 5.0  # from being found to dying
MOST_SHORT_LIVES = 20  # in a row, and then it will not stay


class SeekOwner:
    """Finds an owner's next incarnation: a `services.contact.Seek`, but for what is opened with it.

    `sought` is made where there is none. `path` is that of its file; its address says it, because its environment may
    be another than its clients'. `lease_s` is the owner's: as long as it waits for a silent client, it is waited for.
    One thread seeks at a time; any may end it.
    """

    def __init__(self, sought: Sought, path: Path, lease_s: float) -> None:
        self._sought = sought
        self._path = path
        self._lease_s = lease_s
        self._found_at = float("-inf")
        self._short_lives = 0  # in a row

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

        def watched(actor: Any, attach: AttachClient) -> W:
            self.watch(attach)
            return opened(actor, attach)

        hellos = Hellos(self._path, Lost(self._sought.name, epoch, session), find=self._actor, opened=watched)
        try:
            link = self._met(hellos, epoch, stopping)
        except RayError as error:
            raise self._unreachable(reason_of(error)) from None
        self._found_at, self._lease_s = time.monotonic(), link.welcome.lease_s
        return link

    def watch(self, attach: AttachClient) -> None:
        """From now on whoever waits at this connection for longer than a lease ends the owner where it hangs."""
        epoch = attach.welcome.epoch
        attach.when_silent(lambda: self.end_if_hung(epoch))

    def end_if_hung(self, epoch: int) -> bool:
        """Kill the process of that incarnation if it says nothing on its socket; whether it was, or is another's turn.

        It may take `KNOCK_S`. Ray starts the owner again, as after any death. One whose queue is full is not killed.
        """
        there = listening_at(self._path)
        if there is None or there.epoch != epoch:
            return True
        pidfd = silent_process(there.address, timeout_s=KNOCK_S)
        if pidfd is None:
            return False
        self._kill(pidfd, epoch, f"it did not answer for more than {self._lease_s:.0f} s")
        return True

    def end(self, epoch: int, cause: str) -> None:
        """Kill the process of that incarnation, awake or not, where it still is the one that is there.

        One whose queue is full lives on.
        """
        there = listening_at(self._path)
        if there is not None and there.epoch == epoch:
            pidfd = process_at(there.address, timeout_s=CONNECT_S)
            if pidfd is not None:
                self._kill(pidfd, epoch, cause)

    def _kill(self, pidfd: int, epoch: int, cause: str) -> None:
        self._tell(epoch, cause)
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)

    def _met(self, hellos: Hellos[Any, W], epoch: int, stopping: threading.Event) -> Link[W]:
        began, silence, maker = time.monotonic(), _Silence(), _Maker(self._sought)
        while not stopping.wait(POLL_S) and (waited_s := time.monotonic() - began) < GIVE_UP_S:
            if (link := hellos.say()) is not None:
                self._tell(epoch, "")  # whoever saw how may say more
                return link
            maker.go_on(waited_s)
            if maker.failures == MOST_BEGINNINGS:
                raise self._unreachable(f"it cannot begin: {maker.reason}")
            self._break(silence)
        reason = f"no other process of it came within {GIVE_UP_S:.0f} s"
        raise self._unreachable(f"{reason} ({maker.reason})" if maker.reason else reason)

    def _break(self, silence: _Silence) -> None:
        """End the incarnation that has been silent for too long: by its socket, or where it has none, by Ray's handle.

        Only what has begun is ended, once in a while: its successor, which may need as long, is in the file as another.
        """
        begun = begun_at(self._path)
        silent_s = silence.of(begun)
        if begun is None or silent_s <= (self._lease_s if begun.address else STUCK_S):
            return
        silence.begin_anew()
        if begun.address:
            self.end_if_hung(begun.epoch)
        elif (actor := self._actor()) is not None:
            ray.kill(actor, no_restart=False)

    def _check_stays(self) -> None:
        is_short = time.monotonic() - self._found_at < SHORT_LIFE_S
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives >= MOST_SHORT_LIVES:
            raise self._unreachable(f"it died {MOST_SHORT_LIVES} times within {SHORT_LIFE_S:.0f} s of being found")

    def _tell(self, epoch: int, cause: str) -> None:
        if epoch:
            tell_death(Who(self._sought.kind, self._sought.name, self._sought.node_id, 0, epoch), cause)

    def _actor(self) -> Any | None:
        return living_owner(self._sought.kind, self._sought.name, self._sought.node_id)

    def _unreachable(self, reason: str) -> DeviceUnreachable:
        return DeviceUnreachable(device=self._sought.name, reason=reason)


class _Silence:
    """Since when one incarnation, or none, is what the file tells of."""

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


class _Maker:
    """Makes an owner's actor, where there is none, again and again, and hears why it could not begin."""

    def __init__(self, sought: Sought) -> None:
        self._sought = sought
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
            self._asked = make_owner(self._sought).address.remote()

    def _hear(self, answer: Any) -> None:
        try:
            ray.get(answer, timeout=0)
        except RayActorError as error:
            if "creation task" in str(error):
                self.failures += 1
                self.reason = reason_of(error)
        except RayError:  # it is there, and something else is wrong: its clients will hear of it
            return
