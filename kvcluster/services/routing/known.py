"""Which devices know the beginning of a prompt, and which of them it is sent to.

By the longest known prefix, of equals to the device with the most free bytes, of equals to the one with the fewest
requests (`routing.devices`). Not to one whose requests are many beside the others': with a share s of the prompt known
there it may have (1 + s) times what the others have on an average, and `MOST_AHEAD` more. That is the score of vLLM's
production stack, matched / prompt - (load - mean) / mean, kept above that of a device of average load that knows
nothing. SGLang's router gives up prefixes altogether where the busiest device has over 64 requests more than the
idlest, and over 1.5 times as many.

A prompt's blocks are hashed as far as they are known and `MOST_NOTED` further, no more. What was decided is noted, so
that a prompt that begins alike follows (`routing.pending`).

Memory: 105 bytes a block that one of 1,000 devices knows, 253 where several do (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kvcluster.index.events import News, names_in
from kvcluster.services.routing.devices import Devices
from kvcluster.services.routing.path import Level, Path
from kvcluster.services.routing.pending import PendingBlocks

MOST_AHEAD = 16  # so many run side by side in one worker, unless it was told otherwise: they keep nobody waiting
MOST_NOTED = 16  # blocks behind those that are known: enough to be found by
MOST_TRIED = 16  # devices that know as much: those with the most room


@dataclass(frozen=True, slots=True)
class Decision:
    """Where to, and how many blocks of the prompt are known there, or are about to be."""

    device: str
    known_blocks: int


class KnownPrefixes:
    """Of several devices. For one thread."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._devices = Devices()
        self._pending = PendingBlocks()
        self._masks: dict[bytes, int] = {}  # who knows this block

    def __len__(self) -> int:
        """How many blocks are known anywhere."""
        return len(self._masks)

    # --- what devices tell ------------------------------------------------------------------------------------------

    def join(self, device: str) -> None:
        """It may be sent to from now on. Again: nothing."""
        self._devices.join(device)

    def leave(self, device: str) -> None:
        """Nothing is sent there, and nothing is known of it. One that is not here: nothing."""
        if device in self._devices:
            self.lost(device)
            self._devices.leave(device)

    def lost(self, device: str) -> None:
        """All that it knew is gone, and so is what was about to be there.

        Where it knew any, that takes a step a block that is known anywhere.
        """
        bit = self._devices.join(device)
        self._pending.forget(self._devices.mask_of(bit))
        if self._devices.blocks_of(bit):
            self._remove(bit, self._known_at(bit))

    def has_only(self, device: str, stored: bytes) -> None:
        """It knows these blocks, and no others; what is about to be there still is."""
        bit = self._devices.join(device)
        if self._devices.blocks_of(bit):
            self._remove(bit, self._known_at(bit) - set(names_in(stored)))
        self._store(bit, names_in(stored))

    def changed(self, device: str, news: News) -> None:
        """It knows some blocks more, and some less."""
        bit = self._devices.join(device)
        self._remove(bit, names_in(news.removed))
        self._store(bit, names_in(news.stored))

    def has_free(self, device: str, free_bytes: int) -> None:
        """So many bytes a request could have there now."""
        self._devices.has_free(self._devices.join(device), free_bytes)

    def has_requests(self, device: str, requests: int) -> None:
        """So many requests run or wait there now."""
        self._devices.has_requests(self._devices.join(device), requests)

    def known_at(self, device: str) -> frozenset[bytes]:
        """The names of the blocks that it knows."""
        bit = self._devices.bit_of(device)
        return frozenset() if bit is None else frozenset(self._known_at(bit))

    # --- decisions --------------------------------------------------------------------------------------------------

    def set_of(self, devices: Iterable[str]) -> int:
        """These devices as `decide` takes them; it holds until one of them leaves."""
        mask = 0
        for device in devices:
            mask |= self._devices.mask_of(self._devices.join(device))
        return mask

    def decide(
        self, digests: Iterator[bytes], *, among: int, prompt_blocks: int, block_bytes: int = 0, answer_bytes: int = 0
    ) -> Decision | None:
        """Where to send a prompt of so many blocks, whose digests are these in order; None where `among` is nobody.

        What it may take there, `block_bytes` a block that is not known and `answer_bytes` for its answer, is counted
        off what the device has free: else a burst would go where a little more was free when that was told last
        (measured: of 8 at once, all 8 to one of two devices).
        """
        if not among:
            return None
        now_s = self._clock()
        path = Path(told=self._told, expected=lambda name: self._pending.mask_at(name, now_s), among=among)
        path.follow(digests, MOST_NOTED)
        bit, blocks = self._chosen(path.levels(), prompt_blocks)
        self._pending.note(path.behind(blocks, digests, MOST_NOTED), self._devices.mask_of(bit), now_s)
        self._devices.spends(bit, block_bytes * (prompt_blocks - blocks) + answer_bytes)
        return Decision(self._devices.name_of(bit), blocks)

    def _chosen(self, levels: Iterable[Level], prompt_blocks: int) -> tuple[int, int]:
        """The first device that is not too busy, by length, then by its own word, then by room; the least busy one, if
        all are. And how many blocks are known there.
        """
        devices, tried = self._devices, list[tuple[int, int, int]]()
        for level in levels:
            share = level.blocks / prompt_blocks if prompt_blocks else 0.0
            for bit in islice(self._in_order(level), MOST_TRIED):
                requests = devices.requests_of(bit)
                if requests <= MOST_AHEAD + (1 + share) * devices.others_mean(bit):
                    return bit, level.blocks
                tried.append((requests, -level.blocks, bit))
        _, blocks, bit = min(tried)
        return bit, -blocks

    def _in_order(self, level: Level) -> Iterator[int]:
        yield from self._devices.roomiest(level.told)
        if about_to_know := level.mask & ~level.told:
            yield from self._devices.roomiest(about_to_know)

    # --- books ------------------------------------------------------------------------------------------------------

    def _told(self, name: bytes) -> int:
        return self._masks.get(name, 0)

    def _known_at(self, bit: int) -> set[bytes]:
        return {name for name, there in self._masks.items() if there >> bit & 1}

    def _store(self, bit: int, names: Iterable[bytes]) -> None:
        mask, masks, count = self._devices.mask_of(bit), self._masks, self._devices.blocks_of(bit)
        for name in names:
            self._pending.told(name, mask)
            there = masks.get(name)
            if there is None:
                masks[name] = mask
                count += 1
            elif not there & mask:
                masks[name] = there | mask
                count += 1
        self._devices.knows(bit, count)

    def _remove(self, bit: int, names: Iterable[bytes]) -> None:
        mask, masks, count = self._devices.mask_of(bit), self._masks, self._devices.blocks_of(bit)
        for name in names:
            self._pending.told(name, mask)
            there = masks.get(name, 0)
            if not there & mask:
                continue
            count -= 1
            if there == mask:
                del masks[name]
            else:
                masks[name] = there & ~mask
        self._devices.knows(bit, count)
