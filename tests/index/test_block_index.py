"""Which blocks hold these tokens: exact, never another's, and nothing listed that nothing reaches."""

from __future__ import annotations

import pytest

from kvcluster.index import token_chain
from kvcluster.index.block_index import MOST_LOOKED_AT, BlockIndex, FoundBlocks, Listing
from kvcluster.index.identity import CacheIdentity
from kvcluster.index.token_chain import packed

ROOT, OTHER, SIZE = b"r" * 32, b"o" * 32, 4
LONG = list(range(50, 50 + 5 * SIZE))


def test_whole_blocks_are_found_in_order_and_the_first_tokens_of_the_next() -> None:
    index = BlockIndex(SIZE)
    assert index.insert(ROOT, packed(LONG), [10, 11, 12, 13, 14]) == Listing((10, 11, 12, 13, 14))
    assert index.look_up(ROOT, packed([*LONG[:10], 9, 9])) == FoundBlocks((10, 11), 12, 2)
    assert index.look_up(ROOT, packed(LONG)) == FoundBlocks((10, 11, 12, 13, 14))
    assert index.look_up(ROOT, packed(LONG[:3])) == FoundBlocks((), 10, 3)
    assert index.look_up(ROOT, packed([9, *LONG])) == FoundBlocks(())
    assert index.look_up(OTHER, packed(LONG)) == FoundBlocks(())


def test_nothing_is_listed_behind_a_block_that_somebody_else_has_and_that_does_not_give_way() -> None:
    index = BlockIndex(SIZE)
    index.insert(ROOT, packed(LONG), [10, 11])
    assert index.insert(ROOT, packed(LONG), [20, 21, 22]) == Listing(())
    assert index.insert(ROOT, packed(LONG), [20, 21, 22], gives_way={10}.__contains__) == Listing((20,), (10,))
    assert index.look_up(ROOT, packed(LONG)).blocks == (20, 11)
    assert index.insert(ROOT, packed(LONG), [20, 21, 22], gives_way={11}.__contains__) == Listing((21, 22), (11,))
    assert index.look_up(ROOT, packed(LONG)).blocks == (20, 21, 22)
    assert len(index) == 3


def test_what_is_listed_behind_a_block_that_gives_way_stays_behind_the_one_that_takes_its_place() -> None:
    index = BlockIndex(SIZE)
    index.insert(ROOT, packed(LONG), [10, 11, 12])
    assert index.insert(ROOT, packed(LONG), [20], gives_way={10}.__contains__) == Listing((20,), (10,))
    assert index.look_up(ROOT, packed(LONG)).blocks == (20, 11, 12)
    assert 10 not in index


def test_a_block_is_listed_for_one_content_whatever_its_owner_says() -> None:
    index = BlockIndex(SIZE)
    index.insert(ROOT, packed(LONG), [10, 11])
    assert index.insert(ROOT, packed([9] * SIZE), [10, 12]) == Listing(())
    assert index.insert(ROOT, packed([*LONG[:SIZE], *[9] * SIZE]), [10, 11]) == Listing(())
    assert index.look_up(ROOT, packed([9] * SIZE)) == FoundBlocks(())
    assert index.look_up(ROOT, packed(LONG)).blocks == (10, 11)


def test_a_block_that_others_follow_is_not_taken_out_and_orphans_nobody() -> None:
    index = BlockIndex(SIZE)
    index.insert(ROOT, packed(LONG), [10, 11, 12])
    with pytest.raises(ValueError, match="followed"):
        index.remove(11)
    index.remove(12)
    index.remove(11)
    assert index.look_up(ROOT, packed(LONG)) == FoundBlocks((10,))
    with pytest.raises(ValueError, match="not listed"):
        index.remove(11)


def test_content_stands_for_all_tokens_up_to_the_end_of_a_block() -> None:
    index = listed(LONG, [10, 11])
    first, second = token_chain.digests(ROOT, packed(LONG[: 2 * SIZE]), SIZE)
    assert (index.content(10), index.content(11)) == (first, second)
    assert index.contents((11, 10)) == [second, first]
    assert (index.block_of(first), index.block_of(second)) == (10, 11)
    for unknown in (lambda: index.content(12), lambda: index.block_of(b"?")):
        with pytest.raises(KeyError):
            unknown()


