"""A folder that takes long to make: made once, whole or not at all, whoever asks at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build` unless it is there; the folder.

    `build` gets a path that does not exist yet, in a new folder beside the final one, and makes a folder there; that
    is renamed when it is whole. Another process or thread that asks meanwhile waits and finds it done. What `build`
    raises goes to the caller, and nothing is left; what a killed process left is removed by the next one.

    A lock file stands beside the folder meanwhile (locking the parent folder itself fails on NFS).

    Raises:
        OSError: the place cannot be written.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _build(folder, build)
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    for part in folder.parent.glob(f"{folder.name}.part-*"):  # nobody builds it: we hold the lock
        shutil.rmtree(part)
    with TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.part-") as work:
        whole = Path(work) / folder.name
        build(whole)
        whole.rename(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone with `path`; the file is gone afterwards. The kernel ends the lock when this process dies."""
    lock = _lock(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while we hold it: who waits for it sees that it is gone, and takes a new one
        os.close(lock)


def _lock(path: Path) -> int:
    while True:
        lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _stands_at(path, lock):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _stands_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
