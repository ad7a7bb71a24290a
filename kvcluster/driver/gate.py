"""Who may call the hardware now: the doors of this process's drivers, and the gate that shuts them all for a capture.

While CUDA records a graph, a memory call of any thread can spoil the recording, so whoever records closes the gate:

    with capture_gate.closed(Meanwhile.WAIT):      # returns once no operation and no call is under way
        ...                                        # others' wait here, or (REFUSE) fail with EBUSY

Operations pass as a whole (`driver.passages`): while one is under way the doors stay open, so that its calls look at
nothing but their door. Calls that are part of none are looked at one by one.

Not a lock for data: it orders calls, and every driver has its own lock. Open, it costs one attribute: a call takes
its driver's lock and then looks whether its door is open. Whoever closes makes the mark first and takes each lock
after that, so that a call (or an operation: its thread's lock) either was waited for or sees the mark.
Source: the CUDA driver API, "Stream Management", cuThreadExchangeStreamCaptureMode.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

from kvcluster.driver.books import RuleBroken
from kvcluster.driver.passages import Passage, Traveller, Travellers
from kvcluster.errors import DriverError, NotAllowed


class GateClosed(RuleBroken):
    """A graph is being captured in this process."""


def busy(call: str, address: int = 0, size_bytes: int = 0) -> DriverError:
    """What is raised, from a `GateClosed`, for an operation or a call that the gate refused."""
    return DriverError(call=call, code=errno.EBUSY, name="EBUSY", address=address, size_bytes=size_bytes)


class Meanwhile(Enum):
    """What becomes of the other threads' calls while the gate is closed."""

    WAIT = "wait"
    REFUSE = "refuse"


class Capture(NamedTuple):
    """One closing: by which thread, and what others meet."""

    thread: int
    meanwhile: Meanwhile


class Door:
    """The way into one driver: `lock` is held for a call, and `is_open` is looked at under it."""

    def __init__(self, gate: CaptureGate) -> None:
        self.lock = threading.Lock()
        self.is_open = True
        self._is_shut = False
        self._is_inherited = False
        self._gate = gate
        gate.add(self)

    def shut(self) -> None:
        """The driver is closed, for good; returns when no call is under way."""
        self._is_shut = True
        self._gate.add(self)
        with self.lock:
            pass

    def wait(self) -> None:
        """Return when it is worth another look; called without the lock by whoever found the door not open.

        Raises:
            RuleBroken: it will not open for this caller: the driver is closed, or was opened before a fork.
            GateClosed: the caller's own capture has closed it, or another's lets nobody wait.
        """
        self.check_process()
        if self._is_shut:
            raise RuleBroken("the driver is closed")
        self._gate.wait()

    def check_process(self) -> None:
        """
        Raises:
            RuleBroken: this is a forked child of the process that opened the driver.
        """
        if self._is_inherited:
            raise RuleBroken("the process was forked after the driver was opened: open a new one in the child")

    def follow(self, *, gate_is_open: bool) -> None:
        """The gate has opened or closed."""
        self.is_open = gate_is_open and not self._is_shut and not self._is_inherited

    def inherit(self) -> None:
        """The process is a forked child; the lock may be held by a thread that it does not have."""
        self.lock = threading.Lock()
        self._is_inherited = True
        self.is_open = False


