"""The devices that requests are sent to: what memory they have free, how many requests they have, and who has room.

Each is a bit, so that any set of them is an int. Those with the most free bytes come first, of equals the one with the
fewest requests, of these the one that knows the fewest blocks: what is kept until it is needed counts as free, and all
devices are to keep some. A change of one among 1,000 takes a microsecond or two (a sorted list, moved by bisection).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

FEW = 32  # up to so many are sorted by themselves; of more, all devices are gone through in their order

Room = tuple[int, int, int, int]  # free bytes, negative; requests; known blocks; bit


@dataclass(slots=True)
class _Device:
    name: str
    mask: int
    free_bytes: int = 0
    requests: int = 0
    blocks: int = 0


class Devices:
    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._devices: dict[int, _Device] = {}
        self._spare: list[int] = []
        self._by_room: list[Room] = []
        self._requests = 0

    def __len__(self) -> int:
        return len(self._bits)

    def __contains__(self, name: str) -> bool:
        return name in self._bits

    def join(self, name: str) -> int:
        """Its bit: a new one, or one that a device had which left; the same as before where it is here."""
        bit = self._bits.get(name)
        if bit is None:
            bit = self._bits[name] = self._spare.pop() if self._spare else len(self._bits)
            self._devices[bit] = _Device(name, 1 << bit)
            insort(self._by_room, self._room(bit))
        return bit

    def leave(self, name: str) -> None:
        """It is none any more. One that is not here: nothing."""
        bit = self._bits.pop(name, None)
        if bit is not None:
            self._take_out(bit)
            self._requests -= self._devices.pop(bit).requests
            self._spare.append(bit)

    def bit_of(self, name: str) -> int | None:
        return self._bits.get(name)

    def name_of(self, bit: int) -> str:
        return self._devices[bit].name

    def mask_of(self, bit: int) -> int:
        """The set of this one: always the same int, which others may keep a million times."""
        return self._devices[bit].mask

    def has_free(self, bit: int, free_bytes: int) -> None:
        self._take_out(bit)
        self._devices[bit].free_bytes = free_bytes
        insort(self._by_room, self._room(bit))

    def spends(self, bit: int, size_bytes: int) -> None:
        """So much of what it told that it has free is promised, until it tells again."""
        self.has_free(bit, self._devices[bit].free_bytes - size_bytes)

    def has_requests(self, bit: int, requests: int) -> None:
        self._take_out(bit)
        self._requests += requests - self._devices[bit].requests
        self._devices[bit].requests = requests
        insort(self._by_room, self._room(bit))

    def knows(self, bit: int, blocks: int) -> None:
        """So many blocks."""
        self._take_out(bit)
        self._devices[bit].blocks = blocks
        insort(self._by_room, self._room(bit))

    def blocks_of(self, bit: int) -> int:
        return self._devices[bit].blocks

    def requests_of(self, bit: int) -> int:
        return self._devices[bit].requests

    def others_mean(self, bit: int) -> float:
        """How many requests a device has, on an average of all but this one."""
        others = len(self._devices) - 1
        return (self._requests - self._devices[bit].requests) / others if others else 0.0

    def roomiest(self, among: int) -> Iterator[int]:
        """The bits of these devices, the one with the most room first."""
        if among.bit_count() <= FEW:
            return iter([bit for *_, bit in sorted(map(self._room, bits_of(among)))])
        return (bit for *_, bit in self._by_room if among >> bit & 1)

    def _room(self, bit: int) -> Room:
        device = self._devices[bit]
        return -device.free_bytes, device.requests, device.blocks, bit

    def _take_out(self, bit: int) -> None:
        del self._by_room[bisect_left(self._by_room, self._room(bit))]


def bits_of(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
