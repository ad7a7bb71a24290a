"""Named places where a test may raise, delay, hang or kill. A no-op until it is armed.

The names stand here in one list, because a user's fault-injection tests are written against them; `kvcluster
failpoints` prints it. What an armed point does, and how that is written, is in `kvcluster.testing.arming`; production
code only says `reach(...)`, which costs a call, one look at a global and a comparison until somebody arms it
(benchmarks/bench_failpoints.py).

A process is armed by its environment (KVCLUSTER_FAILPOINTS, read when this module is imported), by the setting
`failpoints` of its job, or by a message (`arm` of every actor): each of them ends in `arm_with`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from enum import StrEnum
from types import ModuleType

ENVIRONMENT = "KVCLUSTER_FAILPOINTS"


class Passer(StrEnum):
    """What kinds of process there are, as far as they pass failpoints."""

    DEVICE = "device"  # a device actor
    PAGES = "pages"  # a host actor, the owner of a node's host pages
    REQUEST = "request"  # a request actor: a worker of a job
    JOB = "job"  # who reads the lines, feeds the workers and writes the results


OWNERS = (Passer.DEVICE, Passer.PAGES)


class Failpoint(StrEnum):
    """Every place: its name, who passes it, and what is done and not done there.

    Those of a commit stand in the order in which it passes them.
    """

    passers: tuple[Passer, ...]
    what: str

    def __new__(cls, name: str, passers: Passer | tuple[Passer, ...], what: str) -> Failpoint:
        point = str.__new__(cls, name)
        point._value_ = name
        point.passers = (passers,) if isinstance(passers, Passer) else passers
        point.what = what
        return point

    # a commit, from the client's ask to its memory
    CLIENT_ASK = "client.commit.ask", Passer.REQUEST, "the frame is made and not yet sent"
    DEVICE_PLANNED = "device.commit.planned", Passer.DEVICE, "rules checked, nothing taken"
    DEVICE_TAKEN = "device.commit.taken", Passer.DEVICE, "handles taken, nothing charged"
    DEVICE_CHARGED = "device.commit.charged", Passer.DEVICE, "charged, the reply not yet stored"
    DEVICE_STORED = "device.frame.stored", OWNERS, "the reply to a frame is stored, not yet sent"
    CLIENT_REPLIED = "client.commit.replied", Passer.REQUEST, "the reply is here, nothing redeemed"
    CLIENT_REDEEMED = "client.commit.redeemed", Passer.REQUEST, "the descriptors are here, nothing mapped"
    CLIENT_MAPPED = "client.commit.mapped", Passer.REQUEST, "a run mapped, no access to it yet"
    CLIENT_ACCESSIBLE = "client.commit.accessible", Passer.REQUEST, "a run mapped and accessible"
    CLIENT_COMMITTED = "client.commit.committed", Passer.REQUEST, "the client's half is kept"

    # giving back, and what others share
    CLIENT_UNMAPPED = "client.release.unmapped", Passer.REQUEST, "windows unmapped, not yet given back"
    DEVICE_RELEASED = "device.release.released", Passer.DEVICE, "windows given back, their handles not disposed of"
    DEVICE_PUBLISHED = "device.publish.planned", Passer.DEVICE, "a prefix is planned, nothing sealed"
    CLIENT_PUBLISH_UNMAPPED = "client.publish.unmapped", Passer.REQUEST, "what is published is unmapped, not sealed"
    DEVICE_SEALED = "device.seal.sealed", Passer.DEVICE, "every handle sealed, nothing booked"
    CLIENT_SEALED = "client.seal.sealed", Passer.REQUEST, "descriptors of what is sealed are here, not mapped"
    DEVICE_JOINED = "device.join.joined", Passer.DEVICE, "the request uses the prefix, the reply not yet stored"
    CLIENT_JOINED = "client.join.joined", Passer.REQUEST, "the prefix is mapped"
    DEVICE_LEFT = "device.leave.left", Passer.DEVICE, "the request uses it no longer, its memory not disposed of"
    DEVICE_ENDING = "device.close.ending", Passer.DEVICE, "a request ends: its prefixes left, its windows still its own"
    DEVICE_KEPT = "device.close.kept", Passer.DEVICE, "a request ends: what stays of it is a prefix, the rest its own"
    DEVICE_EVICTING = "device.evict.chosen", Passer.DEVICE, "a retained prefix is to go, nothing of it is gone"

    # what a dead process leaves, and who goes on with it
    DEVICE_LEFT_BEHIND = "device.successor.kept", Passer.DEVICE, "a dead process's page is read, the rest not yet free"
    DEVICE_ADOPTED = "device.successor.adopted", Passer.DEVICE, "the memory is the successor's, the reply not stored"
    CLIENT_ADOPTED = "client.successor.adopted", Passer.REQUEST, "adopted memory is mapped, its new page not written"

    # host pages
    PAGES_FOUND = "pages.find.found", Passer.PAGES, "the sequence begins with blocks of others, the group goes on"
    PAGES_GROWN = "pages.grow.taken", Passer.PAGES, "blocks taken and copied, nothing charged"
    PAGES_CHARGED = "pages.grow.charged", Passer.PAGES, "blocks charged, the reply not yet stored"
    PAGES_FORKED = "pages.fork.forked", Passer.PAGES, "children have the parent's blocks, and are not weighed yet"
    PAGES_PERMUTED = "pages.permute.permuted", Passer.PAGES, "tables exchanged, blocks not yet booked"
    PAGES_SHARED = "pages.share.told", Passer.PAGES, "the ids of what is written are known, it is not found yet"
    PAGES_LISTED = "pages.close.listed", Passer.PAGES, "a sequence ends: what stays of it is found, its blocks its own"
    PAGES_EVICTING = "pages.evict.chosen", Passer.PAGES, "a retained block is to go, nothing of it is gone"
    CLIENT_GUARDED = "client.pages.guarded", Passer.REQUEST, "blocks are read-only here, their owner not told"
    CLIENT_WRITABLE = "client.pages.writable", Passer.REQUEST, "what was given is writable here, nothing written"

    # sessions
    CLIENT_HELLO = "client.hello.said", Passer.REQUEST, "hello is said, nobody answered"
    OWNER_WELCOMED = "owner.hello.welcomed", OWNERS, "the session is there, its client not told"
    CLIENT_WELCOMED = "client.hello.welcomed", Passer.REQUEST, "the session is there, no heartbeat sent"
    OWNER_HANDING = "owner.handover.asked", OWNERS, "descriptors are asked for, none is sent"
    CLIENT_REPLY = (
        "client.reply.arrived",
        Passer.REQUEST,
        "a reply is here, nobody looked at it: `lose` drops it",
    )
    OWNER_DISCONNECTED = "owner.session.disconnected", OWNERS, "a connection ended, what it had is still its client's"
    OWNER_GONE = "owner.session.gone", OWNERS, "a client's process is dead, what it had not yet free"
    OWNER_FENCED = "owner.session.fenced", OWNERS, "a lease ended: what it had is in quarantine, its client not told"
    CLIENT_SURRENDERING = "client.surrender.unmapped", Passer.REQUEST, "nothing is mapped any more, the owner not told"
    OWNER_SURRENDERED = "owner.session.surrendered", OWNERS, "a client has nothing mapped, what it had not yet free"

    # an owner that was restarted
    OWNER_LOCKED = "owner.restart.locked", OWNERS, "the lock is taken and the epoch begun, no memory is there"
    DEVICE_REGISTERED = (
        "device.restart.registered",
        Passer.DEVICE,
        "a client's windows are charged, the reply not stored",
    )
    CLIENT_REGISTERS = "client.restart.found", Passer.REQUEST, "the owner is found again, nothing is registered with it"
    CLIENT_REGISTERED = "client.restart.registered", Passer.REQUEST, "all is registered, nothing else asked for"

    # the life of an owner
    OWNER_OPENED = "owner.start.opened", OWNERS, "its memory is there, its socket is not"
    OWNER_SERVING = "owner.start.serving", OWNERS, "it serves, and nobody knows its address"
    OWNER_LEAVING = "owner.exit.leaving", OWNERS, "idle for long: whoever comes is refused, nothing given back"

    # the life of a worker, and a step of its loop
    REQUEST_STARTED = "request.start.begun", Passer.REQUEST, "a worker is placed, nothing is opened"
    REQUEST_OPENED = "request.start.opened", Passer.REQUEST, "model and sessions are there, and nobody knows"
    REQUEST_SUBMITTED = "request.submit.queued", Passer.REQUEST, "requests are queued, their sender not told"
    STEP_PLANNED = "request.step.planned", Passer.REQUEST, "memory is there, the step not computed"
    STEP_COMPUTED = "request.step.computed", Passer.REQUEST, "K and V are written, no token is chosen"
    STEP_SAMPLED = "request.step.sampled", Passer.REQUEST, "tokens are chosen, and nobody has them"
    STEP_NOTED = "request.step.noted", Passer.REQUEST, "the page for a successor says what the step computed"
    REQUEST_FLEEING = "request.move.fleeing", Passer.REQUEST, "a sequence is copied to pages, its old memory not ended"
    REQUEST_RETURNING = "request.move.returning", Passer.REQUEST, "a sequence is copied to the device, pages not ended"
    REQUEST_FINISHED = "request.outcome.ready", Passer.REQUEST, "outcomes are there, not where they are collected"
    REQUEST_COLLECTED = "request.outcome.collected", Passer.REQUEST, "outcomes are taken, the reply not sent"
    REQUEST_STOPPING = "request.stop.asked", Passer.REQUEST, "a worker is to stop, its loop goes on"

    # a batch job
    JOB_SUBMITTED = "job.submit.sent", Passer.JOB, "a share is sent to a worker"
    JOB_LOST = "job.loss.noticed", Passer.JOB, "a worker is lost, what it had not yet handed out again"
    JOB_WRITTEN = "job.result.written", Passer.JOB, "a line is written, not forced to the disk"
    JOB_SYNCED = "job.result.synced", Passer.JOB, "what was written is on the disk"


class ReplyLost(Exception):
    """A test dropped the reply that a transport had in its hands: to be treated as one that never came."""


_armed: Callable[[Failpoint], None] | None = None
_passer: Passer | None = None


def reach(point: Failpoint) -> None:
    """Pass `point`: nothing happens unless a test armed it."""
    if _armed is not None:
        _armed(point)


def arm(action: Callable[[Failpoint], None] | None) -> None:
    """Call `action` at every point from now on; None disarms."""
    global _armed
    _armed = action


def arm_with(text: str) -> None:
    """Arm this process as `text` says (`kvcluster.testing.arming`), whatever was armed before; nothing disarms.

    Raises:
        ValueError: it says something that there is not. What was armed stays armed.
    """
    arm(_kit().arms_of(text) if text else None)


def checked(text: str) -> str:
    """The text itself, once it was read: for who hands it on to other processes. Raises as `arm_with`."""
    if text:
        _kit().parse_faults(text)
    return text


def environment_of(text: str) -> dict[str, str]:
    """What to add to the environment of a process that is to be armed with this text; nothing for nothing."""
    return {ENVIRONMENT: text} if text else {}


def process_is(passer: Passer | None) -> None:
    """What this process is, for faults that are meant for one kind only. Said when it starts; None is none of them."""
    global _passer
    _passer = passer


def passer() -> Passer | None:
    """What this process is; None where nobody said."""
    return _passer


def _kit() -> ModuleType:
    """Imported by nobody who does not arm anything."""
    return importlib.import_module("kvcluster.testing.arming")


if os.environ.get(ENVIRONMENT):  # pragma: no cover - runs in child processes of the fault tests
    arm_with(os.environ[ENVIRONMENT])
