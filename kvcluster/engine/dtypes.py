"""Torch's types by the names that settings use. Only types that a model computes in and K and V are kept in."""

from __future__ import annotations

import torch

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def dtype_named(name: str) -> torch.dtype:
    """Raises ValueError where `name` is none that the engine computes in."""
    if name not in _TYPES:
        raise ValueError(f"{name!r} is no type to compute in: use {' or '.join(_TYPES)}")
    return _TYPES[name]
