"""The lock of one owner of memory, and the table of the processes that may have memory of it mapped.

One file a device, or host pages. The lock (flock) is the kernel's to end, with the process that holds it, so that no
two incarnations of an owner work at one time, however an earlier one was given up. The table outlives its writer: it
is a shared mapping of the file, each row written in an order in which SIGKILL leaves the old one or the new one. An
incarnation that takes the lock reads who is left of its predecessors' clients, and begins an epoch of its own. Where
it listens stands there too, so that a client finds it without asking anybody.

What a row says of bytes is the most that the process may have mapped; exact figures come when it registers. Not the
place for what becomes of the survivors: `services.foreign`. Where the files lie: `kvcluster.run_folder`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvcluster.attach.protocol import Survivor
from kvcluster.errors import DeviceUnreachable, LimitReached

MOST_ROWS = 4096
_MAGIC = b"kvclust2"
_HEADER = struct.Struct("<8sQQ112s")  # magic, epoch, incarnation, where it listens (nothing, before it does)
_ROW = struct.Struct("<64sQQQ")  # session, process id (0: vacant), when it started, bytes
_BYTES_AT, _PID_AT = 80, 64
_ADDRESS_AT = 24
_SIZE_BYTES = _HEADER.size + MOST_ROWS * _ROW.size
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
        OSError: the file cannot be made. Nothing stays open.
    """
    with ExitStack() as undo:
        descriptor = _locked(path, wait_s)
        undo.callback(os.close, descriptor)
        os.ftruncate(descriptor, _SIZE_BYTES)
        table = mmap.mmap(descriptor, _SIZE_BYTES)
        undo.pop_all()
    return SessionFile(path, descriptor, table)


class SessionFile:
    """The incarnation that holds the lock. `epoch` is above every earlier one's, `incarnation` counts them from 1."""

    def __init__(self, path: Path, descriptor: int, table: mmap.mmap) -> None:
        self.path = path
        self._descriptor = descriptor
        self._table = table
        self._rows: dict[str, int] = {}
        self.epoch, self.incarnation = self._begin()
        self.survivors = tuple(self._left())
        taken = set(self._rows.values())
        self._vacant = [row for row in reversed(range(MOST_ROWS)) if row not in taken]

    def enter(self, session: str, pid: int) -> None:
        """As `SessionLog`. One that survived goes on with its row."""
        if session in self._rows:
            return
        if not self._vacant:
            remedy = "end some of its clients"
            raise LimitReached(limit="sessions of an owner of memory", need=1, free=0, remedy=remedy)
        row = self._rows[session] = self._vacant.pop()
        at = self._at(row)
        _ROW.pack_into(self._table, at, _key(session), 0, started_at(pid) or 0, 0)
        struct.pack_into("<Q", self._table, at + _PID_AT, pid)  # last: a row with a process is a whole one

    def note(self, session: str, size_bytes: int) -> None:
        """As `SessionLog`. One store; a session that is not here is nobody's."""
        row = self._rows.get(session)
        if row is not None:
            struct.pack_into("<Q", self._table, self._at(row) + _BYTES_AT, size_bytes)

    def strike(self, session: str) -> None:
        """As `SessionLog`."""
        row = self._rows.pop(session, None)
        if row is not None:
            struct.pack_into("<Q", self._table, self._at(row) + _PID_AT, 0)
            self._vacant.append(row)

    def listens_at(self, address: str) -> None:
        """From now on clients find it there."""
        struct.pack_into("112s", self._table, _ADDRESS_AT, os.fsencode(address))

    def close(self) -> None:
        """Give the lock up; the file goes, unless somebody is left in it. Nothing is noted from now on."""
        if not self._rows:
            with suppress(FileNotFoundError):
                self.path.unlink()
        self._rows.clear()
        self._vacant.clear()
        self._table.close()
        os.close(self._descriptor)

    def _begin(self) -> tuple[int, int]:
        magic, epoch, incarnation, _ = _HEADER.unpack_from(self._table)
        if magic != _MAGIC:  # new, or no file of ours
            self._table[:] = bytes(_SIZE_BYTES)
            epoch = incarnation = 0
        epoch, incarnation = max(time.time_ns() // 1_000, epoch + 1), incarnation + 1
        _HEADER.pack_into(self._table, 0, _MAGIC, epoch, incarnation, b"")
        return epoch, incarnation

    def _left(self) -> list[Survivor]:
        found = []
        for row in range(MOST_ROWS):
            key, pid, started, size_bytes = _ROW.unpack_from(self._table, self._at(row))
            if not pid:
                continue
            pidfd = _open_process(pid, started)
            if pidfd is None:
                struct.pack_into("<Q", self._table, self._at(row) + _PID_AT, 0)
                continue
            session = key.rstrip(b"\0").decode(errors="replace")
            self._rows[session] = row
            found.append(Survivor(session, pid, pidfd, size_bytes))
        return found

    @staticmethod
    def _at(row: int) -> int:
        return _HEADER.size + row * _ROW.size


@dataclass(frozen=True, slots=True)
class Listening:
    """An incarnation, and where it listens."""

    epoch: int
    address: str


def listening_at(path: Path) -> Listening | None:
    """Which incarnation listens where, by the file at `path`; None where none does, as far as the file says."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError:
        return None
    if len(header) < _HEADER.size:
        return None
    magic, epoch, _, address = _HEADER.unpack(header)
    listening = address.rstrip(b"\0")  # a name in the abstract namespace begins with one
    return Listening(epoch, os.fsdecode(listening)) if magic == _MAGIC and listening else None


def clients_in(path: Path) -> tuple[int, ...]:
    """The processes in the file at `path` that live; none where it cannot be read, or is no file of ours."""
    try:
        data = path.read_bytes()
    except OSError:
        return ()
    if len(data) != _SIZE_BYTES or not data.startswith(_MAGIC):
        return ()
    rows = _ROW.iter_unpack(data[_HEADER.size :])
    return tuple(pid for _, pid, started, _ in rows if pid and started_at(pid) == started)


def started_at(pid: int) -> int | None:
    """When the process began, in ticks since the machine did; None where there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


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


def _key(session: str) -> bytes:
    key = session.encode()
    if len(key) > 64 or b"\0" in key:
        remedy = "give a session a shorter name"
        raise LimitReached(limit="bytes of a session's name", need=len(key), free=64, remedy=remedy)
    return key
