"""Where a request is sent: longest known prefix, then free bytes, then requests; and not where too many are."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.index.events import News, block_name
from kvcluster.index.token_chain import BLOCK_TOKENS, digests, packed
from kvcluster.services.known_blocks import KnownBlocks
from kvcluster.services.routing import Decision, Follower, KnownPrefixes
from kvcluster.services.routing.known import MOST_AHEAD, MOST_NOTED
from kvcluster.services.routing.pending import MOST_PENDING, PENDING_S, PendingBlocks
from kvcluster.testing.clock import ManualClock
from tests.examples import examples

ROOT = b"r" * 32
DEVICES = ("a", "b", "c")
MIB = 2**20


class Site:
    """Three devices, of which "a" has the most room and "c" the least."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.known = KnownPrefixes(clock=self.clock)
        for name, free in zip(DEVICES, (30, 20, 10), strict=True):
            self.known.join(name)
            self.known.has_free(name, free * MIB)

    def knows(self, device: str, ids: list[int], blocks: int) -> None:
        self.known.changed(device, News(0, 0, _blob(ids, blocks)))

    def forgets(self, device: str, ids: list[int], blocks: int) -> None:
        self.known.changed(device, News(0, 0, b"", _blob(ids, blocks)))

    def decide(self, ids: list[int], among: tuple[str, ...] = DEVICES, block_bytes: int = 0) -> Decision | None:
        mask = self.known.set_of(among)
        blocks = len(ids) // BLOCK_TOKENS
        return self.known.decide(digests(ROOT, packed(ids)), among=mask, prompt_blocks=blocks, block_bytes=block_bytes)


def _ids(seed: int, blocks: int) -> list[int]:
    return [seed * 1000 + block for block in range(blocks) for _ in range(BLOCK_TOKENS)]


def _blob(ids: list[int], blocks: int) -> bytes:
    return b"".join(block_name(digest) for digest in digests(ROOT, packed(ids[: blocks * BLOCK_TOKENS])))


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_longest_known_prefix_comes_before_free_bytes(site: Site) -> None:
    ids = _ids(1, 8)
    site.knows("b", ids, 2)
    site.knows("c", ids, 5)
    assert site.decide(ids) == Decision("c", 5)


def test_of_devices_that_know_as_much_the_one_with_the_most_free_bytes_is_chosen(site: Site) -> None:
    ids = _ids(1, 8)
    site.knows("c", ids, 3)
    site.knows("b", ids, 3)
    assert site.decide(ids) == Decision("b", 3)


def test_of_devices_with_as_many_free_bytes_the_one_with_the_fewest_requests_is_chosen(site: Site) -> None:
    for name, requests in zip(DEVICES, (3, 1, 2), strict=True):
        site.known.has_free(name, MIB)
        site.known.has_requests(name, requests)
    assert site.decide(_ids(1, 4)) == Decision("b", 0)


def test_of_devices_that_are_alike_in_all_else_the_one_that_knows_the_least_is_chosen(site: Site) -> None:
    for name, blocks in zip(DEVICES, (3, 2, 1), strict=True):
        site.known.has_free(name, MIB)
        site.knows(name, _ids(1, blocks), blocks)
    assert site.decide(_ids(2, 4)) == Decision("c", 0)


def test_a_prompt_that_nobody_knows_and_one_shorter_than_a_block_go_where_most_is_free(site: Site) -> None:
    assert site.decide(_ids(1, 4)) == Decision("a", 0)
    assert site.decide([1, 2, 3]) == Decision("a", 0)


def test_only_devices_that_are_asked_for_are_chosen_and_nobody_where_none_is(site: Site) -> None:
    ids = _ids(1, 4)
    site.knows("c", ids, 4)
    assert site.decide(ids, among=("a", "b")) == Decision("a", 0)
    assert site.decide(ids, among=()) is None


def test_a_device_that_was_lost_is_known_to_have_nothing_at_once(site: Site) -> None:
    ids = _ids(1, 4)
    site.knows("c", ids, 4)
    site.knows("b", ids, 1)
    site.known.lost("c")
    assert site.decide(ids) == Decision("b", 1)
    assert len(site.known) == 1


