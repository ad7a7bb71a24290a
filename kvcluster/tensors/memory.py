"""A range of address as one flat torch tensor, on the CPU or on a GPU. Nothing is read, written or owned.

Torch takes it as DLPack (5 us), with the device said explicitly: torch's other way to a GPU's address needs numpy, and
asks the driver about the pointer, which of a range with nothing mapped at its beginning knows nothing. Such a range
may be larger than what is mapped: only the views' rows may be used.
"""

from __future__ import annotations

import torch

from kvcluster.driver.protocol import Driver
from kvcluster.tensors.dlpack import bytes_at

CPU = torch.device("cpu")


def memory_at(address: int, size_bytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[size_bytes / element size] elements of `dtype` from `address` on, in the memory of `device`.

    Raises:
        ValueError: a GPU without its number: the current one may be another.
    """
    if device != CPU and device.index is None:
        raise ValueError(f"memory of {device} needs its number, as in {device}:0")
    return bytes_at(address, size_bytes, device).view(dtype)


def computing_device(driver: Driver, ordinal: int) -> torch.device:
    """Where a model computes: on the CPU where that reaches `driver`'s memory, else on the GPU of this number here."""
    return CPU if driver.is_host_memory else torch.device("cuda", ordinal)
