"""What every call of every driver does besides its work: one at a time, by its own process, while the gate is open.

    class HostDriver:
        def __init__(self) -> None:
            self._entrance = Entrance(as_ours)

        @strict
        def unmap(self, address: int, size_bytes: int) -> None: ...

A rule that is broken (`RuleBroken`), a system call that failed (OSError) and a driver's own failure (`CallFailed`)
become errors of ours by the driver's translator, which is told what was asked; everything else passes unchanged.
Open, it costs a lock and an attribute: the arguments are looked at after a failure only.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kvcluster.driver.books import RuleBroken
from kvcluster.driver.gate import CaptureGate, Door, GateClosed, busy, capture_gate
from kvcluster.errors import KvClusterError


class CallFailed(Exception):
    """The hardware was asked and said no; a driver's own subclass carries what it said."""


FAILURES = (RuleBroken, OSError, CallFailed)


@dataclass(frozen=True, slots=True)
class Asked:
    """The call that failed, by its name in the protocol; 0 where it has no address or size."""

    call: str
    address: int = 0
    size_bytes: int = 0


Translator = Callable[[Asked, Exception], KvClusterError]
"""Makes our error of one of `FAILURES`."""


class Entrance(Door):
    """A driver's door, and how its failures are told."""

    def __init__(self, as_ours: Translator, gate: CaptureGate = capture_gate) -> None:
        super().__init__(gate)
        self._as_ours = as_ours

    def told(self, asked: Asked, failure: Exception) -> KvClusterError:
        """The error to raise for `failure`; that of a closed gate is the same for every driver."""
        if isinstance(failure, GateClosed):
            return busy(asked.call, asked.address, asked.size_bytes)
        return self._as_ours(asked, failure)

    @contextmanager
    def passing(self, call: str) -> Iterator[None]:
        """The block is a call of this name, as `strict` makes one of a method; for what holds the lock in part only.

        Raises:
            DriverError: the block was refused or failed.
        """
        try:
            lock = self._entered()
            try:
                yield
            finally:
                lock.release()
        except FAILURES as failure:
            raise self.told(Asked(call), failure) from failure

    def _entered(self) -> threading.Lock:
        """The lock, taken with the door open."""
        while True:
            lock = self.lock
            lock.acquire()
            if self.is_open:
                return lock
            lock.release()
            self.wait()


class Strict(Protocol):
    """What has strict calls: a driver, or what a driver hands out (a fence)."""

    _entrance: Entrance


D = TypeVar("D", bound=Strict)
P = ParamSpec("P")
R = TypeVar("R")


def strict(call: Callable[Concatenate[D, P], R]) -> Callable[Concatenate[D, P], R]:
    """One call at a time, by its own process, while the gate is open; failures become errors of ours."""
    parameters = inspect.signature(call)

    @wraps(call)
    def strictly(driver: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        entrance = driver._entrance
        try:
            with entrance.lock:
                if entrance.is_open:
                    return call(driver, *args, **kwargs)
            entrance.wait()
        except FAILURES as failure:
            asked = _asked(call.__name__, parameters.bind(driver, *args, **kwargs).arguments)
            raise entrance.told(asked, failure) from failure
        return strictly(driver, *args, **kwargs)

    return strictly


def _asked(call: str, arguments: dict[str, Any]) -> Asked:
    address: int = arguments.get("address", 0)
    handles = [arguments["handle"]] if "handle" in arguments else arguments.get("handles", ())
    size_bytes: int = arguments.get("size_bytes", 0) + sum(handle.size_bytes for handle in handles)
    return Asked(call, address, size_bytes)
