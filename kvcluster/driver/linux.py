"""The few system calls that the host driver is made of, through ctypes.

The `mmap` module cannot map at a fixed address, so libc is called directly: within 2.3 us of the same calls made
from C. Every function raises OSError with the kernel's errno and keeps no books; ctypes releases the GIL.

A forked child inherits no mapping that has access (MADV_DONTFORK): it may outlive the process that the memory was
lent to, and its stray stores would reach the memory's next owner. Each mapping is marked before it has any access,
one call a run. A bare reservation it does inherit, which keeps its stray stores from whatever it maps itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterable

from kvcluster.transaction import Progress

PROT_NONE = 0
PROT_READ = mmap.PROT_READ
PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_MAP_FIXED = 0x10  # the mmap module names none of the three; as on x86-64 and arm64
_MAP_NORESERVE = 0x4000
_MAP_FIXED_NOREPLACE = 0x100000
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_SHARED_AT = mmap.MAP_SHARED | _MAP_FIXED
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # madvise: neither is named by the mmap module
_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_CHUNK_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.munmap.restype = ctypes.c_int
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mprotect.restype = ctypes.c_int
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.restype = ctypes.c_int
_mmap_at, _mprotect, _madvise = _libc.mmap, _libc.mprotect, _libc.madvise
_MAP_FAILED = ctypes.c_void_p(-1).value


def _failed() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _mmap(address: int, size_bytes: int, flags: int, descriptor: int) -> int:
    found: int | None = _mmap_at(address, size_bytes, PROT_NONE, flags, descriptor, 0)
    if found is None or found == _MAP_FAILED:
        raise _failed()
    return found


def reserve(size_bytes: int, alignment_bytes: int) -> int:
    """Address without memory, aligned: reserves up to one alignment more and gives the edges back."""
    slack = alignment_bytes - mmap.PAGESIZE
    found = _mmap(0, size_bytes + slack, _RESERVED, -1)
    address = -(-found // alignment_bytes) * alignment_bytes
    head, tail = address - found, found + slack - address
    try:
        for edge, edge_bytes in ((found, head), (address + size_bytes, tail)):
            if edge_bytes:
                unreserve(edge, edge_bytes)
    except OSError:
        unreserve(found, size_bytes + slack)
        raise
    return address


def unreserve(address: int, size_bytes: int) -> None:
    if _libc.munmap(address, size_bytes) != 0:
        raise _failed()


def map_files(address: int, files: Iterable[tuple[int, int]], done: Progress) -> None:
    """Of each file (size, descriptor) all its bytes, side by side from `address` on, shared, over a bare reservation.

    No access yet. A commit is mostly this loop, which therefore calls nothing but the kernel.
    """
    for size_bytes, descriptor in files:
        if _mmap_at(address, size_bytes, PROT_NONE, _SHARED_AT, descriptor, 0) == _MAP_FAILED:
            failure = _failed()
            # The kernel may refuse the file after it took the reservation away. Put it back, over nothing else.
            with contextlib.suppress(OSError):
                _reserve_again(address, size_bytes, _MAP_FIXED_NOREPLACE)
            raise failure
        done.count += 1
        address += size_bytes


def unmap_file(address: int, size_bytes: int) -> None:
    """Bare reservation again, in one call, so that no other thread's mapping can slip in between."""
    _reserve_again(address, size_bytes, _MAP_FIXED)


def _reserve_again(address: int, size_bytes: int, fixed: int) -> None:
    """One mapping again with the gap beside it."""
    _mmap(address, size_bytes, _RESERVED | fixed, -1)


def protect(address: int, size_bytes: int, protection: int) -> None:
    """Access for this process alone, to whole mappings."""
    if _madvise(address, size_bytes, mmap.MADV_DONTFORK) or _mprotect(address, size_bytes, protection):
        raise _failed()


def populate(address: int, size_bytes: int, *, writable: bool) -> bool:
    """Enter the pages of mappings that have access in the page table, as their first touch would; whether it was done.

    Not by a kernel before 5.14, and not where anything there has no such access: then nothing is lost but time.
    """
    return not _madvise(address, size_bytes, _POPULATE_WRITE if writable else _POPULATE_READ)


def create_memory(size_bytes: int) -> int:
    """A descriptor of anonymous memory whose pages are allocated and whose size is sealed; writing can be sealed later.

    Allocated now, because running out at first touch would be a SIGBUS (475 us for 2 MiB); sealed, because a
    holder that truncates it would kill every reader. Its name, for people and `kvcluster doctor`, says whose it is.
    """
    descriptor = os.memfd_create(f"kvcluster-{os.getpid()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_sparse(size_bytes: int) -> int:
    """The same, all zeros, of which nothing is allocated: each page is when it is first written. No device's memory."""
    descriptor = os.memfd_create(f"kvcluster-page-{os.getpid()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def duplicate(descriptor: int) -> int:
    """A new close-on-exec descriptor of the same file."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)


def seals_of(descriptor: int) -> int:
    """What can never again be done to this memory; an error where it is no anonymous memory."""
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)


def is_fixed(seals: int) -> bool:
    """Whether nobody can shrink or grow it, which would kill its readers."""
    return seals & _FIXED_SIZE == _FIXED_SIZE


def is_sealed(seals: int) -> bool:
    """Whether nobody can write it, or map it to be written."""
    return bool(seals & fcntl.F_SEAL_WRITE)


def is_read_only(descriptor: int) -> bool:
    """Whether this descriptor neither writes nor maps what is to be written."""
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def seal(descriptor: int) -> None:
    """Nobody writes this memory ever again. EBUSY while anybody has it mapped by way of a writable descriptor."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)


def reopened_for_reading(descriptor: int) -> int:
    """A new close-on-exec descriptor of the same file that reads only.

    Sealed memory is mapped by way of such a one alone: older kernels refuse every shared mapping through another.
    """
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def size_of(descriptor: int) -> int:
    """The file's size; moves its offset, which nobody uses, because fstat costs four times as much."""
    return os.lseek(descriptor, 0, os.SEEK_END)


def held_bytes(descriptor: int) -> int:
    """The bytes that the kernel has allocated to the file."""
    return os.fstat(descriptor).st_blocks * 512


def write_zeros(descriptor: int, size_bytes: int) -> None:
    zeros = bytes(min(size_bytes, _CHUNK_BYTES))
    written = 0
    while written < size_bytes:
        written += os.pwrite(descriptor, zeros[: size_bytes - written], written)
