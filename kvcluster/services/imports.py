"""What a client has imported of a device, kept for the next time that the device hands it over.

An import costs a message and a descriptor, a second mapping of it neither: the windows of a prefix are mapped by
every request that joins it, and a device lends the same handles to the same client again and again. Bounded, because
each import holds a descriptor: those least lately used are dropped first. What the device says is gone is dropped at
once, or it would only hold memory that nobody can use any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from kvcluster.attach.client import AttachClient
from kvcluster.attach.protocol import HandedHandle
from kvcluster.driver.limits import descriptor_room
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DeviceUnreachable, DriverError
from kvcluster.ids import ImportKey
from kvcluster.wire.socket import MOST_KNOWN, Forget, Reclaim


def most_kept(descriptors: int) -> int:
    """How many imports a process keeps that has room for so many descriptors."""
    return min(MOST_KNOWN, descriptors // 4)


class Imports:
    """For one thread. `most` imports are kept; by default a quarter of what this process may have open."""

    def __init__(self, attach: AttachClient, driver: Driver, *, most: int | None = None) -> None:
        self._attach = attach
        self._driver = driver
        self._most = most_kept(descriptor_room()) if most is None else min(MOST_KNOWN, most)
        self._kept: dict[ImportKey, PhysicalHandle] = {}  # least lately used first
        self._new: dict[ImportKey, PhysicalHandle] = {}  # of the redemption that is not settled yet
        self._held: Counter[PhysicalHandle] = Counter()
        self._stuck: list[PhysicalHandle] = []
        self._reclaims: list[Reclaim] = []

    def __len__(self) -> int:
        return len(self._kept)

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        """The handles that frame `seq` handed over; imports those that are not kept.

        Raises:
            As `AttachClient.redeem` and `Driver.import_fd`. What was imported for it is dropped again.
        """
        self._hear()
        handles: list[PhysicalHandle] = []
        with ExitStack() as undo:
            undo.callback(self._drop_new)

            def take(handed: HandedHandle) -> None:
                handles.append(self._imported(handed))

            self._attach.redeem(seq, take, known=tuple(self._kept))
            undo.pop_all()
        return handles

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        """They are mapped, or will not be: keep them for the next time."""
        self._kept |= self._new
        self._new.clear()
        droppable = (key for key, handle in tuple(self._kept.items()) if handle not in self._held)
        while len(self._kept) > self._most and (oldest := next(droppable, None)) is not None:
            self._drop(self._kept.pop(oldest))

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        """These are not dropped, however many there are, until they are let go."""
        self._held.update(handles)

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        """They are as the others."""
        self._held.subtract(handles)
        self._held = +self._held

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the device demands back, since the last call. Never waits."""
        self._hear()
        reclaims, self._reclaims = tuple(self._reclaims), []
        return reclaims

    def close(self) -> None:
        """Drop everything, and try again what could not be dropped before; mappings live on."""
        self._drop_new()
        stuck, self._stuck = self._stuck, []
        for handle in (*self._kept.values(), *stuck):
            self._drop(handle)
        self._kept.clear()

    def _imported(self, handed: HandedHandle) -> PhysicalHandle:
        if handed.fd is None:
            handle = self._kept.pop(handed.key, None)
            if handle is None:
                reason = f"it hands over {handed.key} without a descriptor, and nothing of that name was imported"
                raise DeviceUnreachable(device=self._attach.welcome.device, reason=reason)
            self._kept[handed.key] = handle
            return handle
        if handed.key not in self._new:  # a ticket names a handle twice where two requests join one prefix
            self._new[handed.key] = self._driver.import_fd(handed.fd, handed.size_bytes)
        return self._new[handed.key]

    def _hear(self) -> None:
        for push in self._attach.pushes():
            match push:
                case Reclaim():
                    self._reclaims.append(push)
                case Forget(handles=handles):
                    self._forget(handles)

    def _forget(self, handles: Sequence[tuple[int, int]]) -> None:
        for identity in handles:
            for is_sealed in (False, True):
                gone = self._kept.pop(ImportKey(*identity, is_sealed), None)
                if gone is not None:
                    self._drop(gone)

    def _drop_new(self) -> None:
        for handle in self._new.values():
            self._drop(handle)
        self._new.clear()

    def _drop(self, handle: PhysicalHandle) -> None:
        try:
            self._driver.release(handle)
        except DriverError:  # a descriptor of ours that would not close; it costs a descriptor and no memory
            self._stuck.append(handle)
