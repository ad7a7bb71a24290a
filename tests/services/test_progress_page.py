"""A progress page says what was last said of each text, wherever its writer was killed, and never anything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcluster.driver.linux import create_sparse
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import packed
from kvcluster.services.progress_page import (
    FILE_BYTES,
    HEAD_BYTES,
    MOST_IDS,
    SLOT_BYTES,
    SLOTS,
    Found,
    ProgressPage,
    Stage,
    encoded,
    is_over,
    texts_of,
)

LABEL, OTHER = bytes(range(16)), bytes(16)
REQUEST = RequestId("s", 7, 2)
BLOCK = 4096
EMPTY = bytes(BLOCK)


class Killed(Exception):
    """The writer is dead."""


class Paper:
    """Memory whose writer dies after so many bytes: those of one store reach it in any order that a copy may have."""

    def __init__(self, bytes_left: int = 1 << 30, *, from_the_end: bool = False) -> None:
        self._blocks: dict[int, bytearray] = {}  # as the kernel has it: few of its bytes are ever written
        self.written = 0
        self.stores: list[range] = []  # bytes written before and after each
        self._left = bytes_left
        self._from_the_end = from_the_end

    def __setitem__(self, place: slice, data: bytes, /) -> None:
        self.stores.append(range(self.written, self.written + len(data)))
        count = min(len(data), self._left)
        start = place.start + (len(data) - count if self._from_the_end else 0)
        piece = data[len(data) - count :] if self._from_the_end else data[:count]
        for at, byte in enumerate(piece, start):
            self._blocks.setdefault(at // BLOCK, bytearray(BLOCK))[at % BLOCK] = byte
        self._left -= count
        self.written += count
        if count < len(data):
            raise Killed

    def read(self, place: int, size_bytes: int) -> bytes:
        blocks = range(place // BLOCK, (place + size_bytes) // BLOCK + 1)
        data = b"".join(bytes(self._blocks.get(block, EMPTY)) for block in blocks)
        return data[place % BLOCK :][:size_bytes]

    def texts(self) -> tuple[Found, ...]:
        return texts_of(self.read)[0]


def life(page: ProgressPage, tell: Callable[[], None]) -> None:
    """A text that computes, loses its memory, goes on and ends; and another one in its slot. `tell` after each word."""
    slot = page.begin(LABEL)
    assert slot is not None
    tell()
    slot.wrote(REQUEST, 16, [], computed=16)
    tell()
    for step in range(3):
        slot.wrote(REQUEST, 17 + step, [100 + step], computed=17 + step)
        tell()
    slot.lost()
    tell()
    slot.wrote(RequestId("s", 8), 19, [103, 104], computed=19)
    tell()
    slot.done([105])
    tell()
    for _ in range(SLOTS):
        again = page.begin(OTHER)
        tell()
    assert again is slot
    again.wrote(REQUEST, 3, [1, 2], computed=3)
    tell()


def pictures() -> list[tuple[Found, ...]]:
    """What a reader sees before and after each word of `life`."""
    paper = Paper()
    page = ProgressPage(paper)
    seen = [paper.texts()]
    life(page, lambda: seen.append(paper.texts()))
    return seen


def test_a_reader_sees_what_was_last_said() -> None:
    seen = pictures()
    first, (lost, on, done), (begun, other) = seen[2], seen[6:9], seen[-2:]
    assert [text.standing.stage for text in (*first, *lost, *on, *done)] == [
        Stage.RUNNING,
        Stage.BARE,
        Stage.RUNNING,
        Stage.DONE,
    ]
    [text] = on
    assert text.token_ids == packed([100, 101, 102, 103, 104])
    assert (text.standing.number, text.standing.written, text.standing.computed) == (8, 19, 19)
    assert done[0].token_ids == packed([100, 101, 102, 103, 104, 105])
    assert {text.standing.label for text in begun} == {OTHER}
    assert sorted(text.token_ids for text in other)[-1] == packed([1, 2])


@pytest.mark.parametrize("from_the_end", [False, True], ids=["forwards", "backwards"])
def test_a_writer_killed_in_any_store_leaves_what_it_had_said_or_is_saying(from_the_end: bool) -> None:
    whole = Paper()
    life(ProgressPage(whole), lambda: None)
    allowed = pictures()
    moments = {at for store in whole.stores for at in (*store[::9], store[-1])}
    for bytes_left in sorted(moments)[:160] + sorted(moments)[-30:]:  # between them slots alike are begun
        paper, said = Paper(bytes_left, from_the_end=from_the_end), [0]
        with pytest.raises(Killed):
            life(ProgressPage(paper), lambda said=said: said.append(said[-1] + 1))  # type: ignore[misc]
        seen, before, after = paper.texts(), allowed[said[-1]], allowed[said[-1] + 1]
        between = tuple(text for text in before if text in after)  # a slot is nobody's before it is another's
        assert seen in (before, between, after), bytes_left


def test_a_process_that_is_killed_in_the_middle_of_its_words_leaves_a_whole_one() -> None:
    descriptor = create_sparse(FILE_BYTES)
    code = (
        "import sys; from kvcluster.ids import RequestId; from kvcluster.services.progress_page import *\n"
        "slot = ProgressPage(mapped(int(sys.argv[1]))).begin(bytes(range(16)))\n"
        "for n in range(MOST_IDS):\n"
        "    slot.wrote(RequestId('s', n), n, [n], computed=n)\n"
        "    if n == 50: print('on the way', flush=True)\n"
        "print('done', flush=True)"
    )
    command = [sys.executable, "-c", code, str(descriptor)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[descriptor]) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    [text], _ = texts_of(lambda place, size_bytes: os.pread(descriptor, size_bytes, place))
    os.close(descriptor)
    assert text.standing.number == text.standing.written == text.standing.emitted - 1 >= 50
    assert text.token_ids == packed(range(text.standing.emitted))


@pytest.mark.parametrize("last_word", [ProgressPage.void, ProgressPage.close])
def test_nothing_is_written_after_the_last_word(last_word: Callable[[ProgressPage], None]) -> None:
    paper = Paper()
    page = ProgressPage(paper)
    slot = page.begin(LABEL)
    assert slot is not None
    assert not is_over(paper.read)
    last_word(page)
    written = paper.written
    slot.wrote(REQUEST, 5, [1], computed=5)
    ProgressPage.close(page)
    assert (is_over(paper.read), paper.written) == (True, written)
    assert texts_of(paper.read)[1] is (last_word is ProgressPage.close)


def test_a_page_that_moves_keeps_the_words_and_no_memory() -> None:
    old, new = Paper(), Paper()
    page = ProgressPage(old)
    slot, done = page.begin(LABEL), page.begin(OTHER)
    assert slot is not None
    assert done is not None
    slot.wrote(REQUEST, 5, [1, 2], computed=6)
    done.done([9])
    page.move_to(new)
    assert is_over(old.read)
    assert not is_over(new.read)
    first, second = new.texts()
    assert (first.standing.stage, first.standing.computed, first.token_ids) == (Stage.BARE, 6, packed([1, 2]))
    assert (second.standing.stage, second.token_ids) == (Stage.DONE, packed([9]))
    slot.wrote(REQUEST, 7, [3], computed=7)
    assert new.texts()[0].token_ids == packed([1, 2, 3])


def test_a_text_of_more_ids_than_there_is_room_for_is_not_noted_any_more() -> None:
    paper = Paper()
    page = ProgressPage(paper)
    slot = page.begin(LABEL)
    assert slot is not None
    slot.wrote(REQUEST, 5, list(range(MOST_IDS)), computed=5)
    assert len(paper.texts()) == 1
    slot.wrote(REQUEST, 6, [1], computed=6)
    slot.wrote(REQUEST, 7, [1], computed=7)
    slot.done([])
    assert paper.texts() == ()


def test_slots_are_given_out_while_there_are_any_and_come_back_when_nobody_wants_the_text() -> None:
    page = ProgressPage(Paper())
    slots = [page.begin(LABEL) for _ in range(SLOTS)]
    assert None not in slots
    assert page.begin(LABEL) is None
    assert slots[3] is not None
    slots[3].drop()
    slots[3].drop()
    assert page.begin(OTHER) is slots[3]
    assert page.begin(OTHER) is None


@pytest.mark.parametrize("junk", [b"\xff" * 4096, os.urandom(4096), bytes(4096)], ids=["ones", "noise", "zeros"])
def test_a_page_of_anything_is_read_without_a_word(junk: bytes) -> None:
    data = (junk * (FILE_BYTES // len(junk) + 1))[:FILE_BYTES]
    assert texts_of(lambda place, size_bytes: data[place : place + size_bytes])[0] == ()


@pytest.mark.parametrize("claim", [{"emitted": MOST_IDS + 1}, {"computed": 2**63}], ids=["ids", "figures"])
def test_a_record_that_claims_more_than_there_can_be_is_not_believed(claim: dict[str, int]) -> None:
    paper = Paper()
    page = ProgressPage(paper)
    slot = page.begin(LABEL)
    assert slot is not None
    slot.wrote(REQUEST, 5, [1], computed=5)
    [text] = paper.texts()
    forged, [place] = replace(text.standing, **claim), [at for at in places() if paper.read(at, 8) != bytes(8)]
    paper[place : place + len(encoded(99, forged))] = encoded(99, forged)
    assert forged not in [text.standing for text in paper.texts()]


def places() -> range:
    """Where slots begin."""
    return range(HEAD_BYTES, FILE_BYTES, SLOT_BYTES)
