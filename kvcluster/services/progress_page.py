"""What a client has computed, where its device finds it when the client is dead: one file of shared memory a session.

The client writes, the device reads once its process is gone (`services.keeping`). A slot a text: a *label* that stands
for the work (`request.order`), the memory that holds its rows and how many tokens of it are written, and the ids of all
tokens that were emitted.

    a flag | slot 0: record, record, ids ... | slot 1 ...

A kill may fall between any two bytes. So a slot has two records, each with a count and a checksum; the older one is
overwritten, and the newest whole one counts. Ids are only added, before the record that counts them. Nobody is asked:
what a step says of a text takes 5 us of processor time and no call of the kernel; to read a page takes 0.7 ms. Pages
are touched when they are used: a file of 32 MiB takes some 8 KiB a text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from mmap import mmap
from typing import Protocol
from zlib import crc32

from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES, packed

SLOTS = 128
SLOT_BYTES = 256 * 1024
HEAD_BYTES = 4096  # before the first slot, and in each before its ids
FILE_BYTES = HEAD_BYTES + SLOTS * SLOT_BYTES
MOST_IDS = (SLOT_BYTES - HEAD_BYTES) // ID_BYTES
LABEL_BYTES = 16

_RECORD = struct.Struct("<7Q16s")  # count, stage, number, generation, written, computed, emitted, label
_CHECKSUM = struct.Struct("<I")
_RECORD_BYTES = _RECORD.size + _CHECKSUM.size
_SECOND = 256  # where a slot's second record begins
_VOID = b"\x01"  # nobody writes here any more, and nobody is to trust it
_CLOSED = b"\x02"  # nobody writes here any more, and no memory is left


class Stage(IntEnum):
    """How a text stands."""

    NONE = 0  # the slot is nobody's
    RUNNING = 1  # its memory holds the rows of its first `written` tokens
    BARE = 2  # it has no memory, or none that counts
    DONE = 3  # all its tokens are emitted


class Memory(Protocol):
    """What a page is written to: a `mmap`, or in tests a `bytearray`."""

    def __setitem__(self, place: slice, data: bytes, /) -> None: ...


Read = Callable[[int, int], bytes]
"""So many bytes of a page, from an offset on."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One text's: `computed` is the most tokens of it that were ever written at once, `written` those that its memory,
    request `number`, holds now."""

    label: bytes
    stage: Stage = Stage.BARE
    number: int = 0
    generation: int = 0
    written: int = 0
    computed: int = 0
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A text of a page that was read, and the ids that it emitted (uint32, `index.token_chain`)."""

    standing: Standing
    token_ids: bytes


_NOBODY = Standing(bytes(LABEL_BYTES), Stage.NONE)


class _Nowhere:
    def __setitem__(self, place: slice, data: bytes, /) -> None:
        """Said after the last word."""


def mapped(descriptor: int) -> Memory:
    """The page of this descriptor, which stays its caller's; mapped for as long as anybody refers to it."""
    return mmap(descriptor, FILE_BYTES)


