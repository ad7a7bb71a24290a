"""A forward of our own for the Llama family (Llama, Mistral, Qwen 2 and 3) and Gemma 3, on the CPU.

The model's own code spends most of a small step outside of its linear layers, in some forty small operators a layer.
Here a layer is four linear layers (Q, K and V in one, gate and up in one) and five operators of `kernels/` between
them; the rotary angles come from the model's own code. In float32 its greedy tokens equal the model's; in bfloat16 it
rounds less often (norms and rotations once). Measured as a ratio to the model's own code with the same linear layers
and attention: docs/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kvcluster.engine.batch import PackedBatch
from kvcluster.engine.kernels.library import LANES, TYPES, Kernels, Layer
from kvcluster.engine.linears import linear_of
from kvcluster.geometry.model import KvGeometry

_GEMMA = "gemma3_text"
_FAMILIES = frozenset({_GEMMA, "llama", "mistral", "qwen2", "qwen3"})
_GELU, _SILU = "gelu_pytorch_tanh", "silu"

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosine and sine of each token's rotation, float32, [tokens, head_dim / 2]."""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One decoder layer: its weights as the operators take them, norms in float32; `after_*` are Gemma's."""

    attention: Layer
    window: int | None
    rotary: str | None
    before_attention: torch.Tensor
    after_attention: torch.Tensor | None
    before_feed_forward: torch.Tensor
    after_feed_forward: torch.Tensor | None
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    qkv: nn.Module
    out: nn.Module
    gate_up: nn.Module
    down: nn.Module


class FusedDecoder:
    """Computes what `module` does, from weights that are packed anew; of `module` it keeps the embedding alone."""

    def __init__(self, module: Any, layers: Sequence[FusedLayer], kernels: Kernels, *, invariant: bool) -> None:
        config = module.config
        self._kernels = kernels
        self._layers = layers
        self._embedding = module.model.embed_tokens
        self._rotations = Rotations(module.model.rotary_emb, {layer.rotary for layer in layers})
        self._last_norm = _norm_weight(module.model.norm, config)
        self._head = linear_of(module.lm_head.weight.detach(), module.lm_head.bias, invariant=invariant)
        self._soft_cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._epsilon: float = config.rms_norm_eps
        self._gelu = _activation(config) == _GELU

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """The logits [sampled rows, vocabulary]; K and V of the step's tokens are written."""
        kernels, epsilon, layers = self._kernels, self._epsilon, self._layers
        residual = self._embedding(batch.token_ids)[0].contiguous()
        angles = self._rotations.at(batch.positions[0])
        normed = kernels.add_norm(residual, None, None, layers[0].before_attention, epsilon)
        following = (*(layer.before_attention for layer in layers[1:]), self._last_norm)
        for layer, next_norm in zip(layers, following, strict=True):
            added = layer.out(self._attended(layer, batch, normed, angles[layer.rotary]))
            normed = kernels.add_norm(residual, added, layer.after_attention, layer.before_feed_forward, epsilon)
            added = layer.down(kernels.gated(layer.gate_up(normed), gelu=self._gelu))
            normed = kernels.add_norm(residual, added, layer.after_feed_forward, next_norm, epsilon)
        logits: torch.Tensor = self._head(normed[batch.sampled_rows()])
        return logits if self._soft_cap is None else torch.tanh(logits / self._soft_cap) * self._soft_cap

    def _attended(self, layer: FusedLayer, batch: PackedBatch, normed: torch.Tensor, angles: Angles) -> torch.Tensor:
        """[rows, heads x head_dim]."""
        of, table = layer.attention, batch.table(layer.attention.number, layer.window)
        rows: torch.Tensor = layer.qkv(normed)
        self._kernels.rotate_and_write(of, table, rows, layer.head_norms, self._epsilon, angles)
        query = rows.view(len(rows), -1, of.head_dim)
        result = rows.new_empty(len(rows), of.heads, of.head_dim)
        self._kernels.attend(of, table, query, result)
        return result.flatten(1)


