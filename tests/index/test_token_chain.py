"""Ids as bytes, and chains of digests over their blocks."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.index import token_chain
from kvcluster.index.token_chain import blocks_of, common_tokens, count_of, digests, packed

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_a_chain_is_the_same_in_every_version() -> None:
    [first, second] = digests(b"root", packed(range(35)))
    assert first.hex() == "f52f6c343c6f2c7e93a3c1b19fac68ceec7a7fa91717fc76c2b902e18c02721b"
    assert second.hex() == "5b4fd7791114b5026b403139ca257fd35ce028f8c299e42c0fffc5e08ca48bb8"


@given(IDS)
def test_ids_are_four_bytes_each_the_lowest_first(ids: list[int]) -> None:
    assert packed(ids) == b"".join(token.to_bytes(4, "little") for token in ids)
    assert count_of(packed(ids)) == len(ids)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_id_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="token id"):
        packed([1, token])


def test_a_part_of_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        count_of(b"12345")


@given(IDS, IDS, IDS)
def test_common_tokens_are_counted_one_by_one(start: list[int], one: list[int], other: list[int]) -> None:
    left, right = start + one, start + other
    expected = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    assert common_tokens(packed(left), packed(right)) == expected


@given(IDS, st.integers(1, 7))
def test_a_digest_stands_for_all_tokens_up_to_its_block(ids: list[int], size: int) -> None:
    chain = list(digests(b"r", packed(ids), size))
    assert len(chain) == len(ids) // size
    for place in range(len(chain)):
        changed = [*ids]
        changed[place * size] ^= 1
        other = list(digests(b"r", packed(changed), size))
        assert other[:place] == chain[:place]
        assert not set(other[place:]) & set(chain[place:])
    assert not set(chain) & set(digests(b"s", packed(ids), size))


@given(st.integers(0, 150), st.integers(0, 7), st.integers(1, 2))
def test_the_blocks_of_ids_are_all_whole_ones_however_many(blocks: int, more: int, size: int) -> None:
    ids = packed(range(blocks * size)) + b"more"[: more % (4 * size)]
    slices = [ids[begin : begin + 4 * size] for begin in range(0, 4 * size * blocks, 4 * size)]
    assert list(blocks_of(ids, size))[:blocks] == slices
    assert len(list(blocks_of(ids, size))) == len(ids) // (4 * size)


def test_a_long_prompt_is_hashed_once_and_a_miss_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counting(data: bytes) -> object:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(token_chain, "sha256", counting)
    ids = packed(range(16 * 1_000))
    next(digests(b"r" * 32, ids))
    assert hashed == [32 + 64]
    hashed.clear()
    assert len(list(digests(b"r" * 32, ids))) == 1_000
    assert hashed == [32 + 64] * 1_000
    assert b"".join(blocks_of(ids)) == ids
