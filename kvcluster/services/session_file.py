"""The lock of one owner of memory, and the table of the processes that may have memory of it mapped.

One file a device, or host pages. The lock (flock) is the kernel's to end, with the process that holds it, so that no
two incarnations of an owner work at one time, however an earlier one was given up. The table outlives its writer: it
is a shared mapping of the file, and SIGKILL leaves an old state of it or a new one (`services.session_table`). An
incarnation that takes the lock reads who is left of its predecessors' clients, and begins an epoch of its own. Where
it listens stands there too, so that a client finds it without asking anybody.

What a row says of bytes is the most that the process may have mapped; exact figures come when it registers. Not the
place for what becomes of the survivors: `services.foreign`. Where the files lie: `kvcluster.run_folder`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvcluster.attach.protocol import Survivor
from kvcluster.errors import DeviceUnreachable, LimitReached
from kvcluster.services.session_table import HEAD_BYTES, MOST_ROWS, SIZE_BYTES, Row, SessionTable
from kvcluster.units import format_bytes

_POLL_S = 0.005


class SessionLog(Protocol):
    """Where an owner notes who has memory of it."""

    @property
    def survivors(self) -> tuple[Survivor, ...]:
        """Who was left when this incarnation began. Their pidfds are whoever's asks first."""

    def enter(self, session: str, pid: int) -> None:
        """A session of that process begins. Raises LimitReached where there is no room; nothing changed."""

    def note(self, session: str, size_bytes: int) -> None:
        """Its process may have so much mapped from now on."""

    def strike(self, session: str) -> None:
        """Its process has nothing of it mapped any more."""


class NoSessionLog:
    """Of an owner that ends with its clients, because they are in its own process."""

    survivors: tuple[Survivor, ...] = ()

    def enter(self, session: str, pid: int) -> None: ...

    def note(self, session: str, size_bytes: int) -> None: ...

    def strike(self, session: str) -> None: ...


def open_session_file(path: Path, *, wait_s: float) -> SessionFile:
    """Take the lock, waiting for an earlier incarnation to be dead, and begin a new one.

    Raises:
        DeviceUnreachable: somebody holds the lock after `wait_s`. Nothing changed.
        OSError: the file cannot be made, or there is no room for it. Nothing stays open.
    """
    with ExitStack() as undo:
        descriptor = _locked(path, wait_s)
        undo.callback(os.close, descriptor)
        _allocate(path, descriptor)
        memory = mmap.mmap(descriptor, SIZE_BYTES)
        undo.pop_all()
    return SessionFile(path, descriptor, memory)


