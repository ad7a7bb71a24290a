"""Named places where a test may raise, delay, hang or kill. A no-op until it is armed.

The names stand here in one list, because a user's fault-injection tests are written against them. What an armed
point does is in `kvcluster.testing.arming`; production code only says `reach(...)`. A process started with
KVCLUSTER_FAILPOINTS in its environment arms itself when this module is imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from enum import StrEnum

ENVIRONMENT = "KVCLUSTER_FAILPOINTS"


class Failpoint(StrEnum):
    """Every place; those of a commit stand in the order in which it passes them."""

    CLIENT_ASK = "client.commit.ask"  # the frame is made and not yet sent
    DEVICE_PLANNED = "device.commit.planned"  # rules checked, nothing taken
    DEVICE_TAKEN = "device.commit.taken"  # handles taken, nothing charged
    DEVICE_CHARGED = "device.commit.charged"  # charged, the reply not yet stored
    DEVICE_STORED = "device.frame.stored"  # the reply stored, not yet sent
    CLIENT_REPLIED = "client.commit.replied"  # the reply is here, nothing redeemed
    CLIENT_REDEEMED = "client.commit.redeemed"  # the descriptors are here, nothing mapped
    CLIENT_MAPPED = "client.commit.mapped"  # a run mapped, no access to it yet
    CLIENT_ACCESSIBLE = "client.commit.accessible"  # a run mapped and accessible
    CLIENT_COMMITTED = "client.commit.committed"  # the client's half is kept
    CLIENT_UNMAPPED = "client.release.unmapped"  # windows unmapped, not yet given back
    DEVICE_RELEASED = "device.release.released"  # windows given back, the handles not yet disposed of
    DEVICE_PUBLISHED = "device.publish.planned"  # a prefix is planned, nothing sealed
    CLIENT_PUBLISH_UNMAPPED = "client.publish.unmapped"  # what is published is unmapped, not yet sealed
    DEVICE_SEALED = "device.seal.sealed"  # every handle sealed, nothing booked
    CLIENT_SEALED = "client.seal.sealed"  # the descriptors of what is sealed are here, nothing of it mapped
    DEVICE_JOINED = "device.join.joined"  # the request uses the prefix, the reply not yet stored
    CLIENT_JOINED = "client.join.joined"  # the prefix is mapped
    DEVICE_LEFT = "device.leave.left"  # the request uses it no longer, its memory not yet disposed of


_armed: Callable[[Failpoint], None] | None = None


def reach(point: Failpoint) -> None:
    """Pass `point`: nothing happens unless a test armed it."""
    if _armed is not None:
        _armed(point)


def arm(action: Callable[[Failpoint], None] | None) -> None:
    """Call `action` at every point from now on; None disarms."""
    global _armed
    _armed = action


if os.environ.get(ENVIRONMENT):  # pragma: no cover - runs in child processes of the fault tests
    importlib.import_module("kvcluster.testing.arming").arm_from_environment()