class ProgressPage:
    """The client's half, over memory that is all zeros. For one thread."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._slots = [Slot(self, HEAD_BYTES + number * SLOT_BYTES) for number in range(SLOTS)]
        self._free = self._slots[::-1]
        self._done: dict[Slot, None] = {}  # the oldest first

    def begin(self, label: bytes) -> Slot | None:
        """A slot for a text; that of the text that is done for longest, where no other is free. None: all are busy."""
        slot = self._free.pop() if self._free else next(iter(self._done), None)
        if slot is not None:
            self._done.pop(slot, None)
            slot.begin(label)
        return slot

    def void(self) -> None:
        """What was computed is not to be trusted: nobody goes on with it, whatever the slots say. The last word."""
        self._end(_VOID)

    def close(self) -> None:
        """The session ends in good order: its memory is given back, and only words are left. The last word."""
        self._end(_CLOSED)

    def move_to(self, memory: Memory) -> None:
        """Go on in another file, all zeros: the session, or its device, is another one now. No memory counts there."""
        self.close()
        self._memory = memory
        for slot in self._slots:
            slot.write_again()

    def store(self, place: int, data: bytes) -> None:
        """For its slots."""
        self._memory[place : place + len(data)] = data

    def _end(self, flag: bytes) -> None:
        self.store(0, flag)
        self._memory = _Nowhere()

    def given_back(self, slot: Slot) -> None:
        """For its slots."""
        self._free.append(slot)

    def is_done(self, slot: Slot) -> None:
        """For its slots."""
        self._done[slot] = None


class Slot:
    """One text's. What has more ids than there is room for is given up, and the slot is nobody's."""

    def __init__(self, page: ProgressPage, place: int) -> None:
        self._page = page
        self._place = place
        self._count = 0
        self._standing = _NOBODY
        self._ids = bytearray()

    @property
    def emitted(self) -> int:
        """Ids that are there."""
        return self._standing.emitted

    @property
    def written(self) -> int:
        """Tokens that its memory is said to hold."""
        return self._standing.written

    def begin(self, label: bytes) -> None:
        if self._standing.stage is not Stage.NONE:
            self._write(_NOBODY)  # before its ids are overwritten
        self._ids.clear()
        self._write(Standing(label))

    def wrote(self, request: RequestId | None, tokens: int, more_ids: Sequence[int], *, computed: int) -> None:
        """The first `tokens` tokens are written in the memory of `request` (None: in none that counts), and these ids
        were emitted since the last time; `computed` were written at some time."""
        if request is None:
            self._say(more_ids, stage=Stage.BARE, number=0, generation=0, written=0, computed=computed)
            return
        number, generation = request.number, request.generation
        self._say(
            more_ids, stage=Stage.RUNNING, number=number, generation=generation, written=tokens, computed=computed
        )

    def lost(self) -> None:
        """Its memory is about to go, or not to be trusted."""
        if self._standing.stage is Stage.RUNNING:
            self._say((), stage=Stage.BARE, number=0, generation=0, written=0)

    def done(self, more_ids: Sequence[int]) -> None:
        """No token follows these. It is remembered until the slot is needed."""
        if self._standing.stage is not Stage.NONE:
            self._say(more_ids, stage=Stage.DONE, number=0, generation=0, written=0)
            if self._standing.stage is Stage.DONE:
                self._page.is_done(self)

    def drop(self) -> None:
        """Nobody wants it any more. Again, or of one that is done: nothing."""
        if self._standing.stage not in (Stage.NONE, Stage.DONE):
            self._write(_NOBODY)
            self._page.given_back(self)

    def write_again(self) -> None:
        """In another file, without a memory."""
        self._count = 0
        if self._standing.stage is Stage.NONE:
            return
        self._page.store(self._place + HEAD_BYTES, bytes(self._ids))
        stage = Stage.DONE if self._standing.stage is Stage.DONE else Stage.BARE
        self._write(replace(self._standing, stage=stage, number=0, generation=0, written=0))

    def _say(self, more_ids: Sequence[int], **changes: int) -> None:
        """Ids first, then the record that counts them."""
        if self._standing.stage is Stage.NONE:
            return
        if self.emitted + len(more_ids) > MOST_IDS:
            self.drop()
            return
        if more_ids:
            data = packed(more_ids)
            self._page.store(self._place + HEAD_BYTES + len(self._ids), data)
            self._ids += data
        self._write(replace(self._standing, emitted=len(self._ids) // ID_BYTES, **changes))  # type: ignore[arg-type]

    def _write(self, standing: Standing) -> None:
        self._count += 1
        self._standing = standing
        self._page.store(self._place + _SECOND * (self._count % 2), encoded(self._count, standing))


def encoded(count: int, standing: Standing) -> bytes:
    """A record: the `count`-th of its slot."""
    s = standing
    data = _RECORD.pack(count, s.stage, s.number, s.generation, s.written, s.computed, s.emitted, s.label)
    return data + _CHECKSUM.pack(crc32(data))


def is_over(read: Read) -> bool:
    """Whether its writer said its last word, so that it need not be dead to be read."""
    return read(0, 1) in (_VOID, _CLOSED)


def texts_of(read: Read) -> tuple[tuple[Found, ...], bool]:
    """Every text of a page that nobody writes any more, and whether what was computed may be trusted."""
    found = (_text_of(read, HEAD_BYTES + number * SLOT_BYTES) for number in range(SLOTS))
    return tuple(text for text in found if text is not None), read(0, 1) != _VOID


def _text_of(read: Read, place: int) -> Found | None:
    records = (_decoded(read(place + offset, _RECORD_BYTES)) for offset in (0, _SECOND))
    _, standing = max((record for record in records if record), key=lambda record: record[0], default=(0, _NOBODY))
    if standing.stage is Stage.NONE or standing.emitted > MOST_IDS:
        return None
    return Found(standing, read(place + HEAD_BYTES, standing.emitted * ID_BYTES))


def _decoded(data: bytes) -> tuple[int, Standing] | None:
    """The record, where it is a whole one: its writer may have died in it, or have written anything."""
    body, checksum = data[: _RECORD.size], data[_RECORD.size :]
    if len(data) < _RECORD_BYTES or _CHECKSUM.pack(crc32(body)) != checksum:
        return None
    count, stage, number, generation, written, computed, emitted, label = _RECORD.unpack(body)
    if stage > Stage.DONE or max(number, generation, written, computed) >= 2**63:  # more than a message says
        return None
    return count, Standing(label, Stage(stage), number, generation, written, computed, emitted)
