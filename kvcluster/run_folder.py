"""The folder of this user where owners of memory keep what the next one of their name must find: locks and tables.

It is `kvcluster` in XDG_RUNTIME_DIR, or `/dev/shm/kvcluster-<uid>` where that is not set or not ours: in memory, so
that a restart of the machine, which ends every process, takes it along. The folder is for this user alone (0700).
Another user may have made a folder of that name before us, or a link that leads elsewhere; both are refused, because
what stands in these files decides whose memory is reused.

Processes of one Ray node have one environment, and so one folder. What is in it is not decided here.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")


def run_folder() -> Path:
    """The folder, made now where there is none.

    Raises:
        PermissionError: what stands there is a link, no folder, another user's, or open to others. It stays as it is.
        OSError: it cannot be made. Nothing changed.
    """
    folder = _place()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise PermissionError(f"{folder} is to be a folder of this user alone (mode 0700, no link): remove it")
    return folder


def run_folders() -> tuple[Path, ...]:
    """Those that are there, of whatever environment the owners had; for whoever looks for what was left behind."""
    return tuple(folder for folder in dict.fromkeys((_place(), _fallback())) if _is_private(folder))


def _place() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and _is_private(Path(runtime)):  # with sudo it may be another user's
        return Path(runtime, "kvcluster")
    return _fallback()


def _fallback() -> Path:
    return _SHARED_MEMORY / f"kvcluster-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
