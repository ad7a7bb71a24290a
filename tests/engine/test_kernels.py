"""The compiled operators against their definitions, by every instruction set that this processor has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.engine.kernels.library import TYPES, Kernels, Layer, StepTable, all_kernels

ALL = pytest.mark.parametrize("kernels", all_kernels(), ids=lambda kernels: kernels.name)
DTYPES = pytest.mark.parametrize("dtype", TYPES, ids=str)
LAYERS, LAYER = 3, 1
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}

Span = tuple[int, int]
"""How many new tokens a sequence has, and how many tokens with them."""


class Sequences:
    """K and V of some sequences, token by token, each in memory of its own, cut into runs of so many tokens."""

    def __init__(
        self, spans: Sequence[Span], *, kv_heads: int, dim: int, dtype: torch.dtype, run: int = 10_000
    ) -> None:
        self.spans = spans
        draw = torch.Generator().manual_seed(len(spans))
        sizes = [(tokens, LAYERS, 2, kv_heads, dim) for _, tokens in spans]
        self.memory = [torch.randn(size, generator=draw).to(dtype) for size in sizes]
        self.table = self._table(run, [0] * len(spans))

    def _table(self, run: int, sealed: Sequence[int]) -> StepTable:
        rows, runs, row = [], [], 0
        for memory, (new, tokens), closed in zip(self.memory, self.spans, sealed, strict=True):
            by_token, by_layer, by_side, by_head, _ = (step * memory.element_size() for step in memory.stride())
            open_token = -(-closed // by_token)
            where = (by_layer, 0, by_side, by_head, by_token, open_token, closed, by_token)
            rows.append((row, new, 0, tokens, len(runs), *where))
            runs += [(memory[at].data_ptr(), min(run, tokens - at)) for at in range(0, tokens, run)]
            row += new
        return StepTable(torch.tensor(rows), torch.tensor(runs))

    def sealed(self, sealed_bytes: Sequence[int]) -> StepTable:
        """The table, where so many bytes at the beginning of each sequence's memory may only be read."""
        return self._table(10_000, sealed_bytes)

    @property
    def rows(self) -> int:
        return sum(new for new, _ in self.spans)


def layer(dtype: torch.dtype, *, heads: int, kv_heads: int, dim: int, window: int = 0, cap: float = 0.0) -> Layer:
    return Layer(
        type=TYPES[dtype],
        index=LAYER,
        number=7,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        window=window,
        scaling=dim**-0.5,
        soft_cap=cap,
    )


def queries(rows: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, heads, dim, generator=torch.Generator().manual_seed(1)).to(dtype)


def attended(kernels: Kernels, of: Layer, table: StepTable, query: torch.Tensor) -> torch.Tensor:
    result = torch.full_like(query, float("nan"))
    kernels.attend(of, table, query, result)
    return result


def defined(of: Layer, sequences: Sequences, query: torch.Tensor) -> torch.Tensor:
    """A softmax over the keys that each token sees, in float64."""
    pieces, row = [], 0
    for memory, (new, tokens) in zip(sequences.memory, sequences.spans, strict=True):
        k, v = memory[:, LAYER].double().permute(1, 2, 0, 3).repeat_interleave(of.heads // of.kv_heads, 1)
        scores = query[row : row + new].double().transpose(0, 1) @ k.transpose(1, 2) * of.scaling
        if of.soft_cap:
            scores = of.soft_cap * torch.tanh(scores / of.soft_cap)
        distance = torch.arange(tokens - new, tokens)[:, None] - torch.arange(tokens)
        hidden = (distance < 0) | (distance >= (of.window or tokens))
        pieces.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1))
        row += new
    return torch.cat(pieces)


@ALL
@DTYPES
@settings(deadline=None, max_examples=25)
@given(
    spans=st.lists(
        st.tuples(st.integers(1, 70), st.integers(0, 1200)).map(lambda pair: (pair[0], pair[0] + pair[1])),
        min_size=1,
        max_size=4,
    ),
    heads=st.sampled_from([(4, 1), (3, 3), (6, 2), (40, 2)]),
    dim=st.sampled_from([16, 32, 80, 256]),
    window=st.sampled_from([0, 1, 7, 64, 600]),
    cap=st.sampled_from([0.0, 2.5]),
    run=st.sampled_from([16, 100, 10_000]),
)
def test_attention_is_what_the_definition_says(
    kernels: Kernels,
    dtype: torch.dtype,
    spans: list[Span],
    heads: tuple[int, int],
    dim: int,
    window: int,
    cap: float,
    run: int,
) -> None:
    of = layer(dtype, heads=heads[0], kv_heads=heads[1], dim=dim, window=window, cap=cap)
    sequences = Sequences(spans, kv_heads=heads[1], dim=dim, dtype=dtype, run=run)
    query = queries(sequences.rows, heads[0], dim, dtype)
    wanted = defined(of, sequences, query)
    assert (attended(kernels, of, sequences.table, query).double() - wanted).abs().max() < TOLERANCE[dtype]


@ALL
@DTYPES
@pytest.mark.parametrize("window", [0, 100])
def test_a_token_attends_to_the_same_bits_alone_in_a_chunk_and_beside_others(
    kernels: Kernels, dtype: torch.dtype, window: int
) -> None:
    of = layer(dtype, heads=4, kv_heads=2, dim=64, window=window)
    together = Sequences([(1, 40), (300, 1500), (1, 900)], kv_heads=2, dim=64, dtype=dtype)
    query = queries(together.rows, 4, 64, dtype)
    chunk = attended(kernels, of, together.table, query)[1:301]
    for row in (0, 1, 17, 150, 299):
        tokens = 1200 + row + 1
        alone = Sequences([(1, tokens)], kv_heads=2, dim=64, dtype=dtype)
        alone.memory[0].copy_(together.memory[1][:tokens])
        assert torch.equal(attended(kernels, of, alone.table, query[1 + row : 2 + row])[0], chunk[row])


