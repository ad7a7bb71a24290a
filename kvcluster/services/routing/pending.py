"""What no device has told yet, and one will: blocks of requests that were sent to it a moment ago.

So two prompts that begin alike and arrive together go to one device. It is a guess: it holds for `PENDING_S`, however
many rely on it, and no longer than until its device says otherwise. Of two devices the newest decision counts.

Memory: 2.1 MiB at most (measured).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

MOST_PENDING = 16_384  # blocks
PENDING_S = 30.0


class _Place(NamedTuple):
    """Where a block is about to be, and how long that is believed."""

    mask: int
    until_s: float


class PendingBlocks:
    """A device is named by its mask, the set of it alone."""

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, _Place] = OrderedDict()  # the next to end first

    def __len__(self) -> int:
        return len(self._places)

    def note(self, names: Iterable[bytes], mask: int, now_s: float) -> None:
        """These blocks are about to be at that device. What is believed already is believed no longer for it."""
        places, place = self._places, _Place(mask, now_s + PENDING_S)
        for name in names:
            before = places.get(name)
            if before is not None and before.mask == mask and before.until_s > now_s:
                continue
            places[name] = place
            places.move_to_end(name)
        while len(places) > MOST_PENDING:
            places.popitem(last=False)

    def mask_at(self, name: bytes, now_s: float) -> int:
        """The device that is about to have this block, as far as is believed now."""
        place = self._places.get(name)
        return 0 if place is None or place.until_s <= now_s else place.mask

    def told(self, name: bytes, mask: int) -> None:
        """This device has told of it, that it has it or that it has it no more: no guess is needed."""
        place = self._places.get(name)
        if place is not None and place.mask == mask:
            del self._places[name]

    def forget(self, mask: int) -> None:
        """Nothing is about to be there."""
        for name in [name for name, place in self._places.items() if place.mask == mask]:
            del self._places[name]
