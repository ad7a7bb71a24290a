"""One incarnation of an owner of memory after another: its lock, its epoch, and where clients find the present one.

Ray starts an owner again when its process dies (`max_restarts=-1`), on its node and with what it was made of. The new
process waits for the lock of its name, and so for the end of the old one, whatever became of that. Its clients are of
its node too: they read in its file where it listens, and ask Ray for no more than its handle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from actors.owners import OwnerKind, living_owner, reason_of
from actors.supervisor import tell_death
from kvcluster.attach.client import AttachClient
from kvcluster.errors import DeviceUnreachable
from kvcluster.failpoints import Failpoint, reach
from kvcluster.run_folder import run_folder
from kvcluster.services.chronicle import Who
from kvcluster.services.contact import Link, Way
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.hellos import Hellos, Lost
from kvcluster.services.left_files import sweep
from kvcluster.services.session_file import SessionFile, open_session_file

W = TypeVar("W", bound=Way)

LOCK_WAIT_S = 30.0
POLL_S = 0.005
MAKE_AGAIN_S = 3.0  # an owner that Ray does not start again was ended on purpose, and is made anew
GIVE_UP_S = 120.0
HELLO_TIMEOUT_S = 10.0


def session_path(kind: OwnerKind, name: str, node_id: str) -> Path:
    """The file of the owner's incarnations. Raises as `run_folder`."""
    return run_folder() / f"{kind}-{node_id}-{name}.sessions"


def begin_incarnation(kind: OwnerKind, node_id: str, settings: DeviceSettings) -> tuple[SessionFile, DeviceSettings]:
    """The lock, and the settings with the epoch of this incarnation.

    Raises:
        DeviceUnreachable: an earlier process of this name lives on. Nothing changed.
        OSError: the file cannot be made. Nothing changed.
    """
    path = session_path(kind, settings.name, node_id)
    sweep(path.parent, but=path)
    file = open_session_file(path, wait_s=LOCK_WAIT_S)
    reach(Failpoint.OWNER_LOCKED)
    return file, replace(settings, epoch=file.epoch, incarnation=file.incarnation)


@dataclass(frozen=True, slots=True)
class SeekOwner:
    """Finds an owner's next incarnation: a `services.contact.Seek`, but for what is opened with it.

    `path` is that of its file; its address says it, because its environment may be another than its clients'. `make`
    makes the owner's actor where there is none; it waits for nothing. One whose process is there and answers
    nobody for `hang_s` is ended, so that Ray starts it again.
    """

    kind: OwnerKind
    name: str
    node_id: str
    path: Path
    make: Callable[[], object]
    hang_s: float

    def next_one(
        self, epoch: int, session: str, opened: Callable[[Any, AttachClient], W], stopping: threading.Event
    ) -> Link[W]:
        """What `opened` makes of the actor and the connection of an incarnation that is not that of `epoch`.

        It is welcomed as `session`, or under another name where that was used up by a hello whose answer was lost.

        Raises:
            DeviceUnreachable: none comes in `GIVE_UP_S`, or `stopping` is set, or Ray does not answer; or the one of
                `epoch` lives and has ended the session (`services.hellos`). Nothing stays open.
            KvClusterError, OSError: it refuses, or this process cannot use it. Nothing stays open.
        """
        hellos = Hellos(self.path, Lost(self.name, epoch, session), find=self._actor, opened=opened)
        try:
            return self._met(hellos, epoch, stopping)
        except RayError as error:
            raise DeviceUnreachable(device=self.name, reason=reason_of(error)) from None

    def _met(self, hellos: Hellos[Any, W], epoch: int, stopping: threading.Event) -> Link[W]:
        began, told, made, looked = time.monotonic(), False, 0, 0
        while not stopping.wait(POLL_S) and (waited_s := time.monotonic() - began) < GIVE_UP_S:
            if (link := hellos.say()) is not None:
                return link
            if not told:  # by now it is clear that it does not answer
                told = True
                tell_death(Who(self.kind, self.name, self.node_id, 0, epoch), "")
            if waited_s > MAKE_AGAIN_S * (made + 1):
                made += 1
                self.make()
            if waited_s > self.hang_s * (looked + 1):
                looked += 1
                self._end_if_hung()
        raise DeviceUnreachable(device=self.name, reason=f"no other process of it came within {GIVE_UP_S:.0f} s")

    def _actor(self) -> Any | None:
        return living_owner(self.kind, self.name, self.node_id)

    def _end_if_hung(self) -> None:
        actor = self._actor()
        if actor is not None and not ray.wait([actor.address.remote()], timeout=self.hang_s)[0]:
            ray.kill(actor, no_restart=False)  # a stopped process too
