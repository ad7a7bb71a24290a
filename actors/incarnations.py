"""One incarnation of an owner of memory after another: its lock, and its epoch.

Ray starts an owner again when its process dies (`max_restarts=-1`), on its node and with what it was made of. The new
process waits for the lock of its name, and so for the end of the old one, whatever became of that. How clients find it
is in `actors.seeking`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from actors.owners import OwnerKind
from kvcluster.failpoints import Failpoint, reach
from kvcluster.run_folder import run_folder
from kvcluster.services.abandoned_files import sweep
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.session_file import SessionFile, open_session_file

LOCK_WAIT_S = 30.0


def session_path(kind: OwnerKind, name: str, node_id: str) -> Path:
    """The file of the owner's incarnations. Raises as `run_folder`."""
    return run_folder() / f"{kind}-{node_id}-{name}.sessions"


def begin_incarnation(kind: OwnerKind, node_id: str, settings: DeviceSettings) -> tuple[SessionFile, DeviceSettings]:
    """The lock, and the settings with the epoch of this incarnation.

    Raises:
        DeviceUnreachable: an earlier process of this name lives on. Nothing changed.
        OSError: the file cannot be made. Nothing changed.
    """
    path = session_path(kind, settings.name, node_id)
    sweep(path.parent, but=path)
    file = open_session_file(path, wait_s=LOCK_WAIT_S)
    reach(Failpoint.OWNER_LOCKED)
    return file, replace(settings, epoch=file.epoch, incarnation=file.incarnation)