@pytest.mark.parametrize("tokens", range(len(LONG) + 3))
def test_a_look_up_is_exact_to_the_token(tokens: int) -> None:
    index = listed(LONG, [1, 2, 3, 4, 5])
    whole, rest = divmod(min(tokens, len(LONG)), SIZE)
    expected = FoundBlocks((1, 2, 3, 4, 5)[:whole], whole + 1 if rest else None, rest)
    assert index.look_up(ROOT, packed([*LONG, 7, 7, 7][:tokens])) == expected
    assert index.look_up(ROOT, packed([*LONG[:tokens], 7])) == expected


def test_of_blocks_that_go_on_alike_the_one_that_shares_most_is_begun_and_of_equal_ones_the_newest() -> None:
    index = listed([*LONG[:SIZE], 1, 2, 9, 9], [1, 2])
    index.insert(ROOT, packed([*LONG[:SIZE], 1, 2, 3, 9]), [1, 3])
    index.insert(ROOT, packed([*LONG[:SIZE], 1, 2, 8, 8]), [1, 4])
    assert index.look_up(ROOT, packed([*LONG[:SIZE], 1, 2, 3, 4])) == FoundBlocks((1,), 3, 3)
    assert index.look_up(ROOT, packed([*LONG[:SIZE], 1, 2, 7])) == FoundBlocks((1,), 4, 2)


def test_a_search_for_what_goes_on_alike_looks_at_few_blocks() -> None:
    index = listed([*LONG[:SIZE], 1, 2, 3, 4], [0, 1])
    for number in range(MOST_LOOKED_AT):
        index.insert(ROOT, packed([*LONG[:SIZE], 50 + number, 0, 0, 0]), [0, 2 + number])
    assert index.look_up(ROOT, packed([*LONG[:SIZE], 1, 2, 3])) == FoundBlocks((0,))


def test_all_behind_a_block_goes_before_it_and_what_is_beside_it_stays() -> None:
    index = branched()
    going = []
    for block in index.going(2):
        index.remove(block)
        going.append(block)
    assert sorted(going) == [2, 3, 4, 5, 8]
    assert going[-1] == 2
    assert index.look_up(ROOT, packed(LONG)).blocks == (1,)
    assert index.look_up(ROOT, packed([*LONG[:SIZE], *[7] * 2 * SIZE])).blocks == (1, 6, 7)


def test_what_goes_is_a_step_a_block_from_the_end_and_may_end_early() -> None:
    index = branched()
    for block, _ in zip(index.going(1), range(2), strict=False):
        index.remove(block)
    assert len(index) == 6
    assert list(index.going(9)) == []


def test_where_a_block_that_is_to_go_stays_none_goes_after_it() -> None:
    assert len(list(branched().going(1))) == 1


# --- faults that users of comparable systems met ---------------------------------------------------------------------


def test_case_31_an_adapter_named_like_another_tenants_salt_finds_nothing() -> None:
    salted = CacheIdentity("m", "f32", "pages", salt="secret").root
    named = CacheIdentity("m", "f32", "pages", adapter="secret").root
    index = BlockIndex(SIZE)
    index.insert(salted, packed(LONG), [1, 2, 3, 4, 5])
    assert index.look_up(named, packed(LONG)) == FoundBlocks(())
    assert index.look_up(salted, packed(LONG)).blocks == (1, 2, 3, 4, 5)


class OneDigest:
    def __init__(self, data: bytes) -> None:
        pass

    def digest(self) -> bytes:
        return b"always"


def test_case_32_digests_that_collide_serve_nobody_elses_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_chain, "sha256", OneDigest)
    index = BlockIndex(SIZE)
    assert index.insert(ROOT, packed(LONG), [10, 11]) == Listing((10,))
    assert index.look_up(ROOT, packed([9] * SIZE)) == FoundBlocks(())
    assert index.insert(ROOT, packed([9] * SIZE), [12]) == Listing(())
    assert index.look_up(ROOT, packed(LONG)) == FoundBlocks((10,))


