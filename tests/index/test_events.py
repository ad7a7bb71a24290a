"""What an index knows, as events: each block once, whoever has it, and never a step more than a snapshot takes."""

from __future__ import annotations

import pytest

from kvcluster.index.events import MOST_EVENTS, KnownLog, News, block_name, names_in
from kvcluster.index.prefix_index import PrefixIndex
from kvcluster.index.token_chain import BLOCK_TOKENS, digests, packed

ROOT, OTHER = b"r" * 32, b"o" * 32
LONG = list(range(100, 100 + 4 * BLOCK_TOKENS + 5))
SHORT = [*LONG[: 2 * BLOCK_TOKENS], 7, 7, 7]


def _names(ids: list[int], root: bytes = ROOT) -> set[bytes]:
    return {block_name(digest) for digest in digests(root, packed(ids))}


def _all(index: PrefixIndex) -> set[bytes]:
    return set(names_in(index.log.since(-1).stored))


def test_a_block_under_two_prefixes_is_stored_once_and_removed_only_with_the_last_of_them() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG), 1)
    seen = index.log.number
    index.insert(ROOT, packed(SHORT), 2)
    assert index.log.since(seen) == News(seen, seen, b"")
    index.remove(1)
    gone = index.log.since(seen)
    assert set(names_in(gone.removed)) == _names(LONG) - _names(SHORT)
    assert not gone.stored
    index.remove(2)
    assert set(names_in(index.log.since(gone.number).removed or b"")) <= _names(SHORT)
    assert _all(index) == set()


def test_a_block_that_only_a_longer_prefix_builds_on_is_removed_only_with_that_one() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(SHORT), 1)
    index.insert(ROOT, packed(LONG), 2, base_tokens=2 * BLOCK_TOKENS)
    index.remove(1)
    assert _all(index) == _names(LONG)
    index.remove(2)
    assert _all(index) == set()


def test_equal_tokens_under_two_roots_are_different_blocks() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG), 1)
    index.insert(OTHER, packed(LONG), 2)
    assert len(index.log) == 8
    index.remove(1)
    assert _all(index) == _names(LONG, OTHER)


def test_a_prefix_shorter_than_a_block_is_no_news() -> None:
    index = PrefixIndex()
    index.insert(ROOT, packed(LONG[:5]), 1)
    index.remove(1)
    assert index.log.number == 0


def test_what_came_and_went_in_between_is_told_as_gone_and_what_went_and_came_as_there() -> None:
    log = KnownLog()
    for number in range(9):
        log.stored(bytes([number]) * 32)
    seen = log.number
    log.stored(b"x" * 32)
    log.removed(b"x" * 32)
    log.removed(bytes(32))
    log.stored(bytes(32))
    assert log.since(seen) == News(seen + 4, seen, bytes(16), b"x" * 16)


def test_storing_what_is_known_and_removing_what_is_not_is_nothing() -> None:
    log = KnownLog()
    log.stored(b"x" * 32)
    log.stored(b"x" * 32)
    log.removed(b"y" * 32)
    assert log.number == len(log) == 1


@pytest.mark.parametrize("number", [-1, 3, 10_000])
def test_whoever_saw_what_the_log_holds_no_more_or_never_held_is_told_all(number: int) -> None:
    log = KnownLog(most_events=4)
    for count in range(8):
        log.stored(bytes([count]) * 32)
    news = log.since(number)
    assert news.after is None
    assert set(names_in(news.stored)) == {bytes([count]) * 16 for count in range(8)}
    assert log.since(4).after == 4


def test_more_events_than_blocks_are_known_are_told_as_those_blocks() -> None:
    log = KnownLog()
    log.stored(b"x" * 32)
    for count in range(9):
        log.stored(bytes([count]) * 32)
        log.removed(bytes([count]) * 32)
    assert log.since(1) == News(19, None, b"x" * 16)


def test_the_log_keeps_no_more_events_than_it_says() -> None:
    log = KnownLog()
    log.stored(b"x" * 32)
    for count in range(MOST_EVENTS):
        log.stored(count.to_bytes(32, "little"))
    assert log.since(0).after is None
    assert log.since(1).after == 1
