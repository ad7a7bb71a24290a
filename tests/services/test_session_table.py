"""The table of sessions after a kill at any store, as its next reader finds it: a whole older or newer state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from kvcluster.errors import LimitReached
from kvcluster.services.session_table import SIZE_BYTES, WORD_BYTES, Row, SessionTable

ONE, OTHER = Row("one", 17, 1_700, 0x0102_0304_0506_0708), Row("o" * 64, 18, 1_800, 5)
SOMEWHERE, ELSEWHERE = b"\0kvcluster-" + b"a" * 90, b"\0kvcluster-" + b"b" * 40

Picture = tuple[object, ...]


class Killed(Exception):
    """The writer is dead."""


class Paper:
    """Words whose writer dies at the store after so many."""

    def __init__(self, stores_left: int = 1 << 30, words: dict[int, int] | None = None) -> None:
        self.stores = 0
        self.words = words if words is not None else {}
        self._left = stores_left

    def __getitem__(self, at: int, /) -> int:
        return self.words.get(at, 0)

    def __setitem__(self, at: int, word: int, /) -> None:
        assert 0 <= word < 1 << 64
        assert at < SIZE_BYTES // WORD_BYTES
        if self.stores == self._left:
            raise Killed
        self.stores += 1
        self.words[at] = word

    def picture(self) -> Picture:
        """What the next incarnation, and whoever looks for this one, finds."""
        table = SessionTable(self)
        if not table.is_one:
            return ()
        return (table.address and table.epoch, table.address, tuple(row for _, row in table.rows()))


def life(table: SessionTable, tell: Callable[[], None]) -> None:
    """Two incarnations; `tell` after each act."""
    table.begin(epoch_from=100)
    tell()
    table.listens_at(SOMEWHERE)
    tell()
    for number, row in ((3, ONE), (7, OTHER)):
        table.fill(number, row)
        tell()
    for size_bytes in (2**40, 0, 2**63):
        table.note(3, size_bytes)
        tell()
    table.begin(epoch_from=50)
    tell()
    table.listens_at(ELSEWHERE)
    tell()
    table.vacate(3)
    tell()
    table.fill(3, OTHER)
    tell()


def test_a_writer_killed_at_any_store_leaves_an_older_state_or_a_newer_one() -> None:
    whole = Paper()
    pictures = [whole.picture()]
    life(SessionTable(whole), lambda: pictures.append(whole.picture()))
    for stores in range(whole.stores):
        paper, done = Paper(stores), [0]
        with pytest.raises(Killed):
            life(SessionTable(paper), lambda done=done: done.append(done[-1] + 1))  # type: ignore[misc]
        before, after = pictures[done[-1]], pictures[done[-1] + 1]
        between = (b"", b"", *before[2:]) if before else before  # nobody listens while another one begins
        assert paper.picture() in (before, between, after), stores


def test_whoever_begins_after_a_kill_at_any_store_keeps_every_row_and_takes_a_later_epoch() -> None:
    for stores in range(60):
        paper = Paper(stores)
        with suppress(Killed):
            life(SessionTable(paper), lambda: None)
        before = [row for _, row in SessionTable(paper).rows()]
        epoch = SessionTable(paper).epoch if SessionTable(paper).is_one else 0  # that one never listened
        again = SessionTable(Paper(words=paper.words))
        again.begin(epoch_from=0)
        assert [row for _, row in again.rows()] == before, stores
        assert (again.epoch > epoch, again.address, again.is_one) == (True, b"", True)


def test_a_table_of_anything_else_is_begun_empty_though_its_first_writer_was_killed() -> None:
    junk = dict.fromkeys(range(SIZE_BYTES // WORD_BYTES), 2**64 - 1)
    paper = Paper(1_000, dict(junk))
    with pytest.raises(Killed):
        SessionTable(paper).begin(epoch_from=7)
    again = SessionTable(Paper(words=paper.words))
    again.begin(epoch_from=7)
    assert (again.epoch, again.incarnation, again.address, list(again.rows())) == (7, 1, b"", [])


def test_an_address_that_two_incarnations_wrote_is_nobodys() -> None:
    paper = Paper()
    life(SessionTable(paper), lambda: None)
    for at in range(4, 18):
        torn = Paper(words=dict(paper.words))
        torn[at] = torn[at] ^ 0xFF
        assert SessionTable(torn).address in (b"", ELSEWHERE)  # what follows it is not its own
    assert SessionTable(paper).address == ELSEWHERE


def test_what_is_too_long_for_its_place_is_refused_and_nothing_is_written() -> None:
    paper = Paper()
    table = SessionTable(paper)
    life(table, lambda: None)
    stores = paper.stores
    with pytest.raises(LimitReached, match="address"):
        table.listens_at(b"x" * 113)
    with pytest.raises(LimitReached, match="session's name"):
        table.fill(9, Row("x" * 65, 1, 1, 0))
    assert paper.stores == stores
