"""Sequences in host pages, one act at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvcluster.errors import OutOfBlocks
from kvcluster.paged.cache import PagedKvCache
from kvcluster.paged.shape import PageShape
from tests.paged.paged_model import SIZE, rows, small_pool, values_of

AZURE = Path(__file__).with_name("azure_conversation_lengths.txt")


def test_a_write_after_a_fork_copies_the_last_block_alone() -> None:
    with small_pool(8) as pool:
        cache = PagedKvCache(pool)
        parent = cache.open()
        cache.append(parent, *rows([1, 2, 3, 4, 5]))
        [child] = cache.fork(parent, 1)
        cache.append(child, *rows([60]))
        assert cache.block_table(child)[0] == cache.block_table(parent)[0]
        assert cache.block_table(child)[1] != cache.block_table(parent)[1]
        assert values_of(cache, parent) == [1, 2, 3, 4, 5]
        assert values_of(cache, child) == [1, 2, 3, 4, 5, 60]


def test_the_last_to_write_into_a_block_keeps_it() -> None:
    with small_pool(3) as pool:
        cache = PagedKvCache(pool)
        parent = cache.open()
        cache.append(parent, *rows([1]))
        children = cache.fork(parent, 2)
        for value, sequence in enumerate([*children, parent], start=7):
            cache.append(sequence, *rows([value]))
        assert pool.free_blocks == 0
        assert [values_of(cache, s) for s in (*children, parent)] == [[1, 7], [1, 8], [1, 9]]


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    with small_pool(3) as pool:
        cache = PagedKvCache(pool)
        parent = cache.open()
        cache.append(parent, *rows([1, 2, 3, 4]))
        [child] = cache.fork(parent, 1)
        cache.append(child, *rows([5]))
        assert pool.free_blocks == 1
        assert cache.block_table(child)[0] == cache.block_table(parent)[0]


def test_a_write_that_finds_no_block_for_its_copy_is_refused_and_everybody_keeps_what_he_had() -> None:
    with small_pool(1) as pool:
        cache = PagedKvCache(pool)
        parent = cache.open()
        cache.append(parent, *rows([1, 2]))
        [child] = cache.fork(parent, 1)
        for sequence in (parent, child):
            with pytest.raises(OutOfBlocks):
                cache.append(sequence, *rows([3]))
            with pytest.raises(OutOfBlocks):
                cache.ensure_page_for_write(sequence)
        assert values_of(cache, parent) == values_of(cache, child) == [1, 2]
        cache.drop(child)
        cache.append(parent, *rows([3]))
        assert values_of(cache, parent) == [1, 2, 3]


def test_the_page_for_the_next_token_is_the_sequences_own() -> None:
    with small_pool(4) as pool:
        cache = PagedKvCache(pool)
        parent = cache.open()
        cache.append(parent, *rows([1, 2]))
        [child] = cache.fork(parent, 1)
        page = cache.ensure_page_for_write(child)
        assert page not in cache.block_table(parent)
        assert page == cache.ensure_page_for_write(child) == cache.block_table(child)[-1]


def test_beams_move_by_their_tables_and_no_byte_is_copied() -> None:
    with small_pool(6) as pool:
        cache = PagedKvCache(pool)
        first = cache.open()
        cache.append(first, *rows([1, 2, 3, 4, 5]))
        beams = [first, *cache.fork(first, 2)]
        for value, beam in enumerate(beams, start=10):
            cache.append(beam, *rows([value]))
        before = pool.tensor.clone()
        cache.reorder(beams, [2, 2, 0])
        assert torch.equal(pool.tensor, before)
        assert [values_of(cache, beam)[-1] for beam in beams] == [12, 12, 10]


@pytest.mark.parametrize(
    ("sequences", "parents"), [([0, 1], [0]), ([0, 1], [0, 2]), ([0, 0], [0, 1]), ([0, 1], [0, -1])]
)
def test_beams_without_a_parent_each_are_refused_and_stay_where_they_are(
    sequences: list[int], parents: list[int]
) -> None:
    with small_pool(6) as pool:
        cache = PagedKvCache(pool)
        beams = [cache.open(), cache.open()]
        for beam in beams:
            cache.append(beam, *rows([beam]))
        with pytest.raises(ValueError, match="parent"):
            cache.reorder([beams[i] for i in sequences], parents)
        assert [values_of(cache, beam) for beam in beams] == [[beams[0]], [beams[1]]]


def test_bad_input_is_refused_and_changes_nothing() -> None:
    with small_pool(4) as pool:
        cache = PagedKvCache(pool)
        sequence = cache.open()
        cache.append(sequence, *rows([1]))
        k, v = rows([1, 2])
        for misuse in (
            lambda: cache.append(sequence, k[:, :, :0], v[:, :, :0]),
            lambda: cache.append(sequence, k, v[:, :, :1]),
            lambda: cache.append(sequence, k[:1], v[:1]),
            lambda: cache.append(99, k, v),
            lambda: cache.fork(sequence, 0),
            lambda: cache.fork(cache.open(), 1),
            lambda: cache.truncate(sequence, 2),
            lambda: cache.truncate(sequence, -1),
            lambda: cache.drop(99),
            lambda: cache.pool.gather_batched_paged_kv(0, [], []),
            lambda: cache.pool.gather_batched_paged_kv(0, [[0]], [SIZE + 1]),
            lambda: cache.pool.gather_batched_paged_kv(0, [[0]], [0]),
            lambda: cache.pool.gather_batched_paged_kv(0, [[4]], [1]),
            lambda: cache.pool.gather_batched_paged_kv(2, [[0]], [1]),
            lambda: cache.pool.gather_batched_paged_kv(0, [[0]], [1, 1]),
        ):
            with pytest.raises(ValueError, match=r"not|has|tables"):
                misuse()
        assert values_of(cache, sequence) == [1]
        assert pool.free_blocks == 3


def test_a_gathered_batch_has_each_sequences_rows_and_nothing_of_others_behind_them() -> None:
    with small_pool(6) as pool:
        cache = PagedKvCache(pool)
        long, short = cache.open(), cache.open()
        cache.append(long, *rows([1, 2, 3, 4, 5, 6]))
        cache.append(short, *rows([7]))
        tables = [cache.block_table(long), cache.block_table(short)]
        k, v, mask = cache.pool.gather_batched_paged_kv(0, tables, [6, 1])
        assert k.shape == (2, 6, 1, 2)
        assert mask.tolist() == [[True] * 6, [True] + [False] * 5]
        assert k[:, :, 0, 0].tolist() == [[1, 2, 3, 4, 5, 6], [7, 0, 0, 0, 0, 0]]
        assert torch.equal(v, -k)


def test_a_sequence_of_n_tokens_wastes_at_most_15_of_them_for_every_n_up_to_4096() -> None:
    shape = PageShape(1, 1, 64, 4)
    for tokens in range(1, 4097):
        assert 0 <= shape.blocks_of(tokens) * shape.block_size - tokens <= 15


def test_real_conversations_waste_at_most_0_6_percent() -> None:
    shape = PageShape(1, 1, 64, 4)
    counted = [tuple(map(int, line.split())) for line in AZURE.read_text().splitlines() if not line.startswith("#")]
    tokens = sum(length * count for length, count in counted)
    held = sum(shape.blocks_of(length) * shape.block_size * count for length, count in counted)
    assert sum(count for _, count in counted) == 19_366
    assert (held - tokens) / tokens <= 0.006


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_shape_without_tokens_or_heads_is_refused(wrong: int) -> None:
    for figures in ((wrong, 1, 1, 1, 1), (1, wrong, 1, 1, 1), (1, 1, wrong, 1, 1), (1, 1, 1, 1, wrong)):
        with pytest.raises(ValueError, match="at least 1"):
            PageShape(*figures)