class SessionFile:
    """The incarnation that holds the lock. `epoch` is above every earlier one's, `incarnation` counts them from 1."""

    def __init__(self, path: Path, descriptor: int, memory: mmap.mmap) -> None:
        self.path = path
        self._descriptor = descriptor
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._table = SessionTable(self._words)
        self._rows: dict[str, int] = {}
        self._table.begin(epoch_from=time.time_ns() // 1_000)
        self.epoch, self.incarnation = self._table.epoch, self._table.incarnation
        self.survivors: tuple[Survivor, ...] = tuple(self._left())
        taken = set(self._rows.values())
        self._vacant = [row for row in reversed(range(MOST_ROWS)) if row not in taken]

    def forget_survivors(self) -> None:
        """What clients of earlier incarnations have mapped is no memory of this one. Before anybody serves them."""
        for survivor in self.survivors:
            os.close(survivor.pidfd)
            self.strike(survivor.session)
        self.survivors = ()

    def enter(self, session: str, pid: int) -> None:
        """As `SessionLog`. One that survived goes on with its row."""
        if session in self._rows:
            return
        if not self._vacant:
            remedy = "end some of its clients"
            raise LimitReached(limit="sessions of an owner of memory", need=1, free=0, remedy=remedy)
        number = self._vacant[-1]
        self._table.fill(number, Row(session, pid, started_at(pid) or 0, 0))
        self._rows[session] = self._vacant.pop()

    def note(self, session: str, size_bytes: int) -> None:
        """As `SessionLog`. One store; a session that is not here is nobody's."""
        number = self._rows.get(session)
        if number is not None:
            self._table.note(number, size_bytes)

    def strike(self, session: str) -> None:
        """As `SessionLog`."""
        number = self._rows.pop(session, None)
        if number is not None:
            self._table.vacate(number)
            self._vacant.append(number)

    def listens_at(self, address: str) -> None:
        """From now on clients find it there. Raises LimitReached where that is too long; nothing changed."""
        self._table.listens_at(os.fsencode(address))

    def close(self) -> None:
        """Give the lock up; the file goes, unless a process that lives is left in it. Nothing is noted from now on.

        It goes while the lock is held: whoever waits for the lock sees that his file is no longer the one at the path.
        """
        if not any(started_at(row.pid) == row.started for _, row in self._table.rows()):
            with suppress(FileNotFoundError):
                self.path.unlink()
        self._rows.clear()
        self._vacant.clear()
        self._words.release()
        self._memory.close()
        os.close(self._descriptor)

    def _left(self) -> list[Survivor]:
        found = []
        for number, row in self._table.rows():
            pidfd = _open_process(row.pid, row.started)
            if pidfd is None:
                self._table.vacate(number)
                continue
            self._rows[row.session] = number
            found.append(Survivor(row.session, row.pid, pidfd, row.size_bytes))
        return found


@dataclass(frozen=True, slots=True)
class Listening:
    """An incarnation, and where it listens; nothing as long as it does not."""

    epoch: int
    address: str


def listening_at(path: Path) -> Listening | None:
    """Which incarnation listens where, by the file at `path`; None where none does, as far as the file says."""
    begun = begun_at(path)
    return begun if begun is not None and begun.address else None


def begun_at(path: Path) -> Listening | None:
    """The incarnation that began last, by the file at `path`: without an address, as long as it listens nowhere."""
    try:
        with path.open("rb") as file:
            header = file.read(HEAD_BYTES)
    except OSError:
        return None
    if len(header) < HEAD_BYTES:
        return None
    table = SessionTable(memoryview(header).cast("Q"))
    # an address in the abstract namespace begins with a zero
    return Listening(table.epoch, os.fsdecode(table.address)) if table.is_one else None


def clients_in(path: Path) -> tuple[int, ...]:
    """The processes in the file at `path` that live; none where it cannot be read, or is no file of ours."""
    try:
        data = path.read_bytes()
    except OSError:
        return ()
    if len(data) != SIZE_BYTES:
        return ()
    table = SessionTable(memoryview(data).cast("Q"))
    rows = [row for _, row in table.rows()] if table.is_one else []
    return tuple(row.pid for row in rows if started_at(row.pid) == row.started)


def started_at(pid: int) -> int | None:
    """When the process began, in ticks since the machine did; None where there is none, or only its remains."""
    fields = _standing(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def began_at(pid: int) -> int | None:
    """The same, also of one that is dead and was not waited for yet."""
    fields = _standing(pid)
    return int(fields[19]) if fields else None


def _standing(pid: int) -> list[str]:
    """What the kernel says of it from its state on (proc(5), `/proc/pid/stat`); nothing where there is no process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


def _open_process(pid: int, started: int) -> int | None:
    """A pidfd of the process that began then, if it lives: an id that is used again is somebody else's."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if pid == os.getpid() or started_at(pid) != started:
        os.close(pidfd)
        return None
    return pidfd


def _locked(path: Path, wait_s: float) -> int:
    """A descriptor of the file at `path`, locked: of the one that is there, and not of one that was removed since."""
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            raise DeviceUnreachable(device=path.stem, reason=f"an earlier process of it still holds {path}")
        time.sleep(_POLL_S)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _allocate(path: Path, descriptor: int) -> None:
    """All of the file, now: what is found to be full at the first touch would be a SIGBUS. Raises OSError."""
    try:
        os.posix_fallocate(descriptor, 0, SIZE_BYTES)
        os.ftruncate(descriptor, SIZE_BYTES)
    except OSError as error:
        reason = f"no room for the {format_bytes(SIZE_BYTES)} of an owner's sessions ({error.strerror})"
        raise OSError(
            error.errno, f"{reason}: free some in that folder, or set another run folder", str(path)
        ) from None
