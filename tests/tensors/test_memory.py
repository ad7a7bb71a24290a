"""Addresses as flat tensors: what lies there is seen, nothing is owned, and nothing is left behind."""

from __future__ import annotations

import ctypes

import pytest
import torch

from kvcluster.tensors.dlpack import bytes_at
from kvcluster.tensors.memory import CPU, memory_at

ABSENT = torch.device("cuda", 0)
MANY, FEW_BYTES = 10_000, 100_000  # of a hundred bytes each: a million, were they kept


class Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = (("before", ctypes.c_size_t * 7), ("in_use", ctypes.c_size_t), ("after", ctypes.c_size_t * 2))


def heap_bytes() -> int:
    """What C's heap has given out."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    return int(mallinfo().in_use)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_a_tensor_at_an_address_shows_what_lies_there(dtype: torch.dtype) -> None:
    owner = torch.arange(24).to(dtype)
    seen = memory_at(owner.data_ptr(), 24 * dtype.itemsize, dtype, CPU)
    assert (seen.data_ptr(), seen.dtype, seen.device) == (owner.data_ptr(), dtype, CPU)
    assert torch.equal(seen, owner)
    seen[3] = 7
    assert owner[3] == 7


def test_a_range_is_as_long_as_its_address_whatever_is_mapped() -> None:
    seen = memory_at(4096, 2**45, torch.bfloat16, CPU)
    assert (seen.data_ptr(), tuple(seen.shape), seen.stride()) == (4096, (2**44,), (1,))


def test_a_tensor_of_a_tensor_at_an_address_outlives_it() -> None:
    owner = torch.arange(64, dtype=torch.uint8)
    row = bytes_at(owner.data_ptr(), 64, CPU)[8:12]
    assert row.tolist() == [8, 9, 10, 11]


def test_what_describes_a_range_is_freed_with_its_tensor() -> None:
    owner = torch.zeros(64, dtype=torch.uint8)
    bytes_at(owner.data_ptr(), 64, CPU)
    before = heap_bytes()
    for _ in range(MANY):
        bytes_at(owner.data_ptr(), 64, CPU)
    assert heap_bytes() - before < FEW_BYTES


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch knows CUDA")
def test_what_describes_a_range_is_freed_where_torch_does_not_take_it() -> None:
    with pytest.raises(AssertionError, match="CUDA"):
        bytes_at(4096, 4096, ABSENT)
    before = heap_bytes()
    for _ in range(MANY):
        with pytest.raises(AssertionError):
            bytes_at(4096, 4096, ABSENT)
    assert heap_bytes() - before < FEW_BYTES


def test_a_gpu_without_its_number_is_refused() -> None:
    with pytest.raises(ValueError, match="as in cuda:0"):
        memory_at(0, 4096, torch.float32, torch.device("cuda"))