def test_a_block_that_one_of_two_devices_removed_is_known_at_the_other(site: Site) -> None:
    ids = _ids(1, 4)
    site.knows("c", ids, 4)
    site.knows("b", ids, 4)
    site.forgets("b", ids, 4)
    assert site.decide(ids) == Decision("c", 4)


def test_a_device_that_left_gives_its_place_to_another_which_knows_nothing(site: Site) -> None:
    ids = _ids(1, 4)
    site.knows("c", ids, 4)
    site.known.leave("c")
    assert site.decide(ids, among=("a", "b", "d")) == Decision("a", 0)
    assert not site.known.known_at("d")


def test_two_prompts_that_begin_alike_and_arrive_together_go_to_one_device(site: Site) -> None:
    ids = _ids(1, 6)
    assert site.decide(ids) == Decision("a", 0)
    site.known.has_free("a", 0)
    assert site.decide([*ids[: 4 * BLOCK_TOKENS], 7, *ids[4 * BLOCK_TOKENS :]]) == Decision("a", 4)


def test_what_is_only_about_to_be_known_is_believed_for_a_while_however_many_rely_on_it(site: Site) -> None:
    ids = _ids(1, 6)
    site.decide(ids)
    site.known.has_free("a", 0)
    site.clock.advance(0.6 * PENDING_S)
    assert site.decide(ids) == Decision("a", 6)
    site.clock.advance(0.6 * PENDING_S)
    assert site.decide(ids) == Decision("b", 0)
    site.known.has_free("b", 0)
    assert site.decide(ids) == Decision("b", 6)


def test_what_was_about_to_be_known_is_forgotten_when_its_device_says_that_it_went(site: Site) -> None:
    ids = _ids(1, 6)
    site.decide(ids)
    site.knows("a", ids, 6)
    site.forgets("a", ids, 6)
    site.known.has_free("a", 0)
    assert site.decide(ids) == Decision("b", 0)


def test_what_was_about_to_be_known_is_forgotten_when_its_device_begins_anew_and_not_when_it_tells_all(
    site: Site,
) -> None:
    ids, follower = _ids(1, 6), Follower("a", site.known)
    assert follower.take(KnownBlocks(5, News(0, None, b""), 30 * MIB))
    site.decide(ids)
    assert follower.take(KnownBlocks(5, News(9, None, b""), 0))
    assert site.decide(ids) == Decision("a", 6)
    assert follower.take(KnownBlocks(6, News(0, None, b""), 0))
    assert site.decide(ids) == Decision("b", 0)


def test_a_device_with_many_more_requests_than_the_others_is_not_chosen_for_its_prefix(site: Site) -> None:
    ids = _ids(1, 8)
    site.knows("c", ids, 8)
    site.known.has_requests("c", MOST_AHEAD)
    assert site.decide(ids) == Decision("c", 8)
    site.known.has_requests("c", MOST_AHEAD + 1)
    assert site.decide(ids) == Decision("a", 0)


@pytest.mark.parametrize(("blocks", "chosen"), [(8, "c"), (1, "a")])
def test_the_longer_the_prefix_the_more_requests_a_device_may_have_beside_the_others(
    site: Site, blocks: int, chosen: str
) -> None:
    ids = _ids(1, 8)
    site.knows("c", ids, blocks)
    for name, requests in zip(DEVICES, (20, 20, 20 + MOST_AHEAD + 15), strict=True):
        site.known.has_requests(name, requests)
    decision = site.decide(ids)
    assert decision is not None
    assert decision.device == chosen


def test_where_the_longest_prefix_is_too_busy_a_shorter_one_elsewhere_is_taken(site: Site) -> None:
    ids = _ids(1, 8)
    site.knows("c", ids, 8)
    site.knows("b", ids, 3)
    site.known.has_requests("c", 10 * MOST_AHEAD)
    assert site.decide(ids) == Decision("b", 3)


def test_where_all_that_are_asked_for_are_too_busy_the_least_busy_one_is_chosen(site: Site) -> None:
    site.known.has_requests("b", 9 * MOST_AHEAD)
    site.known.has_requests("c", 7 * MOST_AHEAD)
    assert site.decide(_ids(1, 4), among=("b", "c")) == Decision("c", 0)


