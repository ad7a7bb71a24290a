"""The memory of host pages: one memfd, all of it allocated and mapped at once, as a strided torch tensor.

Whoever makes it maps it for reading and writing. Other processes map the same memory from its descriptor, for reading
alone, and give themselves access to the blocks that they write (`protect`): a stray write ends the process that makes
it, and reaches no block but those that it may write just then. That is protection from mistakes: a process that holds
the descriptor can give itself access to every page.

Access is changed a run of adjacent blocks a call. The kernel splits a mapping where access differs, so a pool of n
blocks takes at most n mappings; what would go beyond the process's limit is refused before anything is done.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from operator import ne

import torch

from kvcluster.driver import linux
from kvcluster.driver.limits import DESCRIPTORS, MAPPINGS, MEMORY
from kvcluster.driver.protocol import Access
from kvcluster.errors import DriverError
from kvcluster.paged.shape import PageShape
from kvcluster.transaction import Progress

_PROTECTIONS = {Access.READ: linux.PROT_READ, Access.READ_WRITE: linux.PROT_READ_WRITE}
_UNKNOWN = 255  # of blocks whose call failed


class PageStore:
    """See `open_store` and `attach_store`. Tensors of it must not be used once it is closed."""

    def __init__(
        self, shape: PageShape, num_blocks: int, dtype: torch.dtype, *, descriptor: int, address: int, access: Access
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.descriptor = descriptor
        self.address = address
        self.calls = 0  # that changed access
        self.mappings = 1  # of the kernel: one more wherever the access of two neighbours differs
        self.tensor = _tensor_at(address, shape, num_blocks, dtype)
        """[blocks, 2, layers, kv_heads, block_size, head_dim], with whole memory pages from block to block."""
        self._access = bytearray([_PROTECTIONS[access]]) * num_blocks

    @property
    def size_bytes(self) -> int:
        return self.num_blocks * self.shape.pitch_bytes

    def copy_tokens(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens of block number `source`, all layers, into `target`."""
        self.tensor[target, ..., :tokens, :] = self.tensor[source, ..., :tokens, :]

    def protect(self, numbers: Iterable[int], access: Access) -> None:
        """Give this process this access to these blocks, by number; one call a run of adjacent ones, if they lack it.

        To read only is how blocks are given back: it takes from the mappings that are kept in spare, and is never
        refused here (`driver.limits`).

        Raises:
            ValueError: there is no such block. Nothing changed.
            LimitReached: more mappings than this process may have, for writing. Nothing changed.
            DriverError: the kernel refused one call: its blocks may have the new access or the old one, and those of
                earlier calls have the new one. To ask again is right.
        """
        protection = _PROTECTIONS[access]
        wanted = sorted(set(numbers))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self.num_blocks:
            raise ValueError(f"blocks {wanted[0]} to {wanted[-1]} are not all among {self.num_blocks}")
        runs = list(_runs([number for number in wanted if self._access[number] != protection]))
        if access is not Access.READ:
            MAPPINGS.ensure(sum(max(0, self._more_mappings(run, protection)) for run in runs))
        for run in runs:
            self._change(run, protection)

    def _change(self, run: range, protection: int) -> None:
        address, size_bytes = self.address + run.start * self.shape.pitch_bytes, len(run) * self.shape.pitch_bytes
        self.calls += 1
        try:
            linux.protect(address, size_bytes, protection)
        except OSError as error:
            self._note(run, _UNKNOWN)
            raise _as_ours("mprotect", error, size_bytes, address=address) from error
        self._note(run, protection)

    def _note(self, run: range, protection: int) -> None:
        more = self._more_mappings(run, protection)
        self._access[run.start : run.stop] = bytes([protection]) * len(run)
        self.mappings += more
        MAPPINGS.used(more)

    def _more_mappings(self, run: range, protection: int) -> int:
        """Than now, once these blocks have this access."""
        left, right = self._access[max(0, run.start - 1) : run.start], self._access[run.stop : run.stop + 1]
        now = left + self._access[run.start : run.stop] + right
        then = left + bytes([protection]) * len(run) + right
        return int(sum(map(ne, then, then[1:])) - sum(map(ne, now, now[1:])))

    def close(self) -> None:
        """Unmap and close. Closing twice is once."""
        if self.descriptor >= 0:
            self.tensor = torch.empty(0, dtype=self.dtype)
            linux.unreserve(self.address, self.size_bytes)
            os.close(self.descriptor)
            self.descriptor = -1
            MAPPINGS.used(-self.mappings)
            DESCRIPTORS.used(-1)


