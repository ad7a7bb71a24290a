"""Linear layers whose weights lie as oneDNN wants them: repacked once, and not at every call.

At eight rows this is 1.9 to 3.0 times as fast as `F.linear` in float32, and 1.3 to 1.6 times in bfloat16, on a
2-core AVX-512 machine. The operators are torch's own but private, so they are tried once for each element type:
where they are missing, or answer otherwise than `F.linear`, the plain layers stay. A repacked layer has no
parameters, cannot be trained, and is not for other devices than the CPU.

oneDNN adds up a single row in another way than several, and in bfloat16 33 rows and more in another than 32 (one result
in 8,000 differs by a bit of its last place; measured on AVX-512 with AMX). A single row is computed twice, which costs
nothing; with `invariant` rows are computed 32 at a time, so that a row's result is the same to the last bit whatever is
computed beside it. That takes a chunk of prefill 2 to 3 times as long in bfloat16, and is left out in float32.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn import functional

_HINT_ROWS = 8  # the row count that the packing is chosen for; a hint of 1 made batches slower than no packing
_EQUAL_ROWS = 32


class PackedLinear(nn.Module):
    """Computes what a linear layer with `weight` [out, in] and `bias` does, from a repacked copy of the weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, invariant: bool = False) -> None:
        super().__init__()
        self._most_rows = _EQUAL_ROWS if invariant and weight.dtype is not torch.float32 else None
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _HINT_ROWS)
        self._bias = None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., rows, in] becomes [..., rows, out]."""
        count = rows.shape[-2]
        if count == 1:
            return self._computed(torch.cat((rows, rows), -2))[..., :1, :]
        if self._most_rows and count > self._most_rows:
            return torch.cat([self.forward(piece) for piece in torch.split(rows, self._most_rows, -2)], -2)
        return self._computed(rows)

    def _computed(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return result


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None, *, invariant: bool = False) -> nn.Module:
    """A layer of [out, in] and [out], repacked where that works."""
    if packing_works(weight.dtype):
        return PackedLinear(weight, bias, invariant=invariant)
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    values = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    plain.load_state_dict(values, assign=True)
    return plain.requires_grad_(False)


@torch.inference_mode()
def pack_linears(model: nn.Module, *, invariant: bool = False) -> int:
    """Replace the plain linear layers of `model` by repacked ones; the number replaced, 0 where packing fails.

    A layer's own weight is freed. One that is shared (a head tied to the embedding) stays with its other owner.
    """
    packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and packing_works(child.weight.dtype):
                setattr(parent, name, PackedLinear(child.weight, child.bias, invariant=invariant))
                packed += 1
    return packed


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether the private operators exist here and agree with `F.linear` on `dtype`, for one row and for many."""
    try:
        return all(_agrees(dtype, rows=rows, bias=bias) for rows in (1, 2, 8, 33) for bias in (False, True))
    except (AttributeError, RuntimeError):  # no such operator, or not for this element type
        return False


def _agrees(dtype: torch.dtype, *, rows: int, bias: bool) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, offset, values = (
        (torch.rand(shape, generator=generator) - 0.5).to(dtype) for shape in ((80, 96), (80,), (1, rows, 96))
    )
    wanted = functional.linear(values, weight, offset if bias else None).double()
    got = PackedLinear(weight, offset if bias else None)(values).double()
    return bool((got - wanted).abs().max() <= 8 * torch.finfo(dtype).eps * wanted.abs().max())