class CaptureGate:
    """Closed while any capture is under way. One for the process: `capture_gate`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._captures: list[Capture] = []  # those that have begun, and those that wait for operations to end
        self._begun = 0
        self._doors: WeakSet[Door] = WeakSet()
        self._everybody: WeakSet[Traveller] = WeakSet()
        self._travellers = Travellers(self._everybody, self._changed)
        self._waiting = 0

    @property
    def is_closing(self) -> bool:
        """Whether a capture is under way, or will be as soon as what is under way has ended."""
        return bool(self._captures)

    @property
    def waiting(self) -> int:
        """How many calls and operations wait for it to open."""
        return self._waiting

    def add(self, door: Door) -> None:
        """From now on the door opens and closes with the gate; told again, it looks again."""
        with self._changed:
            self._doors.add(door)
            door.follow(gate_is_open=not self._begun)

    @contextmanager
    def closed(self, meanwhile: Meanwhile) -> Iterator[None]:
        """No memory call of this process runs within the block, this thread's own refused, others' as `meanwhile`.

        Entering waits for the operations and calls that are under way; none begins meanwhile. Captures nest and
        overlap: the last to end opens the gate, and one that refuses refuses those that wait for another.

        Raises:
            NotAllowed: an operation of this very thread is under way. Nothing changed.
        """
        if self._travellers.mine.depth:
            raise NotAllowed(reason="a capture does not begin in the middle of a memory operation of its own thread")
        with self._announced(Capture(threading.get_ident(), meanwhile)), self._shut():
            yield

    def passage(self, call: str) -> Passage:
        """`with` it: all memory calls of this thread within the block, with no capture between any two of them.

        Taken before any lock and before anything changes; one within another of the same thread is part of it.

        Raises (on entering, with nothing changed):
            DriverError: EBUSY, of `call`: this thread is capturing, or another that lets nobody wait.
        """
        return Passage(self._travellers.mine, call, self._enter)

    def patient_passage(self, call: str) -> Passage:
        """The same for what comes unasked, or from another process, and can be told no refusal: it always waits.

        Raises (on entering, with nothing changed):
            DriverError: EBUSY, of `call`: this thread itself is capturing.
        """
        return Passage(self._travellers.mine, call, self._enter_patiently)

    def wait(self) -> None:
        """Return when no capture is under way.

        Raises:
            GateClosed: one is the caller's own, or refuses.
        """
        self._wait(self._refuse)

    def inherit(self) -> None:
        """The process is a forked child, which captures nothing and has one thread."""
        mine = self._travellers.mine
        self._changed = threading.Condition()
        self._captures = []
        self._begun = self._waiting = 0
        self._everybody = WeakSet({mine})
        self._travellers = Travellers(self._everybody, self._changed)
        self._travellers.mine = mine  # it may have forked in the middle of an operation
        for door in list(self._doors):
            door.inherit()

    # --- passing --------------------------------------------------------------------------------------------------

    def _enter(self, mine: Traveller, call: str) -> None:
        self._pass(mine, call, self._refuse)

    def _enter_patiently(self, mine: Traveller, call: str) -> None:
        self._pass(mine, call, self._refuse_own)

    def _pass(self, mine: Traveller, call: str, refuse: Callable[[], None]) -> None:
        mine.lock.acquire()
        while self._captures:
            mine.lock.release()
            try:
                self._wait(refuse)
            except GateClosed as refusal:
                raise busy(call) from refusal
            mine.lock.acquire()

    def _wait(self, refuse: Callable[[], None]) -> None:
        with self._changed:
            while self._captures:
                refuse()
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1

    def _refuse(self) -> None:
        self._refuse_own()
        if any(capture.meanwhile is Meanwhile.REFUSE for capture in self._captures):
            raise GateClosed("another thread is capturing a graph: no memory call until it has ended")

    def _refuse_own(self) -> None:
        thread = threading.get_ident()
        if any(capture.thread == thread for capture in self._captures):
            raise GateClosed("this thread is capturing a graph: no memory call until it has ended")

    # --- closing --------------------------------------------------------------------------------------------------

    @contextmanager
    def _announced(self, capture: Capture) -> Iterator[None]:
        """No operation begins within the block, and none is under way."""
        with self._changed:
            self._captures.append(capture)
            everybody = list(self._everybody)
            self._changed.notify_all()  # one that refuses refuses those that wait
        try:
            for traveller in everybody:
                with traveller.lock:  # whoever had it before the mark was made has ended its operation
                    pass
            yield
        finally:
            with self._changed:
                self._captures = [other for other in self._captures if other is not capture]
                self._changed.notify_all()

    @contextmanager
    def _shut(self) -> Iterator[None]:
        """No call begins within the block, and none is under way."""
        doors = self._follow(1)
        try:
            for door in doors:
                with door.lock:  # whoever had it before we marked the door has ended its call
                    pass
            yield
        finally:
            self._follow(-1)

    def _follow(self, more: int) -> list[Door]:
        with self._changed:
            self._begun += more
            doors = list(self._doors)
            for door in doors:
                door.follow(gate_is_open=not self._begun)
            return doors


capture_gate = CaptureGate()

P = ParamSpec("P")
R = TypeVar("R")


def operation(verb: Callable[P, R]) -> Callable[P, R]:
    """The whole of `verb` is one passage of its name; raises as `CaptureGate.passage`, before `verb` begins."""
    return _within(capture_gate.passage, verb)


def patient_operation(verb: Callable[P, R]) -> Callable[P, R]:
    """The same with `CaptureGate.patient_passage`."""
    return _within(capture_gate.patient_passage, verb)


def _within(passage: Callable[[str], Passage], verb: Callable[P, R]) -> Callable[P, R]:
    @wraps(verb)
    def passing(*args: P.args, **kwargs: P.kwargs) -> R:
        if capture_gate._travellers.mine.depth:  # part of one already
            return verb(*args, **kwargs)
        with passage(verb.__name__):
            return verb(*args, **kwargs)

    return passing


os.register_at_fork(after_in_child=capture_gate.inherit)
