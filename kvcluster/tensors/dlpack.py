"""A range of address as a DLPack capsule, which torch takes for a tensor on the CPU or on a GPU without more.

DLPack is a C struct by which libraries lend each other tensors: an address, a device, a type and a shape. Nothing is
read, written or owned here, and nobody asks a driver about the address. The struct and what it points to are one block
of C's heap, and its deleter is C's own `free`: a tensor may be dropped in any thread, and when Python has ended.

The range is bytes, because seeing them as another type is torch's own affair and needs no table of type codes here.
The older, unversioned struct is used, which every torch reads. Source: dlpack.h (DLTensor, DLManagedTensor), and
"Python Specification for DLPack" (a capsule "dltensor" is renamed by whoever takes it, and is then theirs to free).
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p, py_object

import torch
from torch.utils.dlpack import from_dlpack

_DEVICE_TYPES = {"cpu": 1, "cuda": 2}  # kDLCPU, kDLCUDA
_UNSIGNED = 1  # kDLUInt
_NAME = b"dltensor"  # a capsule only points to its name

_libc = ctypes.CDLL(None)
_malloc = ctypes.CFUNCTYPE(c_void_p, c_size_t)(("malloc", _libc))
_free = ctypes.CFUNCTYPE(None, c_void_p)(("free", _libc))
_FREE = ctypes.cast(_libc.free, c_void_p).value
_new_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_named = ctypes.PYFUNCTYPE(c_int32, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


class _Lent(ctypes.Structure):
    """DLManagedTensor of one dimension, whose shape and strides lie behind it."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("dimensions", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("count", c_int64),
        ("stride", c_int64),
    )


def bytes_at(address: int, size_bytes: int, device: torch.device) -> torch.Tensor:
    """[size_bytes] of uint8 from `address` on, in the memory of `device`: the CPU, or a GPU by its number.

    Raises:
        RuntimeError, AssertionError: this torch computes on no such device. Nothing is left.
    """
    block = _block(address, size_bytes, device)
    capsule = _new_capsule(block, _NAME, None)
    try:
        return from_dlpack(capsule)
    finally:
        if _is_named(capsule, _NAME):  # torch did not take it
            _free(block)


def _block(address: int, size_bytes: int, device: torch.device) -> int:
    device_type = _DEVICE_TYPES[device.type]
    block: int | None = _malloc(ctypes.sizeof(_Lent))
    if block is None:  # pragma: no cover - a hundred bytes
        raise MemoryError
    lent = _Lent(address, device_type, device.index or 0, 1, _UNSIGNED, 8, 1)
    lent.shape, lent.strides = block + _Lent.count.offset, block + _Lent.stride.offset
    lent.count, lent.stride = size_bytes, 1
    lent.deleter = _FREE
    ctypes.memmove(block, ctypes.byref(lent), ctypes.sizeof(_Lent))
    return block
