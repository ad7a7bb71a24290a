"""The output file: results appended as they finish, one write a line, by one job at a time.

The file itself is locked (flock), so the kernel ends the lock with the process and no lock file stays. What an
earlier run wrote is read once when the file is opened; a last line that a killed run left half written is cut off.
Anything else in the file is not ours, and the file is refused and untouched.

Durability: each line is written whole by one call, forced to the disk once a second and at the end. A disk that is
full costs the line that did not fit: its first half is cut off again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kvcluster.services.batch.input import BatchFileError
from kvcluster.services.batch.results import LINE_START, Result, decode_result

SYNC_EVERY_S = 1.0


class ResultFile:
    """Open and locked. `earlier` holds what previous runs left in it, by input line number."""

    def __init__(
        self, path: Path, descriptor: int, earlier: dict[int, Result], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.earlier = earlier
        self._descriptor = descriptor
        self._clock = clock
        self._synced_at = clock()
        self._size_bytes = os.fstat(descriptor).st_size

    def append(self, line: bytes) -> None:
        """Write one whole line.

        Raises:
            BatchFileError: the disk is full or fails. Every earlier line is kept, and nothing of this one.
        """
        try:
            _write_whole(self._descriptor, line)
        except OSError as error:
            with suppress(OSError):  # if even that fails, the next run cuts the half line off
                os.ftruncate(self._descriptor, self._size_bytes)
            raise _unwritable(self.path, error) from None
        self._size_bytes += len(line)

    def sync_if_due(self) -> None:
        """Force what was written to the disk, at most once a second.

        Raises:
            BatchFileError: the disk is full or fails.
        """
        if self._clock() - self._synced_at >= SYNC_EVERY_S:
            self._sync()

    def close(self) -> None:
        """Force everything to the disk and give the lock back.

        Raises:
            BatchFileError: the disk fails. The file is closed all the same.
        """
        try:
            self._sync()
        finally:
            os.close(self._descriptor)

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self._synced_at = self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and self._size_bytes == 0:
            with suppress(OSError):  # a run that failed before its first result leaves no empty file
                self.path.unlink()
        self.close()


def open_results(path: Path, *, forget_failed: bool = False) -> ResultFile:
    """The output at `path`, made if it is missing, locked and read. `forget_failed` takes failed lines out of it.

    Raises:
        BatchFileError: it cannot be written, another job holds it, or it holds something else than results.
    """
    path = path.resolve()
    try:
        descriptor = _open_locked(path)
        try:
            earlier = _read_earlier(path, descriptor)
            if forget_failed and any(result.failed for result in earlier.values()):
                descriptor = _without_failed(path, descriptor)
                earlier = {number: result for number, result in earlier.items() if not result.failed}
            return ResultFile(path, descriptor, earlier)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _unwritable(path, error) from None


def _open_locked(path: Path) -> int:
    """A descriptor of the file that stands at `path`, locked; one that was replaced before we had the lock is left."""
    if path.exists() and not path.is_file():
        raise BatchFileError(path=str(path), reason="the output must be a plain file, because it is read again")
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            reason = "another job is writing this output: wait for its end or choose another file"
            raise BatchFileError(path=str(path), reason=reason) from None
        if _stands_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _stands_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read_earlier(path: Path, descriptor: int) -> dict[int, Result]:
    earlier: dict[int, Result] = {}
    end = 0
    for number, raw in enumerate(_lines_of(descriptor), start=1):
        if not raw.endswith(b"\n") and (raw.startswith(LINE_START) or LINE_START.startswith(raw)):
            os.ftruncate(descriptor, end)  # a killed run's last line
            break
        result = decode_result(raw)
        if result is None or result.line_number in earlier:
            what = "no result of this command" if result is None else f"a second result of line {result.line_number}"
            raise BatchFileError(path=str(path), reason=f"line {number} is {what}: choose another output file")
        earlier[result.line_number] = result
        end += len(raw)
    return earlier


def _lines_of(descriptor: int) -> Iterator[bytes]:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        yield from file


def _without_failed(path: Path, old: int) -> int:
    """Replace the file at one stroke by a copy without failed lines. Returns the copy's descriptor, locked.

    The copy has a fixed name beside the file, so that what a killed run left there is used again.
    """
    beside = path.with_name(path.name + ".rewriting")
    new = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, stat.S_IMODE(os.fstat(old).st_mode))
    try:
        fcntl.flock(new, fcntl.LOCK_EX)
        for raw in _lines_of(old):
            if (result := decode_result(raw)) and not result.failed:
                _write_whole(new, raw)
        os.fsync(new)
        os.replace(beside, path)
    except BaseException:
        os.close(new)
        beside.unlink(missing_ok=True)
        raise
    os.close(old)
    return new


_REMEDIES = {
    errno.ENOENT: "make its folder first (mkdir -p)",
    errno.EACCES: "choose a place where you may write",
    errno.EPERM: "choose a place where you may write",
    errno.EROFS: "choose a place where you may write",
}
_NO_ROOM = "make room and run the same command again; finished results are kept"


def _unwritable(path: Path, error: OSError) -> BatchFileError:
    remedy = _REMEDIES.get(error.errno or 0, _NO_ROOM)
    return BatchFileError(path=str(path), reason=f"the output cannot be written ({error.strerror}): {remedy}")


def _write_whole(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
