"""The output file while it is open: results appended as they finish, one write a line.

Durability: each line is written whole by one call, forced to the disk once a second and at the end. A disk that is
full costs the line that did not fit: its first half is cut off again. How the file is opened, locked and read is in
`kvcluster.services.batch.opening`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.batch.input import BatchFileError

SYNC_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Done:
    """An input line that has its result, of that model unless it failed; the text itself stays on the disk.

    `digest` is the line's as it was then (`input.Line`); empty where the result does not say.
    """

    custom_id: str | None
    failed: bool
    model: str | None
    digest: str = ""


class ResultFile:
    """Open and locked. `earlier` holds what previous runs left in it, by input line number."""

    def __init__(
        self, path: Path, descriptor: int, earlier: dict[int, Done], *, clock: Callable[[], float] = time.monotonic
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
            write_whole(self._descriptor, line)
        except OSError as error:
            with suppress(OSError):  # if even that fails, the next run cuts the half line off
                os.ftruncate(self._descriptor, self._size_bytes)
            raise unwritable(self.path, error) from None
        self._size_bytes += len(line)
        reach(Failpoint.JOB_WRITTEN)

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
            raise unwritable(self.path, error) from None
        reach(Failpoint.JOB_SYNCED)
        self._synced_at = self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and self._size_bytes == 0:
            with suppress(OSError):  # a run that failed before its first result leaves no empty file
                self.path.unlink()
        self.close()


_REMEDIES = {
    errno.ENOENT: "make its folder first (mkdir -p)",
    errno.ENOTDIR: "choose another file",
    errno.ELOOP: "choose another file",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EACCES: "choose a place where you may write",
    errno.EPERM: "choose a place where you may write",
    errno.EROFS: "choose a place where you may write",
}
_NO_ROOM = "make room and run the same command again; finished results are kept"


def unwritable(path: Path, error: OSError) -> BatchFileError:
    """`error` as a sentence with the remedy."""
    remedy = _REMEDIES.get(error.errno or 0, _NO_ROOM)
    return BatchFileError(path=str(path), reason=f"the output cannot be written ({error.strerror}): {remedy}")


def write_whole(descriptor: int, content: bytes) -> None:
    """All of `content`, in as many calls as the system needs: one, unless the disk is filling.

    Raises:
        OSError: the rest could not be written.
    """
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
