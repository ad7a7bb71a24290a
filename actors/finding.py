"""Finding an owner of memory that answers, and the first session with it.

One that leaves, idle, in between is found again, as the next one that is made; one that hangs is ended first, because
nobody else may be waiting for it. Not the place for how a name becomes an actor (`actors.owners`), nor for a client's
search after its owner died under it (`actors.seeking`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError

from actors.incarnations import session_path
from actors.owners import MadeOtherwise, Sought, make_owner, reason_of
from actors.seeking import SeekOwner
from kvcluster.config import ConfigError
from kvcluster.errors import DeviceGone, DeviceUnreachable
from kvcluster.services.session_file import listening_at

F = TypeVar("F")
P = TypeVar("P")

START_TIMEOUT_S = 60.0
HUNG_S = 30.0  # one that listens and did not answer for so long is asked whether it is awake; a lease, by default
BEGINNINGS = 2  # that fail, the first perhaps by what somebody else made it of; then it says why
ATTEMPTS = 5  # of owners that die or leave as they are asked
PATIENCE_S = 20.0  # of a worker: whoever had the owner before may be on the way out
LEAVE_TIMEOUT_S = 10.0
PAUSE_S = 0.1  # more after each further death: a name is free a moment after its actor's
LEAVING_S = 30.0  # for so long owners that leave, idle, before they are greeted are taken for what they are
GREET_AGAIN_S = 0.005  # and twice as long before each further time
MOST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """An owner that answered: its actor, and its address."""

    actor: Any
    address: Any


def find_owner(sought: Sought, *, patience_s: float = 0.0, env: dict[str, str] | None = None) -> Found:
    """The owner's actor, made now where there is none. `env` is for fault tests.

    One that hangs is killed after `HUNG_S`, and found as Ray starts it again. One that is made otherwise leaves if it
    has no session, and is made anew; one that has some is waited for as long as `patience_s`.

    Raises:
        ConfigError: what `check` found. The owner stays as it is.
        DeviceUnreachable: it cannot begin, and why; or it does not answer. It stays as it is.
    """
    patience_until = time.monotonic() + patience_s
    while True:
        try:
            found = _any_owner(sought, env)
            sought.check(found.address)
            return found
        except MadeOtherwise as other:
            if not has_left(found.actor):
                if time.monotonic() >= patience_until:
                    raise ConfigError(str(other)) from None
                time.sleep(MOST_PAUSE_S)


def has_left(actor: Any) -> bool:
    """Whether this owner is gone now, by its own will: it had no session."""
    try:
        if not ray.get(actor.leave.remote(), timeout=LEAVE_TIMEOUT_S):
            return False
    except RayActorError:  # it leaves, or was asked by another one
        return True
    except RayError:
        return False
    ray.kill(actor)
    return True


def _any_owner(sought: Sought, env: dict[str, str] | None) -> Found:
    """The owner's actor, however it is made. Raises DeviceUnreachable as `find_owner`."""
    reason, failures, deaths, deadline = "", 0, 0, time.monotonic() + START_TIMEOUT_S
    while failures < BEGINNINGS and deaths < ATTEMPTS and time.monotonic() < deadline:
        actor = make_owner(sought, env=env)
        try:
            address = _address(sought, actor)
        except GetTimeoutError:
            raise DeviceUnreachable(device=sought.name, reason=f"no answer within {START_TIMEOUT_S:.0f} s") from None
        except ActorUnavailableError as error:  # Ray is starting it again
            reason = reason_of(error)
            time.sleep(PAUSE_S)
        except RayActorError as error:  # it was leaving when we found it
            reason, failures, deaths = reason_of(error), failures + error.actor_init_failed, deaths + 1
            time.sleep(deaths * PAUSE_S)
        except RayError as error:
            raise DeviceUnreachable(device=sought.name, reason=reason_of(error)) from None
        else:
            return Found(actor, address)
    raise DeviceUnreachable(device=sought.name, reason=reason)


def session_with(find: Callable[[], F], open_one: Callable[[F], P]) -> P:
    """What `open_one` opens with the owner that `find` finds; again where that was gone before it was greeted.

    Again for `LEAVING_S` at most, in which an owner of a short `idle_exit_s` may leave many times.

    Raises:
        Whatever the two raise, and at once; DeviceGone from `open_one` only after that time.
    """
    deadline, pause_s = time.monotonic() + LEAVING_S, GREET_AGAIN_S
    while time.monotonic() < deadline:
        found = find()
        try:
            return open_one(found)
        except DeviceGone:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
    return open_one(find())


def _address(sought: Sought, actor: Any) -> Any:
    """What it answers. Raises RayError where it does not; a RayActorError where it was ended because it hung."""
    asked = actor.address.remote()
    if not ray.wait([asked], timeout=HUNG_S)[0]:
        _end_if_hung(sought)
    return ray.get(asked, timeout=START_TIMEOUT_S - HUNG_S)


def _end_if_hung(sought: Sought) -> None:
    """Only on its own node: its file is nowhere else."""
    path = session_path(sought.kind, sought.name, sought.node_id)
    if (there := listening_at(path)) is not None:
        SeekOwner(sought, path, HUNG_S).end_if_hung(there.epoch)