class Rotations:
    """Angles by position, of the model's own rotary embedding; a table that doubles when a later position comes."""

    def __init__(self, rotary: Any, kinds: set[str | None]) -> None:
        self._rotary = rotary
        self._kinds = kinds
        self._tables: dict[str | None, Angles] = {}
        self._tokens = 0

    def at(self, positions: torch.Tensor) -> dict[str | None, Angles]:
        """By kind of layer."""
        last = int(positions.max())
        if last >= self._tokens:
            self._tokens = max(2 * self._tokens, 1 << last.bit_length(), 1024)
            self._tables = {kind: self._table(kind) for kind in self._kinds}
        return {kind: (cosine[positions], sine[positions]) for kind, (cosine, sine) in self._tables.items()}

    def _table(self, kind: str | None) -> Angles:
        positions, like = torch.arange(self._tokens)[None], torch.zeros(1)
        both = self._rotary(like, positions) if kind is None else self._rotary(like, positions, kind)
        cosine, sine = (one[0, :, : one.shape[-1] // 2].contiguous() for one in both)
        return cosine, sine


def fused_decoder(
    module: Any, geometry: KvGeometry, kernels: Kernels, *, invariant: bool = False
) -> FusedDecoder | None:
    """The decoder, or None for a model that it does not compute. The module's own layers are taken apart."""
    config = module.config
    widths = (config.hidden_size, config.intermediate_size, *(group.head_dim // 2 for group in geometry.groups))
    if config.model_type not in _FAMILIES or any(width % LANES for width in widths):
        return None
    if _activation(config) not in (_GELU, _SILU) or not _rotates_whole_heads(module, geometry):
        return None
    with torch.inference_mode():
        layers = []
        places = {layer: (group, i) for group in geometry.groups for i, layer in enumerate(group.layers)}
        for number, block in enumerate(module.model.layers):
            group, index = places[number]
            attention = Layer(
                type=TYPES[module.dtype],
                index=index,
                number=number,
                heads=config.num_attention_heads,
                kv_heads=group.kv_heads,
                head_dim=group.head_dim,
                window=group.window_tokens or 0,
                scaling=block.self_attn.scaling,
            )
            layers.append(_fused_layer(block, attention, config, invariant=invariant))
            module.model.layers[number] = nn.Identity()  # its weights go as soon as they are packed
        return FusedDecoder(module, layers, kernels, invariant=invariant)


def _rotates_whole_heads(module: Any, geometry: KvGeometry) -> bool:
    kinds = set(module.config.layer_types) if module.config.model_type == _GEMMA else {None}
    angles = Rotations(module.model.rotary_emb, kinds).at(torch.zeros(1, dtype=torch.long))
    return {cosine.shape[-1] * 2 for cosine, _ in angles.values()} == {group.head_dim for group in geometry.groups}


def _fused_layer(block: Any, attention: Layer, config: Any, *, invariant: bool) -> FusedLayer:
    own, feed_forward, is_gemma = block.self_attn, block.mlp, config.model_type == _GEMMA

    def norm(name: str) -> torch.Tensor:
        return _norm_weight(getattr(block, name), config)

    def joined(*linears: nn.Linear) -> nn.Module:
        return _joined(linears, invariant=invariant)

    has_head_norms = hasattr(own, "q_norm")
    return FusedLayer(
        attention,
        attention.window or None,
        config.layer_types[attention.number] if is_gemma else None,
        norm("input_layernorm"),
        norm("post_attention_layernorm") if is_gemma else None,
        norm("pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm"),
        norm("post_feedforward_layernorm") if is_gemma else None,
        (_norm_weight(own.q_norm, config), _norm_weight(own.k_norm, config)) if has_head_norms else None,
        joined(own.q_proj, own.k_proj, own.v_proj),
        joined(own.o_proj),
        joined(feed_forward.gate_proj, feed_forward.up_proj),
        joined(feed_forward.down_proj),
    )


def _joined(linears: Sequence[nn.Linear], *, invariant: bool) -> nn.Module:
    """One layer whose outputs are those of each, in order."""
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    weight = torch.cat([linear.weight.detach() for linear in linears])
    return linear_of(weight, torch.cat(biases) if biases else None, invariant=invariant)


def _norm_weight(norm: Any, config: Any) -> torch.Tensor:
    """What a normed row is multiplied by, float32: Gemma keeps its distance from 1."""
    weight: torch.Tensor = norm.weight.detach().float()
    return (1.0 + weight if config.model_type == _GEMMA else weight).contiguous()


def _activation(config: Any) -> str:
    name: str = getattr(config, "hidden_activation", None) or config.hidden_act
    return name