def test_case_32_equal_tokens_under_another_root_are_not_found_though_their_digests_collide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_chain, "sha256", OneDigest)
    index = listed(LONG[:SIZE], [10])
    assert index.look_up(OTHER, packed(LONG[:SIZE])) == FoundBlocks(())
    assert index.insert(OTHER, packed(LONG[:SIZE]), [11]) == Listing(())
    assert (len(index), index.roots) == (1, 1)


def test_case_32_tokens_whose_content_is_anothers_are_not_listed_nor_what_follows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same, other = LONG[SIZE : 2 * SIZE], [9] * SIZE

    class OneForTheSame:
        def __init__(self, data: bytes) -> None:
            self._tokens = data[-SIZE * 4 :]

        def digest(self) -> bytes:
            return self._tokens

    monkeypatch.setattr(token_chain, "sha256", OneForTheSame)
    index = listed([*LONG[:SIZE], *same], [1, 2])
    assert index.insert(ROOT, packed([*other, *same, *LONG[:SIZE]]), [3, 4, 5]) == Listing((3,))
    assert index.look_up(ROOT, packed([*other, *same])) == FoundBlocks((3,))


def test_case_33_a_number_that_is_used_again_is_nobodys_old_block() -> None:
    index = listed(LONG[:SIZE], [1])
    index.remove(1)
    assert index.look_up(ROOT, packed(LONG[:SIZE])) == FoundBlocks(())
    index.insert(ROOT, packed(LONG[SIZE:]), [1 | 1 << 32])
    assert index.look_up(ROOT, packed(LONG[:SIZE])) == FoundBlocks(())
    assert index.look_up(ROOT, packed(LONG[SIZE : 2 * SIZE])).blocks == (1 | 1 << 32,)
    assert 1 not in index


def test_case_36_an_empty_prompt_finds_and_lists_nothing() -> None:
    index = listed(LONG, [1, 2, 3, 4, 5])
    assert index.look_up(ROOT, b"") == FoundBlocks(())
    assert index.insert(OTHER, b"", []) == Listing(())
    assert (len(index), index.roots) == (5, 1)


def test_case_39_whatever_goes_first_no_block_is_left_that_no_look_up_reaches() -> None:
    index = branched()
    prompts = [LONG, [*LONG[:SIZE], *[7] * 2 * SIZE], [*LONG[: 2 * SIZE], *[8] * SIZE]]
    for block in index.going(1):
        index.remove(block)
        reached = {b for prompt in prompts for b in index.look_up(ROOT, packed(prompt)).blocks}
        assert len(reached) == len(index)
    assert (len(index), index.roots) == (0, 0)


def test_case_41_each_block_of_a_long_prompt_is_hashed_once_when_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, hashed = token_chain.sha256, []

    def counting(data: bytes) -> object:
        hashed.append(len(data))
        return real(data)

    monkeypatch.setattr(token_chain, "sha256", counting)
    index, ids = BlockIndex(SIZE), packed(range(1_000 * SIZE))
    index.look_up(ROOT, ids)
    assert hashed == []
    index.insert(ROOT, ids, range(500))
    assert index.look_up(ROOT, ids).blocks == tuple(range(500))
    index.insert(ROOT, ids, range(1_000))
    assert hashed == [32 + 4 * SIZE] * 1_000


def listed(ids: list[int], blocks: list[int]) -> BlockIndex:
    index = BlockIndex(SIZE)
    assert index.insert(ROOT, packed(ids), blocks) == Listing(tuple(blocks))
    return index


def branched() -> BlockIndex:
    """1 is followed by 2 to 5, and by 6 and 7; 2 is followed by 8 too."""
    index = listed(LONG, [1, 2, 3, 4, 5])
    index.insert(ROOT, packed([*LONG[:SIZE], *[7] * 2 * SIZE]), [1, 6, 7])
    index.insert(ROOT, packed([*LONG[: 2 * SIZE], *[8] * SIZE]), [1, 2, 8])
    return index
