"""What can go wrong, sorted by what the caller should do about it.

Every error has its figures as fields, given by keyword, and survives pickling, so that it can cross a Ray
actor or a `wire.faults.Fault` and still be caught by its class. A caller's misuse (a negative size, an object
used after close) is a plain ValueError or TypeError, not one of these.

    try later         OutOfBudget, OutOfBlocks, DeviceUnreachable, DeviceGone
    ask differently   NeverFits, NotShareable, GrantRefused, UnknownRequest, NotAllowed, StaleEpoch, LateDuplicate,
                      SessionEnded, BadFrame, LimitReached, DeviceMissing
    the hardware      DriverError
    still in force    Quarantined
    our bug           InvariantBroken: no KvClusterError, never caught below the actor, which then stops
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def _rebuild(kind: type[Carried], fields: dict[str, Any]) -> Carried:
    return kind(**fields)


class Carried(Exception):
    """An error whose constructor's keywords are its attributes, so that it survives pickling."""

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("__")}  # notes are not ours

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields())


class KvClusterError(Carried):
    """Whatever a caller may catch: the world said no, and the state afterwards is known."""


class OutOfBudget(KvClusterError):
    """Not enough free bytes now. Nothing changed.

    `free` is what this request could have had: all that is free, less what must stay free beside it for others.
    `oldest_arrival` is the arrival number of the oldest request on the device that can be served (the one that may
    wait while it holds memory), or None where there is none. `quarantined` bytes come back only with a process's end.
    `capacity` is the device's as it is now: on a GPU it is measured again when a worker has loaded its model.
    """

    def __init__(
        self, *, need: int, free: int, oldest_arrival: int | None, retry_after_s: float, quarantined: int, capacity: int
    ) -> None:
        super().__init__(f"{need} bytes are needed and {free} are free; ask again in {retry_after_s:.1f} s")
        self.need = need
        self.free = free
        self.oldest_arrival = oldest_arrival
        self.retry_after_s = retry_after_s
        self.quarantined = quarantined
        self.capacity = capacity


class OutOfBlocks(KvClusterError, MemoryError):
    """Fewer blocks of a paged pool are free than are needed. Nothing changed."""

    def __init__(self, *, need: int, free: int) -> None:
        super().__init__(f"{need} blocks are needed and {free} are free: drop some, or open a larger pool")
        self.need = need
        self.free = free


class DeviceUnreachable(KvClusterError):
    """The device did not answer in time, or is gone. A call in flight may or may not have run."""

    def __init__(self, *, device: str, reason: str) -> None:
        super().__init__(f"device {device} cannot be reached: {reason}")
        self.device = device
        self.reason = reason


class DeviceGone(DeviceUnreachable):
    """Nobody serves there now: it left, or died, or says nothing. Whoever finds it again may reach its next process."""


class DeviceMissing(KvClusterError):
    """There is no such device in this process, or it lacks what is needed; the sentence names both. Nothing changed."""

    def __init__(self, *, device: str, reason: str, remedy: str) -> None:
        super().__init__(f"{device} cannot be opened: {reason}; {remedy}")
        self.device = device
        self.reason = reason
        self.remedy = remedy


class NeverFits(KvClusterError):
    """More than can ever be had, of the device or of the tenant's part of it: waiting cannot help. Nothing changed."""

    def __init__(self, *, need: int, capacity: int) -> None:
        super().__init__(f"{need} bytes are needed and at most {capacity} bytes can be had")
        self.need = need
        self.capacity = capacity


class NotShareable(KvClusterError):
    """A prefix cannot be shared, or not joined. Nothing changed.

    `kind` is one word for counters (`geometry.shareability.Refusal`); the reason is a sentence.
    """

    def __init__(self, *, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class GrantRefused(KvClusterError):
    """No grant, no commit. Refused before any driver call; nothing changed.

    `reason` is one of missing, spent, expired, returned, foreign, too-small.
    """

    def __init__(self, *, reason: str, need: int = 0, granted: int = 0) -> None:
        detail = f": {need} bytes are needed and it holds {granted}" if reason == "too-small" else ""
        super().__init__(f"the grant is {reason}{detail}")
        self.reason = reason
        self.need = need
        self.granted = granted


class UnknownRequest(KvClusterError):
    """The device has no such request open. Nothing changed."""

    def __init__(self, *, request: str) -> None:
        super().__init__(f"request {request} is not open on this device")
        self.request = request


class NotAllowed(KvClusterError):
    """The operation does not fit the state that its object is in. Nothing changed."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StaleEpoch(KvClusterError):
    """The frame was meant for another incarnation of the device. Never executed."""

    def __init__(self, *, sent: int, current: int) -> None:
        super().__init__(f"the frame is for epoch {sent} and the device is in epoch {current}: say hello again")
        self.sent = sent
        self.current = current


class LateDuplicate(KvClusterError):
    """A frame older than what its client has acknowledged. Never executed."""

    def __init__(self, *, seq: int, watermark: int) -> None:
        super().__init__(f"frame {seq} is below the watermark {watermark}")
        self.seq = seq
        self.watermark = watermark


class SessionEnded(KvClusterError):
    """The session has no live connection to the device. Nothing was executed."""

    def __init__(self, *, session: str) -> None:
        super().__init__(f"session {session} has no live connection: open a new one")
        self.session = session


class BadFrame(KvClusterError):
    """Bytes that are no message of ours. Nothing was executed; `field` is where, dotted ("ops.0.tokens")."""

    def __init__(self, *, field: str, reason: str) -> None:
        super().__init__(f"not a message of ours: {field}: {reason}")
        self.field = field
        self.reason = reason


class LimitReached(KvClusterError):
    """A limit of the operating system (descriptors, mappings, address space) would be passed. Nothing changed."""

    def __init__(self, *, limit: str, need: int, free: int, remedy: str) -> None:
        super().__init__(f"{need} {limit} are needed and {free} are left: {remedy}")
        self.limit = limit
        self.need = need
        self.free = free
        self.remedy = remedy


class DriverError(KvClusterError):
    """A driver call failed; that one call changed nothing unless its own docstring says otherwise.

    `code` and `name` are the driver's own (an errno on the host, a CUresult on CUDA).
    """

    def __init__(self, *, call: str, code: int, name: str, address: int = 0, size_bytes: int = 0) -> None:
        super().__init__(f"{call} of {size_bytes} bytes at {address:#x} failed: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name
        self.address = address
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Residue:
    """What an undo could not undo: still in force, still charged."""

    what: str
    size_bytes: int


class Quarantined(KvClusterError):
    """A call failed and so did an undo. What `residue` lists is still in force and stays charged."""

    def __init__(self, *, residue: tuple[Residue, ...]) -> None:
        total = sum(piece.size_bytes for piece in residue)
        what = "; ".join(piece.what for piece in residue)
        super().__init__(f"{total} bytes could not be taken back and stay charged: {what}")
        self.residue = residue


class InvariantBroken(Carried):
    """A rule of ours does not hold: our bug. The process that finds it stops."""

    def __init__(self, *, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