def test_what_a_prompt_will_take_is_counted_off_until_the_device_tells_again(site: Site) -> None:
    assert site.decide(_ids(1, 4), block_bytes=4 * MIB) == Decision("a", 0)
    assert site.decide(_ids(2, 4), block_bytes=4 * MIB) == Decision("b", 0)
    site.known.has_free("a", 30 * MIB)
    assert site.decide(_ids(3, 4), block_bytes=4 * MIB) == Decision("a", 0)


def test_a_burst_of_short_prompts_with_long_answers_goes_to_all_devices(site: Site) -> None:
    for name in DEVICES:
        site.known.has_free(name, 30 * MIB)
    decisions = [
        site.known.decide(iter(()), among=site.known.set_of(DEVICES), prompt_blocks=1, answer_bytes=MIB)
        for _ in range(2 * len(DEVICES))
    ]
    assert sorted(decision.device for decision in decisions if decision) == sorted(2 * DEVICES)


def test_no_more_of_a_prompt_is_hashed_than_is_known_and_noted(site: Site) -> None:
    ids = _ids(1, 4 * MOST_NOTED)
    site.knows("c", ids, 10)
    hashed = iter(digests(ROOT, packed(ids)))
    site.known.decide(hashed, among=site.known.set_of(DEVICES), prompt_blocks=4 * MOST_NOTED)
    assert sum(1 for _ in hashed) == 3 * MOST_NOTED - 10


def test_a_thousand_devices_are_chosen_from_by_their_room(site: Site) -> None:
    names = tuple(f"device {number}" for number in range(1_000))
    for number, name in enumerate(names):
        site.known.has_free(name, number)
    assert site.decide(_ids(1, 2), among=names[:500]) == Decision("device 499", 0)


def test_no_more_blocks_are_pending_than_it_says() -> None:
    pending = PendingBlocks()
    for number in range(MOST_PENDING + 5):
        pending.note([number.to_bytes(16, "big")], 1, 0.0)
    assert len(pending) == MOST_PENDING
    assert pending.mask_at((4).to_bytes(16, "big"), 0.0) == 0
    assert pending.mask_at((5).to_bytes(16, "big"), 0.0) == 1


def test_where_a_device_knows_a_prompt_it_is_preferred_to_one_that_is_about_to(site: Site) -> None:
    ids = _ids(1, 6)
    assert site.decide(ids) == Decision("a", 0)
    site.knows("c", ids, 6)
    assert site.decide(ids) == Decision("c", 6)
    site.known.has_requests("c", MOST_AHEAD + 1)
    assert site.decide(ids) == Decision("a", 6)


PLACES = st.builds(  # what a prompt's blocks hold: most begin alike, for more blocks than are looked at once
    lambda alike, rest: [0] * alike + rest, st.integers(0, 3 * MOST_NOTED), st.lists(st.integers(1, 2), max_size=3)
)


@given(
    known=st.lists(st.tuples(st.sampled_from(DEVICES), PLACES), max_size=6),
    free=st.tuples(*[st.integers(0, 2)] * 3),
    among=st.sets(st.sampled_from(DEVICES), min_size=1),
    prompt=PLACES,
)
@settings(max_examples=examples(200))
def test_a_decision_is_that_of_whoever_counts_the_blocks_one_by_one(
    known: list[tuple[str, list[int]]], free: tuple[int, ...], among: set[str], prompt: list[int]
) -> None:
    site = Site()
    for name, free_bytes in zip(DEVICES, free, strict=True):
        site.known.has_free(name, free_bytes)
    for device, places in known:
        site.knows(device, _of(places), len(places))

    def common(device: str) -> int:
        paths = [places for name, places in known if name == device]
        return max((_equal(places, prompt) for places in paths), default=0)

    def blocks(device: str) -> int:
        return len(site.known.known_at(device))

    best = max(sorted(among), key=lambda each: (common(each), free[DEVICES.index(each)], -blocks(each)))
    assert site.decide(_of(prompt), among=tuple(among)) == Decision(best, common(best))


def _of(places: list[int]) -> list[int]:
    return [place for place in places for _ in range(BLOCK_TOKENS)]


def _equal(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