@ALL
@DTYPES
def test_new_rows_go_where_the_table_says_and_nothing_sealed_is_written(kernels: Kernels, dtype: torch.dtype) -> None:
    sequences = Sequences([(3, 9), (2, 2)], kv_heads=2, dim=16, dtype=dtype)
    before = [memory.clone() for memory in sequences.memory]
    token_bytes = before[0][0].numel() * dtype.itemsize
    vector_bytes = 16 * dtype.itemsize
    sealed = 7 * token_bytes + 5 * vector_bytes + vector_bytes // 2  # of token 7, layer 1: K of head 0, half of head 1
    key, value = queries(5, 2, 16, dtype), -queries(5, 2, 16, dtype)
    of = layer(dtype, heads=2, kv_heads=2, dim=16)
    kernels.write(of, sequences.sealed([sealed, 0]), key, value)
    wanted = [memory.clone() for memory in before]
    wanted[0][7, LAYER, 0, 1, 8:] = key[1, 1, 8:]
    wanted[0][7, LAYER, 1] = value[1]
    wanted[0][8, LAYER] = torch.stack((key[2], value[2]))
    wanted[1][:, LAYER] = torch.stack((key[3:], value[3:]), 1)
    assert all(torch.equal(*pair) for pair in zip(sequences.memory, wanted, strict=True))


@ALL
@DTYPES
@pytest.mark.parametrize("is_normed", [True, False])
def test_rows_are_normed_rotated_and_written(kernels: Kernels, dtype: torch.dtype, is_normed: bool) -> None:
    sequences = Sequences([(3, 9), (1, 4)], kv_heads=1, dim=32, dtype=dtype)
    rows = queries(4, 4, 32, dtype)  # two query heads, K, V
    angle = torch.rand(4, 16, generator=torch.Generator().manual_seed(2)) * 6
    weights = (torch.linspace(0.5, 2, 32), torch.linspace(2, 0.5, 32))
    wanted = rows.clone()
    for head in range(3):
        of_head = rows[:, head].double()
        if is_normed:
            of_head = of_head * (of_head.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weights[head // 2].double()
        a, b = of_head.chunk(2, -1)
        cosine, sine = angle.double().cos(), angle.double().sin()
        wanted[:, head] = torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).to(dtype)
    packed = rows.flatten(1).clone()
    of = layer(dtype, heads=2, kv_heads=1, dim=32)
    kernels.rotate_and_write(
        of, sequences.table, packed, weights if is_normed else None, 1e-6, (angle.cos(), angle.sin())
    )
    got = torch.cat((sequences.memory[0][6:, LAYER, :, 0], sequences.memory[1][3:, LAYER, :, 0]))
    assert (got[:, 0].double() - wanted[:, 2].double()).abs().max() < 5 * TOLERANCE[dtype]
    assert torch.equal(got[:, 1], rows[:, 3])
    queried = packed.view(4, 4, 32)[:, :2].double() - wanted[:, :2].double()
    assert queried.abs().max() < 5 * TOLERANCE[dtype]


@ALL
@DTYPES
@pytest.mark.parametrize("rows", [1, 70])
def test_a_residual_grows_and_is_normed(kernels: Kernels, dtype: torch.dtype, rows: int) -> None:
    residual, added = queries(2 * rows, 1, 512, dtype)[:, 0].chunk(2)
    after, before = torch.linspace(0.5, 2, 512), torch.linspace(2, 0.5, 512)

    def norm(of: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return of.double() * (of.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()

    for more, by, sums in (
        (None, None, residual.double()),
        (added, None, residual.double() + added.double()),
        (added, after, residual.double() + norm(added, after)),
    ):
        grown = residual.clone()
        normed = kernels.add_norm(grown, more, by, before, 1e-6)
        assert (grown.double() - sums).abs().max() < 2 * TOLERANCE[dtype]
        assert (normed.double() - norm(sums, before)).abs().max() < 3 * TOLERANCE[dtype]


@ALL
@DTYPES
@pytest.mark.parametrize("gelu", [True, False])
def test_a_gate_opens_by_its_activation(kernels: Kernels, dtype: torch.dtype, gelu: bool) -> None:
    both = queries(5, 1, 2 * 1408, dtype)[:, 0] * 3
    both[0, :4] = torch.tensor([-300.0, 300.0, -0.0, 88.0])
    gate, up = both.double().chunk(2, -1)
    opened = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    got = kernels.gated(both, gelu=gelu).double()
    assert (got - opened * up).abs().le(TOLERANCE[dtype] * (1 + (opened * up).abs())).all()


@ALL
def test_scores_far_above_their_cap_are_the_cap(kernels: Kernels) -> None:
    of = layer(torch.float32, heads=2, kv_heads=1, dim=16, cap=0.5)
    sequences = Sequences([(1, 70)], kv_heads=1, dim=16, dtype=torch.float32)
    query = queries(1, 2, 16, torch.float32) * 1e4
    difference = attended(kernels, of, sequences.table, query).double() - defined(of, sequences, query)
    assert difference.abs().max() < TOLERANCE[torch.float32]


def test_all_sets_agree_to_rounding() -> None:
    of = layer(torch.float32, heads=4, kv_heads=2, dim=64)
    sequences = Sequences([(5, 700)], kv_heads=2, dim=64, dtype=torch.float32)
    query = queries(5, 4, 64, torch.float32)
    results = [attended(kernels, of, sequences.table, query) for kernels in all_kernels()]
    assert all((result - results[-1]).abs().max() < 1e-5 for result in results)
