"""Which models this engine computes exactly, and what they keep a token. Reads configurations, never weights.

A model is accepted when its attention is what `attention.py` does: scaled dot products over all earlier tokens or
over the last few. Whatever would be computed wrongly in silence is refused by name: capped scores, learned sinks,
latent K and V, attention to later tokens, rotary tables that depend on the longest sequence of a batch (packed
neighbours would change each other), layers of unequal shape.

A layer with a window of W sees its own token and the W - 1 before it (transformers' `sliding_window_overlay`), and
keeps no more than that needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kvcluster.engine.refusals import ModelNotFound, UnsupportedModel
from kvcluster.geometry.model import KvGeometry, LayerGroup

FAMILIES = frozenset({"gemma3_text", "llama", "mistral", "qwen2", "qwen3"})
_WINDOW_BY_LAYER = frozenset({"gemma3_text", "qwen2", "qwen3"})  # others have it in every layer, or none
_WINDOW_IN_NO_LAYER = frozenset({"llama"})
_SLIDING = "sliding_attention"
_LAYER_TYPES = frozenset({"full_attention", _SLIDING})
_COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
_COUNTS_OR_NONE = ("num_key_value_heads", "head_dim", "sliding_window")
_ROTARY_BY_LENGTH = frozenset({"dynamic", "longrope"})


def check_figures(config: Any, model: str) -> None:
    """Nothing, where every figure that we compute with is possible.

    Raises:
        ModelNotFound: a count is none, or the heads do not share out.
    """
    own = config.get_text_config()
    given = {name: getattr(own, name, None) for name in (*_COUNTS, *_COUNTS_OR_NONE)}
    for name, value in given.items():
        if (value is not None or name in _COUNTS) and (type(value) is not int or value < 1):
            reason = f"its config.json says that {name} is {value!r}, and it must be a whole number of at least 1"
            raise ModelNotFound(model=model, reason=reason)
    if own.num_attention_heads % (given["num_key_value_heads"] or own.num_attention_heads):
        raise ModelNotFound(model=model, reason="its config.json gives K heads that do not share out the query heads")
    if (types := getattr(own, "layer_types", None)) is not None and len(types) != own.num_hidden_layers:
        reason = f"its config.json lists {len(types)} layer_types and counts {own.num_hidden_layers} layers"
        raise ModelNotFound(model=model, reason=reason)


def geometry_of(config: Any, dtype: torch.dtype) -> KvGeometry:
    """The K and V that a model of this transformers configuration keeps a token, in elements of `dtype`.

    Layers that see every token are one group, those that see a window another.

    Raises:
        UnsupportedModel: the model needs something that this engine does not compute.
    """
    for reason in _refusals(config):
        raise UnsupportedModel(model=config.name_or_path or config.model_type, reason=reason)
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    windows = _windows(config)
    groups = [
        LayerGroup(tuple(layer for layer, own in enumerate(windows) if own == window), kv_heads, head_dim, window)
        for window in dict.fromkeys(sorted(windows, key=lambda window: window is not None))
    ]
    return KvGeometry(tuple(groups), dtype.itemsize)


def _windows(config: Any) -> list[int | None]:
    """How many tokens each layer sees, None for all: as the family's own code reads its configuration."""
    window: int | None = getattr(config, "sliding_window", None)
    if config.model_type in _WINDOW_IN_NO_LAYER:
        window = None
    if config.model_type not in _WINDOW_BY_LAYER:
        return [window] * config.num_hidden_layers
    return [window if kind == _SLIDING else None for kind in config.layer_types]


def _refusals(config: Any) -> Iterator[str]:
    """Every reason to refuse, the most telling first."""
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder; only decoders that continue a text are"
    if config.get_text_config() is not config:
        yield "it takes more than text; open its text model alone"
    if config.model_type not in FAMILIES:
        yield f"its family {config.model_type} is not one of {', '.join(sorted(FAMILIES))}"
    if getattr(config, "quantization_config", None) is not None:
        yield "its weights are quantized; convert them to bfloat16 or float32"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        yield "its attention scores are capped (attn_logit_softcapping)"
    if getattr(config, "use_bidirectional_attention", False):
        yield "its tokens attend to later ones (use_bidirectional_attention)"
    if other := set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES:
        yield f"it has layers of type {', '.join(sorted(other))}"
    if unstable := _rotary_types(config) & _ROTARY_BY_LENGTH:
        yield f"its rotary embedding ({', '.join(sorted(unstable))}) depends on the longest sequence of the batch"


def _rotary_types(config: Any) -> set[str]:
    """The kinds of rotary embedding; some models have one for each type of layer."""
    parameters: dict[str, Any] = config.rope_parameters or {}
    tables = [table for table in parameters.values() if isinstance(table, dict)] or [parameters]
    return {table.get("rope_type", "default") for table in tables}
