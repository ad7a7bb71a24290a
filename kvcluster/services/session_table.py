"""The table of an owner's sessions, in words of memory: each is stored at once, in an order that any SIGKILL may break.

    magic | epoch | incarnation | seal | address | row: session, process, when it started, bytes | row ...

A reader finds an older or a newer state, whole, wherever the writer is killed, and while it writes: a row is one once
its process stands in it, an address is one under the seal of its epoch (length and checksum, stored last), and a table
is one under its magic, which is stored once. Nothing is ever stored with `struct`, which zeroes the place first, byte
by byte. Not the file and not its lock: `services.session_file`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from kvcluster.errors import LimitReached

MOST_ROWS = 4096
WORD_BYTES = 8
_MAGIC = int.from_bytes(b"kvclust3", sys.byteorder)
_MAGIC_AT, _EPOCH_AT, _INCARNATION_AT, _SEAL_AT, _ADDRESS_AT = range(5)
_ADDRESS_WORDS = 14
_KEY_WORDS = 8
_PID, _STARTED, _SIZE = range(_KEY_WORDS, _KEY_WORDS + 3)
_ROW_WORDS = _KEY_WORDS + 3
_HEAD_WORDS = _ADDRESS_AT + _ADDRESS_WORDS
HEAD_BYTES = _HEAD_WORDS * WORD_BYTES
SIZE_BYTES = HEAD_BYTES + MOST_ROWS * _ROW_WORDS * WORD_BYTES


class Words(Protocol):
    """Memory by words of 8 bytes: `memoryview(memory).cast("Q")`, which stores each with one instruction."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, word: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Row:
    """A process that may have so many bytes mapped for its session. `started`: see `session_file.started_at`."""

    session: str
    pid: int
    started: int
    size_bytes: int


_MOST_EPOCH = 2**62  # microseconds: what a message carries, with room
_MOST_INCARNATIONS = 2**30  # so that arrival numbers, which lie above those of earlier ones, are carried too


class SessionTable:
    """Over words that are a table, or are to be one. For one writer; reads only, where the words are."""

    def __init__(self, words: Words) -> None:
        self._words = words

    @property
    def is_one(self) -> bool:
        """Whether this is a table of ours: one with counts that no owner ever reached is not."""
        is_plausible = self.epoch < _MOST_EPOCH and self.incarnation < _MOST_INCARNATIONS
        return self._words[_MAGIC_AT] == _MAGIC and is_plausible

    @property
    def epoch(self) -> int:
        return self._words[_EPOCH_AT]

    @property
    def incarnation(self) -> int:
        return self._words[_INCARNATION_AT]

    @property
    def address(self) -> bytes:
        """Where the incarnation of `epoch` listens; nothing where that does not stand there, or only half of it."""
        data = self._read(_ADDRESS_AT, _ADDRESS_WORDS)
        seal = self._words[_SEAL_AT]
        address = data[: seal & 0xFF]
        return address if seal and seal == _seal(self.epoch, address) else b""

    def begin(self, *, epoch_from: int) -> None:
        """A new incarnation, which listens nowhere yet: one more, in a later epoch, of at least `epoch_from`."""
        words = self._words
        if not self.is_one:
            for at in range(1, _HEAD_WORDS):
                words[at] = 0
            for number, _ in self.rows():
                self.vacate(number)
        words[_SEAL_AT] = 0  # first: nobody is to look for the new one where the old one listened
        words[_INCARNATION_AT] = self.incarnation + 1
        words[_EPOCH_AT] = max(epoch_from, self.epoch + 1)
        if not self.is_one:
            words[_MAGIC_AT] = _MAGIC  # last: all of it is there

    def listens_at(self, address: bytes) -> None:
        """Raises LimitReached where there is no room for it; nothing changed."""
        if len(address) > _ADDRESS_WORDS * WORD_BYTES:
            _refuse("bytes of an address", len(address), _ADDRESS_WORDS * WORD_BYTES, "use a shorter run folder")
        self._words[_SEAL_AT] = 0
        self._write(_ADDRESS_AT, address, _ADDRESS_WORDS)
        self._words[_SEAL_AT] = _seal(self.epoch, address)

    def row(self, number: int) -> Row | None:
        """None where it is vacant."""
        at = self._at(number)
        pid = self._words[at + _PID]
        if not pid:
            return None
        session = self._read(at, _KEY_WORDS).rstrip(b"\0").decode(errors="replace")
        return Row(session, pid, self._words[at + _STARTED], self._words[at + _SIZE])

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Those that are not vacant, and their numbers."""
        for number in range(MOST_ROWS):
            if (row := self.row(number)) is not None:
                yield number, row

    def fill(self, number: int, row: Row) -> None:
        """A vacant row. Raises LimitReached where the session's name is too long; nothing changed."""
        key, at = row.session.encode(), self._at(number)
        if len(key) > _KEY_WORDS * WORD_BYTES or b"\0" in key:
            _refuse("bytes of a session's name", len(key), _KEY_WORDS * WORD_BYTES, "give a session a shorter name")
        self._write(at, key, _KEY_WORDS)
        self._words[at + _STARTED] = row.started
        self._words[at + _SIZE] = row.size_bytes
        self._words[at + _PID] = row.pid  # last: a row with a process is a whole one

    def note(self, number: int, size_bytes: int) -> None:
        self._words[self._at(number) + _SIZE] = size_bytes

    def vacate(self, number: int) -> None:
        self._words[self._at(number) + _PID] = 0

    def _write(self, at: int, data: bytes, words: int) -> None:
        padded = data.ljust(words * WORD_BYTES, b"\0")
        for word in range(words):
            place = word * WORD_BYTES
            self._words[at + word] = int.from_bytes(padded[place : place + WORD_BYTES], sys.byteorder)

    def _read(self, at: int, words: int) -> bytes:
        return b"".join(self._words[at + word].to_bytes(WORD_BYTES, sys.byteorder) for word in range(words))

    @staticmethod
    def _at(row: int) -> int:
        return _HEAD_WORDS + row * _ROW_WORDS


def _seal(epoch: int, address: bytes) -> int:
    """Of an address, for as long as that is the epoch's; never 0."""
    checksum = crc32(address, crc32(epoch.to_bytes(WORD_BYTES, sys.byteorder)))
    return 1 << 63 | checksum << 8 | len(address)


def _refuse(limit: str, need: int, free: int, remedy: str) -> None:
    raise LimitReached(limit=limit, need=need, free=free, remedy=remedy)
