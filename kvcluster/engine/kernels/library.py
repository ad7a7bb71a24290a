"""The compiled operators of `kernels.h`, for the best instruction set that this processor has.

Setuptools builds the library beside this file where there is a C++ compiler; where there is none the package works
without it (`all_kernels` is empty), and torch computes. It is loaded after torch, so that both have one OpenMP runtime
and one pool of threads. Operators see addresses alone: whoever calls keeps what lies there.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

INSTRUCTION_SETS = ("avx512", "avx2", "portable")
"""The best first."""
TYPES = {torch.float32: 0, torch.bfloat16: 1}
LANES = 16
MOST_HEAD_DIM = 512


class Layer(ctypes.Structure):
    """`kvc::Layer`."""

    _fields_ = [(name, c_int32) for name in ("type", "index", "number", "heads", "kv_heads", "head_dim", "window")] + [
        (name, c_float) for name in ("scaling", "soft_cap")
    ]


class Vectors(ctypes.Structure):
    """`kvc::Vectors`."""

    _fields_ = [(name, c_int64) for name in ("address", "row_step", "head_step")]


def vectors_of(tensor: torch.Tensor) -> Vectors:
    """A tensor [rows, heads, head_dim] whose vectors lie densely."""
    size = tensor.element_size()
    return Vectors(tensor.data_ptr(), tensor.stride(0) * size, tensor.stride(1) * size)


@dataclass(frozen=True, slots=True)
class StepTable:
    """Where the slices of a step lie: `slices` [count, 13] of `kvc::Slice`, `runs` [., 2] of `kvc::Run`, int64."""

    slices: torch.Tensor
    runs: torch.Tensor

    @property
    def arguments(self) -> tuple[int, int, int]:
        return self.slices.data_ptr(), len(self.slices), self.runs.data_ptr()


class Kernels:
    """The operators of one instruction set."""

    def __init__(self, library: Any, name: str) -> None:
        self.name = name
        table = (c_void_p, c_int64, c_void_p)
        self._attend = _function(library, f"kvc_{name}_attend", c_void_p, *table, c_void_p, c_void_p)
        self._write = _function(library, f"kvc_{name}_write", c_void_p, *table, c_void_p, c_void_p)
        rows = (c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_void_p)
        self._rotate_and_write = _function(library, f"kvc_{name}_rotate_and_write", c_void_p, *table, *rows)
        sizes = (c_int32, c_int64, c_int64)
        self._add_norm = _function(library, f"kvc_{name}_add_norm", *sizes, *([c_void_p] * 5), c_float)
        self._gated = _function(library, f"kvc_{name}_gated", *sizes, c_void_p, c_void_p, c_int32)

    def attend(self, layer: Layer, table: StepTable, query: torch.Tensor, result: torch.Tensor) -> None:
        """Every row of `query` attends to what its slice sees; both are [rows, heads, head_dim]."""
        self._attend(
            ctypes.byref(layer),
            *table.arguments,
            ctypes.byref(vectors_of(query)),
            ctypes.byref(vectors_of(result)),
        )

    def write(self, layer: Layer, table: StepTable, key: torch.Tensor, value: torch.Tensor) -> None:
        """The step's new K and V, each [rows, kv_heads, head_dim], go where the slices lie, but for what is sealed."""
        self._write(
            ctypes.byref(layer),
            *table.arguments,
            ctypes.byref(vectors_of(key)),
            ctypes.byref(vectors_of(value)),
        )

    def rotate_and_write(
        self,
        layer: Layer,
        table: StepTable,
        rows: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        epsilon: float,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """`rows`, [rows, (heads + 2 kv_heads) x head_dim]: Q and K are normed and rotated in place, K and V written.

        `angles` are cosine and sine, float32 [rows, head_dim / 2]; `norms` the weights for Q and K, float32.
        """
        query_norm, key_norm = (_address(norm) for norm in norms or (None, None))
        cosine, sine = (angle.data_ptr() for angle in angles)
        self._rotate_and_write(
            ctypes.byref(layer), *table.arguments, rows.data_ptr(), query_norm, key_norm, epsilon, cosine, sine
        )

    def add_norm(
        self,
        residual: torch.Tensor,
        added: torch.Tensor | None,
        after: torch.Tensor | None,
        before: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """`residual` [rows, width] grows by `added`, by its norm where `after` is given; returns its norm."""
        normed = torch.empty_like(residual)
        addresses = (_address(one) for one in (residual, added, after, before, normed))
        self._add_norm(TYPES[residual.dtype], *residual.shape, *addresses, epsilon)
        return normed

    def gated(self, both: torch.Tensor, *, gelu: bool) -> torch.Tensor:
        """`both` is [rows, 2 x width], gate and up; returns [rows, width]."""
        rows, width = both.shape[0], both.shape[1] // 2
        result = both.new_empty(rows, width)
        self._gated(TYPES[both.dtype], rows, width, both.data_ptr(), result.data_ptr(), gelu)
        return result


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _function(library: Any, name: str, *arguments: Any) -> Any:
    found = library[name]
    found.argtypes, found.restype = arguments, None
    return found


@cache
def _library() -> Any | None:
    spec = find_spec("kvcluster.engine.kernels._kernels")
    return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)


@cache
def all_kernels() -> tuple[Kernels, ...]:
    """Those that this processor runs, the best first; none where the library was not built."""
    library = _library()
    if library is None:
        return ()
    return tuple(Kernels(library, name) for name in INSTRUCTION_SETS if library.kvc_runs(name.encode()))
