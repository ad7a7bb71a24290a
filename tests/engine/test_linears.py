from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional

from kvcluster.engine.linears import PackedLinear, pack_linears, packing_works


class TwoOwners(nn.Module):
    """A head tied to an embedding, and a layer with a bias between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.middle = nn.Sequential(nn.Linear(16, 16))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.middle(self.embedding(ids)))
        return result


@pytest.fixture
def _fresh_probe() -> None:
    packing_works.cache_clear()


@pytest.fixture
def _forgotten_probe() -> object:
    yield
    packing_works.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 2, 9, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_layer_computes_what_the_plain_one_does(dtype: torch.dtype, rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(48, 72, generator=generator).to(dtype)
    offset = torch.randn(48, generator=generator).to(dtype) if bias else None
    values = torch.randn(1, rows, 72, generator=generator).to(dtype)
    wanted = functional.linear(values, weight, offset)
    torch.testing.assert_close(PackedLinear(weight, offset)(values), wanted)


def test_every_linear_layer_is_replaced_and_a_shared_weight_stays() -> None:
    model = TwoOwners().requires_grad_(False)
    ids = torch.arange(40)
    wanted = model(ids)
    assert pack_linears(model) == 2
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    torch.testing.assert_close(model(ids), wanted)


@pytest.mark.usefixtures("_fresh_probe", "_forgotten_probe")
@pytest.mark.parametrize("fault", ["missing", "refuses", "wrong"])
def test_plain_layers_stay_where_packing_does_not_work(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise RuntimeError("not for this element type")

    def wrong(rows: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.zeros(1, rows.shape[1], 80)

    if fault == "missing":
        monkeypatch.delattr(torch.ops.mkldnn, "_linear_pointwise", raising=False)
        monkeypatch.setattr(torch.ops, "mkldnn", object())
    else:
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", refuse if fault == "refuses" else wrong)
    model = TwoOwners().requires_grad_(False)
    assert pack_linears(model) == 0
    assert type(model.head) is nn.Linear


def test_an_element_type_without_packing_keeps_the_plain_layers() -> None:
    assert not packing_works(torch.float64)
    assert pack_linears(TwoOwners().double()) == 0


@pytest.mark.parametrize(("dtype", "most_rows"), [(torch.float32, 600), (torch.bfloat16, 32)], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(640, 1536), (2048, 640), (512, 8192)])
def test_a_row_has_the_same_bits_beside_up_to_so_many_others(
    dtype: torch.dtype, most_rows: int, inputs: int, outputs: int
) -> None:
    layer, rows = _wide_layer(inputs, outputs, dtype, invariant=False)
    _assert_rows_agree(layer, rows, [count for count in (2, 5, 32, 33, 600) if count <= most_rows])


@pytest.mark.parametrize(("inputs", "outputs"), [(640, 1536), (2048, 640), (512, 8192)])
def test_an_invariant_bfloat16_layer_gives_a_row_the_same_bits_beside_any_number(inputs: int, outputs: int) -> None:
    layer, rows = _wide_layer(inputs, outputs, torch.bfloat16, invariant=True)
    _assert_rows_agree(layer, rows, (2, 33, 65, 512, 600))


def _wide_layer(inputs: int, outputs: int, dtype: torch.dtype, *, invariant: bool) -> tuple[PackedLinear, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype) * 0.05
    return PackedLinear(weight, None, invariant=invariant), torch.randn(600, inputs, generator=generator).to(dtype)


@torch.inference_mode()
def _assert_rows_agree(layer: PackedLinear, rows: torch.Tensor, counts: Sequence[int]) -> None:
    alone = torch.cat([layer(row) for row in rows.split(1)])
    for count in counts:
        assert torch.equal(torch.cat([layer(piece) for piece in rows.split(count)]), alone), count
