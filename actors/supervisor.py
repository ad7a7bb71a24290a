"""The supervisor: an actor that keeps the log of births and deaths, and why each died, for `kvcluster status`.

Nobody depends on it. Whoever notices a death tells it and goes on; where it is dead, hung or never was, what is told
is lost, and nothing else. It supervises in that it knows: actors are started again by Ray and by their jobs. How the
processes of its own node end it hears from the kernel (`actors.vigil`).

Its log (`actors.records`) outlives it and its node: the next supervisor goes on with it, and watches whoever was born
on its node and lives.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from actors.owners import NAMESPACE
from actors.records import read_log, write_log
from actors.vigil import open_vigil
from kvcluster.services.chronicle import Chronicle, Death, Who
from kvcluster.services.session_file import began_at

NAME = "supervisor"


class Supervisor:
    """One a cluster; see `meet_supervisor`. What is told is written before the next is heard."""

    def __init__(self) -> None:
        self._node_id = ray.get_runtime_context().get_node_id()
        self._lock = threading.Lock()
        told = read_log()
        self._chronicle = Chronicle(told)
        self._vigil = open_vigil(self._ended)  # its thread: what follows cannot fail
        for birth in told.births:
            self._watch(birth.who, birth.started)

    def born(self, who: Who, started: int) -> None:
        with self._writing() as chronicle:
            chronicle.born(who, at_s=time.time(), started=started)
        self._watch(who, started)

    def died(self, who: Who, cause: str, told_by: str) -> None:
        with self._writing() as chronicle:
            chronicle.died(Death(who, time.time(), cause, told_by))

    def left(self, who: Who) -> None:
        with self._writing() as chronicle:
            chronicle.left(who)

    def pid(self) -> int:
        return os.getpid()

    def _watch(self, who: Who, started: int) -> None:
        """From now on, where it is of this node."""
        if who.node_id == self._node_id:
            self._vigil.begin(who, started)

    def _ended(self, who: Who, ending: str) -> None:
        """By the kernel's word; those that had left are none of its business."""
        with self._writing() as chronicle:
            if not chronicle.has_left(who):
                chronicle.died(Death(who, time.time(), ending, "the supervisor"))

    @contextmanager
    def _writing(self) -> Iterator[Chronicle]:
        """The log, for one thread at a time; written after the block."""
        with self._lock:
            yield self._chronicle
            write_log(self._chronicle.told())


@dataclass(frozen=True, slots=True)
class _Met:
    """A supervisor's actor, and the connection to Ray by which it was found."""

    actor: Any
    connection: str


_met: _Met | None = None
_self: Who | None = None


def meet_supervisor() -> None:
    """From now on what this process tells is heard: by the cluster's supervisor, which is made where there is none.

    A few milliseconds; its process starts meanwhile. Where Ray makes none, nobody hears.
    """
    global _met
    options = {
        "name": NAME,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,  # told twice is once
    }
    try:
        _met = _Met(ray.remote(Supervisor).options(**options).remote(), _connection())
    except (RayError, ValueError, RuntimeError):
        _met = None


def announce(kind: str, name: str, *, epoch: int = 0) -> None:
    """This process, an actor of ours, is there: it meets the supervisor and tells its birth."""
    global _self
    meet_supervisor()
    _self = Who(kind, name, ray.get_runtime_context().get_node_id(), os.getpid(), epoch)
    tell_birth(_self)


def tell_own_leave() -> None:
    """This process, which announced itself, ends as it is meant to. Never waits and never raises."""
    if _self is not None:
        tell_leave(_self)


def tell_own_death(cause: str, *, within_s: float = 0.0) -> None:
    """This process, which announced itself, is about to end; it waits so long for somebody to hear it. Never raises."""
    if _self is not None and (supervisor := _heard()) is not None:
        ray.wait([supervisor.died.remote(_self, cause, _teller())], timeout=within_s)


def tell_birth(who: Who) -> None:
    """This process began, or another one of its machine. Never waits and never raises."""
    if (supervisor := _heard()) is not None:
        supervisor.born.remote(who, began_at(who.pid) or 0)


def tell_leave(who: Who) -> None:
    """That process ends as it is meant to: no death. Never waits and never raises."""
    if (supervisor := _heard()) is not None:
        supervisor.left.remote(who)


def tell_death(who: Who, cause: str) -> None:
    """That process is dead, or of no use any more; `cause` is one sentence. Never waits and never raises."""
    if (supervisor := _heard()) is not None:
        supervisor.died.remote(who, cause, _teller())


def living_supervisor() -> Any | None:
    """The actor, if there is one now."""
    try:
        return ray.get_actor(NAME, namespace=NAMESPACE)
    except ValueError:
        return None


def _heard() -> Any | None:
    """Whoever hears this process: nobody after it has left the cluster where they met."""
    if _met is None or not ray.is_initialized() or _met.connection != _connection():
        return None
    return _met.actor


def _connection() -> str:
    """Another one after each `ray.init`."""
    worker_id: str = ray.get_runtime_context().get_worker_id()
    return worker_id


def _teller() -> str:
    return f"process {os.getpid()}"