def open_store(shape: PageShape, num_blocks: int, dtype: torch.dtype) -> PageStore:
    """New memory for so many blocks, which this process writes.

    Raises:
        LimitReached: the machine, or this process, has not so much. Nothing is left.
        DriverError: the kernel refused. Nothing is left.
        ValueError: the type's size is not the shape's.
    """
    _check_type(shape, dtype)
    size_bytes = num_blocks * shape.pitch_bytes
    MEMORY.ensure(size_bytes)
    DESCRIPTORS.ensure(1)
    try:
        descriptor = linux.create_memory(size_bytes)
    except OSError as error:
        raise _as_ours("create", error, size_bytes) from error
    MEMORY.used(size_bytes)  # whoever maps it last gives it back: the next measurement tells us
    return _mapped(shape, num_blocks, dtype, descriptor, Access.READ_WRITE)


def attach_store(descriptor: int, shape: PageShape, num_blocks: int, dtype: torch.dtype) -> PageStore:
    """The same memory in another process, all of it for reading. The descriptor is the store's from now on.

    Raises:
        ValueError: it is no memory of this size, or could be shrunk under its readers. It is closed.
        LimitReached, DriverError: as `open_store`. It is closed.
    """
    try:
        _check_type(shape, dtype)
        size_bytes = num_blocks * shape.pitch_bytes
        if linux.size_of(descriptor) != size_bytes or not linux.is_fixed(linux.seals_of(descriptor)):
            raise ValueError(f"the descriptor is no memory of {num_blocks} blocks of {shape.pitch_bytes} bytes")
    except (ValueError, OSError) as wrong:
        os.close(descriptor)
        raise ValueError(str(wrong)) from wrong
    return _mapped(shape, num_blocks, dtype, descriptor, Access.READ)


def _mapped(shape: PageShape, num_blocks: int, dtype: torch.dtype, descriptor: int, access: Access) -> PageStore:
    """The descriptor is the store's, or closed."""
    size_bytes = num_blocks * shape.pitch_bytes
    with ExitStack() as undo:
        undo.callback(os.close, descriptor)
        MAPPINGS.ensure(1)
        try:
            address = linux.reserve(size_bytes, os.sysconf("SC_PAGESIZE"))
            undo.callback(linux.unreserve, address, size_bytes)
            linux.map_files(address, [(size_bytes, descriptor)], Progress())
            linux.protect(address, size_bytes, _PROTECTIONS[access])
        except OSError as error:
            raise _as_ours("map", error, size_bytes) from error
        store = PageStore(shape, num_blocks, dtype, descriptor=descriptor, address=address, access=access)
        undo.pop_all()
    MAPPINGS.used(1)
    DESCRIPTORS.used(1)
    return store


def _check_type(shape: PageShape, dtype: torch.dtype) -> None:
    if dtype.itemsize != shape.element_bytes:
        raise ValueError(f"{dtype} has {dtype.itemsize} bytes an element and the shape {shape.element_bytes}")


def _tensor_at(address: int, shape: PageShape, num_blocks: int, dtype: torch.dtype) -> torch.Tensor:
    size_bytes = num_blocks * shape.pitch_bytes
    memory = torch.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), dtype=torch.uint8)
    elements = memory[: size_bytes - size_bytes % shape.element_bytes].view(dtype)
    sizes = (num_blocks, 2, shape.num_layers, shape.num_kv_heads, shape.block_size, shape.head_dim)
    steps = [1]
    for size in reversed(sizes[2:]):
        steps.append(steps[-1] * size)
    return elements.as_strided(sizes, (shape.pitch_bytes // shape.element_bytes, *reversed(steps)))


def _runs(numbers: list[int]) -> Iterator[range]:
    """Ascending numbers as runs of adjacent ones."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[start], numbers[end - 1] + 1)
            start = end


def _as_ours(call: str, error: OSError, size_bytes: int, *, address: int = 0) -> DriverError:
    code = error.errno or errno.EIO
    name = errno.errorcode.get(code, "?")
    return DriverError(call=call, code=code, name=name, address=address, size_bytes=size_bytes)
