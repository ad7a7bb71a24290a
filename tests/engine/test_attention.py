"""One layer's attention, in float64, against the definition: a softmax over the keys that each token sees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvcluster import KvGeometry, Layout, LocalDevice
from kvcluster.engine.attention import attend
from kvcluster.engine.batch import PackedBatch, Slice
from kvcluster.services.sequence import SequenceSpec
from kvcluster.tensors.views import KvViews
from tests.engine.on_device import Sequenced

KV_HEADS, GROUP, HEAD_DIM, LAYER = 2, 3, 5, 1
TOKENS = 23
SCALING = 0.4
GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=KV_HEADS, head_dim=HEAD_DIM, element_bytes=8)


def committed(device: LocalDevice, geometry: KvGeometry, layout: Layout, *, tokens: int, dtype: torch.dtype) -> KvViews:
    """Views of so many tokens, committed one after another: a mapping for each granule."""
    kv = Sequenced(device, SequenceSpec(geometry, layout, tokens), dtype)
    for count in range(1, tokens + 1):
        kv.views(count)
    return kv.views(tokens)


class Text:
    """One sequence: the queries, K and V of all its tokens, and mapped memory that holds the first `start`."""

    def __init__(self, device: LocalDevice, layout: Layout, *, seed: int, start: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(KV_HEADS * GROUP, TOKENS, HEAD_DIM, generator=generator, dtype=torch.float64)
        self.key, self.value = torch.randn(2, KV_HEADS, TOKENS, HEAD_DIM, generator=generator, dtype=torch.float64)
        self.views = committed(device, GEOMETRY, layout, tokens=TOKENS, dtype=torch.float64)
        self.views.k[LAYER][:, :start] = self.key[:, :start]
        self.views.v[LAYER][:, :start] = self.value[:, :start]

    def defined(self, start: int, stop: int, window: int | None) -> torch.Tensor:
        """Rows [start, stop) of the result, [rows, heads, head_dim]."""
        rows = []
        for i in range(start, stop):
            seen = [j for j in range(TOKENS) if 0 <= i - j < (window or TOKENS)]
            for head in range(KV_HEADS * GROUP):
                scores = self.key[head // GROUP, seen] @ self.query[head, i] * SCALING
                rows.append(scores.softmax(-1) @ self.value[head // GROUP, seen])
        return torch.stack(rows).view(stop - start, KV_HEADS * GROUP, HEAD_DIM)


SPANS = ((0, 1), (0, 9), (22, 23), (4, 5), (3, 12), (10, 23))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("window", [None, 1, 4, 9, TOKENS])
def test_packed_slices_each_get_what_the_definition_says(
    layout: Layout, window: int | None, device: LocalDevice
) -> None:
    texts = [Text(device, layout, seed=seed, start=start) for seed, (start, _) in enumerate(SPANS)]
    slices = [Slice(t.views, a, [0] * (b - a), True) for t, (a, b) in zip(texts, SPANS, strict=True)]

    def packed(name: str) -> torch.Tensor:
        pieces = [getattr(text, name)[:, start:stop] for text, (start, stop) in zip(texts, SPANS, strict=True)]
        rows_first = torch.cat(pieces, dim=1).transpose(0, 1).contiguous()  # strided as projections leave them
        return rows_first.transpose(0, 1).unsqueeze(0)

    batch = PackedBatch(slices, torch.float64)
    module = SimpleNamespace(layer_idx=LAYER)
    result, _ = attend(
        module,  # type: ignore[arg-type]
        packed("query"),
        packed("key"),
        packed("value"),
        None,
        kv_batch=batch,
        scaling=SCALING,
        sliding_window=window,
    )
    wanted = [text.defined(start, stop, window) for text, (start, stop) in zip(texts, SPANS, strict=True)]
    torch.testing.assert_close(result, torch.cat(wanted).unsqueeze(0))
    for text, (start, stop) in zip(texts, SPANS, strict=True):
        assert torch.equal(text.views.k[LAYER][:, start:stop], text.key[:, start:stop])
        assert torch.equal(text.views.v[LAYER][:, start:stop], text.value[:, start:stop])
        assert text.views.k[LAYER][:, stop:].isnan().all()  # and nothing behind them


def test_one_token_of_a_model_without_shared_heads_is_exact_in_bfloat16(device: LocalDevice) -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=2, head_dim=8, element_bytes=2)
    views = committed(device, geometry, Layout.TOKEN_MAJOR, tokens=6, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 6, 8, generator=generator).bfloat16()
    views.k[0][:, :5], views.v[0][:, :5] = key[0, :, :5], value[0, :, :5]
    result, _ = attend(
        SimpleNamespace(layer_idx=0),  # type: ignore[arg-type]
        query[:, :, 5:],
        key[:, :, 5:],
        value[:, :, 5:],
        None,
        kv_batch=PackedBatch([Slice(views, 5, [0], True)], torch.bfloat16),
        scaling=0.5,
    )
    scores = (query[0, :, 5:].float() @ key[0].float().transpose(1, 2) * 0.5).softmax(-1)
    torch.testing.assert_close(result[0, 0].float(), (scores @ value[0].float())[:, 0], atol=0.01, rtol=0.02)


@pytest.mark.parametrize(("start", "token_ids"), [(0, []), (-1, [1]), (TOKENS, [1]), (TOKENS - 1, [1, 2])])
def test_a_slice_that_does_not_lie_in_the_committed_tokens_is_refused(
    start: int, token_ids: list[int], device: LocalDevice
) -> None:
    views = Text(device, Layout.TOKEN_MAJOR, seed=0, start=0).views
    with pytest.raises(ValueError, match=r"slice|committed"):
        Slice(views, start, token_ids, True)


def test_the_tensors_of_a_step_are_made_where_the_model_is(device: LocalDevice) -> None:
    elsewhere = torch.device("meta")
    views = Text(device, Layout.TOKEN_MAJOR, seed=0, start=0).views
    batch = PackedBatch([Slice(views, 0, [1, 2, 3], True)], torch.float64, elsewhere)
    [read] = batch.reads(LAYER, 2)
    made = (batch.token_ids, batch.positions, batch.sampled_rows(), read.mask)
    assert [tensor.device for tensor in made if tensor is not None] == [elsewhere] * 4


def test_a_batch_without_slices_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 slice"):
        PackedBatch([], torch.float32)
