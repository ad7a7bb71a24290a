"""Where an actor ends: what is a refusal goes to the caller, and whatever else is raised ends the process.

An error that is none of ours left an act half done. Ray would answer it and go on with half a device, so the process
ends at once, and what its clients have mapped lives on in them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

from kvcluster.errors import KvClusterError

T = TypeVar("T")


def or_die(work: Callable[[], T]) -> T:
    """Run `work`; a refusal is the caller's. Anything else left an act half done, and ends this process."""
    try:
        return work()
    except KvClusterError:
        raise
    except BaseException as error:  # noqa: BLE001 - the actor boundary
        die(error)


def run_or_die(work: Callable[[], None]) -> None:
    """The whole of a thread. Nobody waits for it, so that any error would leave half an actor: it ends the process."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the actor boundary
        die(error)


def die(error: BaseException) -> NoReturn:
    """End this process now, with the error on its standard error."""
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)
