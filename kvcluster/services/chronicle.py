"""Who of a cluster's actors began, who died, and of what: a bounded log, as values and as bytes.

The last birth of each name tells which process stands behind it, also where that process does not answer any more;
the last deaths are told with their causes. A death is told by whoever notices it, so several may tell the same one:
the first of them counts, unless it did not know the cause. Who keeps the log is `actors.supervisor`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

MOST_DEATHS = 256
MOST_NAMES = 4096


@dataclass(frozen=True, slots=True)
class Who:
    """A process of ours: `kind` is "device", "host-kv" or "request". `epoch` is an owner's, and 0 for the others."""

    kind: str
    name: str
    node_id: str
    pid: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Birth:
    """`number` counts those of this kind, name and node, from 1; `at_s` is in seconds since 1970; `started` as
    `session_file.began_at` says, by which whoever reads it later knows the process from another one of its id.
    """

    who: Who
    at_s: float
    number: int = 1
    started: int = 0


@dataclass(frozen=True, slots=True)
class Death:
    """`cause` is one sentence; `told_by` says who noticed."""

    who: Who
    at_s: float
    cause: str
    told_by: str


@dataclass(frozen=True, slots=True)
class Told:
    """What is known at one moment: who was born last under each name, and the last deaths, the oldest first."""

    births: tuple[Birth, ...] = ()
    deaths: tuple[Death, ...] = ()

    def birth_of(self, kind: str, name: str, node_id: str) -> Birth | None:
        """The last one of that name."""
        found = (birth for birth in self.births if _place(birth.who) == (kind, name, node_id))
        return next(found, None)


class Chronicle:
    """The log. At most `MOST_DEATHS` deaths and `MOST_NAMES` names are kept, the newest."""

    def __init__(self, told: Told | None = None) -> None:
        earlier = told or Told()
        self._births = {_place(birth.who): birth for birth in earlier.births}
        self._deaths = {_life(death.who): death for death in earlier.deaths}

    def born(self, who: Who, *, at_s: float, started: int = 0) -> None:
        """A process began. Told twice it is one birth; the one before it of that name is dead, whoever tells why."""
        before = self._births.pop(_place(who), None)
        if before is not None and before.who == who:
            self._births[_place(who)] = before
            return
        if before is not None:
            self.died(Death(before.who, at_s, "", "its successor"))
        self._births[_place(who)] = Birth(who, at_s, before.number + 1 if before else 1, started)
        if len(self._births) > MOST_NAMES:
            del self._births[next(iter(self._births))]

    def left(self, who: Who) -> None:
        """A process ends, as it was meant to: that is no death."""
        if self.lives(who):
            del self._births[_place(who)]

    def lives(self, who: Who) -> bool:
        """Whether it is the last one of its name, and has not left."""
        birth = self._births.get(_place(who))
        return birth is not None and birth.who == who

    def has_left(self, who: Who) -> bool:
        """Whether it ended as it was meant to: nobody tells of its death, and its name is free or another's."""
        return not self.lives(who) and _life(who) not in self._deaths

    def died(self, death: Death) -> None:
        """A process is dead, somebody says. Told twice it is one death.

        Who does not know its process id says 0, and the epoch of an owner: what was told before completes it.
        """
        birth = self._births.get(_place(death.who))
        if not death.who.pid and birth is not None and birth.who.epoch == death.who.epoch:
            death = replace(death, who=birth.who)
        before = self._deaths.get(_life(death.who))
        if before is not None and before.cause:
            return
        if before is not None and not death.who.pid:
            death = replace(death, who=before.who)
        self._deaths[_life(death.who)] = death
        if len(self._deaths) > MOST_DEATHS:
            del self._deaths[next(iter(self._deaths))]

    def told(self) -> Told:
        return Told(tuple(self._births.values()), tuple(self._deaths.values()))


def encode_told(told: Told) -> bytes:
    return json.dumps(asdict(told)).encode()


def decode_told(data: bytes) -> Told:
    """What `encode_told` wrote; nothing where it is something else: a log is no reason to fail."""
    try:
        log = json.loads(data)
        births = tuple(Birth(**{**birth, "who": Who(**birth["who"])}) for birth in log["births"])
        deaths = tuple(Death(**{**death, "who": Who(**death["who"])}) for death in log["deaths"])
    except (ValueError, KeyError, TypeError):
        return Told()
    return Told(births, deaths)


def _place(who: Who) -> tuple[str, str, str]:
    return who.kind, who.name, who.node_id


def _life(who: Who) -> tuple[str, str, str, int]:
    """One life under a name: by its epoch, where it has one, for whoever tells of it may not know its process."""
    return *_place(who), who.epoch or who.pid
