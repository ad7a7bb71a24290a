"""The output file, opened: by one job at a time, with what earlier runs left in it.

The file itself is locked (flock), so the kernel ends the lock with the process and no lock file stays. What an
earlier run wrote is read once; a last line that a killed run left half written is cut off. Anything else in the
file is not ours: it is refused and untouched.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kvcluster.services.batch.input import BatchFileError
from kvcluster.services.batch.output import Done, ResultFile, unwritable, write_whole
from kvcluster.services.batch.results import LINE_START, decode_result


def open_results(path: Path, *, forget_failed: bool = False) -> ResultFile:
    """The output at `path`, made if it is missing, locked and read. `forget_failed` takes failed lines out of it.

    Raises:
        BatchFileError: it cannot be written, another job holds it, or it holds something else than results.
    """
    path = Path(os.path.realpath(path))  # where pathlib raises for links that lead in a circle, opening says so
    try:
        descriptor = _open_locked(path)
        try:
            earlier = _read_earlier(path, descriptor)
            if forget_failed and any(done.failed for done in earlier.values()):
                descriptor = _without_failed(path, descriptor)
                earlier = {number: done for number, done in earlier.items() if not done.failed}
            return ResultFile(path, descriptor, earlier)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise unwritable(path, error) from None


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


def _read_earlier(path: Path, descriptor: int) -> dict[int, Done]:
    earlier: dict[int, Done] = {}
    end = 0
    for number, raw in enumerate(_lines_of(descriptor), start=1):
        if not raw.endswith(b"\n") and (raw.startswith(LINE_START) or LINE_START.startswith(raw)):
            os.ftruncate(descriptor, end)  # a killed run's last line
            break
        result = decode_result(raw)
        if result is None or result.line_number in earlier:
            what = "no result of this command" if result is None else f"a second result of line {result.line_number}"
            raise BatchFileError(path=str(path), reason=f"line {number} is {what}: choose another output file")
        earlier[result.line_number] = Done(result.custom_id, result.failed, result.model, result.digest)
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
                write_whole(new, raw)
        os.fsync(new)
        os.replace(beside, path)
    except BaseException:
        os.close(new)
        beside.unlink(missing_ok=True)
        raise
    os.close(old)
    return new
