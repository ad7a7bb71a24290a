"""The few system calls that the host driver is made of, through ctypes.

The `mmap` module cannot map at a fixed address, so libc is called directly: within 2.3 us of the same calls made
from C. Every function raises OSError with the kernel's errno and keeps no books; ctypes releases the GIL.

A forked child inherits neither reservations nor mappings (MADV_DONTFORK): it may outlive the process that the
memory was lent to, and its stray stores would reach the memory's next owner. A mapping at a fixed address does not
inherit that mark, so each is marked before it has any access; one call a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os

PROT_NONE = 0
PROT_READ = mmap.PROT_READ
PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_MAP_FIXED = 0x10  # the mmap module names none of the three; as on x86-64 and arm64
_MAP_NORESERVE = 0x4000
_MAP_FIXED_NOREPLACE = 0x100000
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_SHARED_AT = mmap.MAP_SHARED | _MAP_FIXED
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
_MAP_FAILED = ctypes.c_void_p(-1).value


def _failed() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _mmap(address: int, size_bytes: int, flags: int, descriptor: int) -> int:
    found: int | None = _libc.mmap(address, size_bytes, PROT_NONE, flags, descriptor, 0)
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
        _keep_from_children(found, size_bytes + slack)
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


def map_file(address: int, size_bytes: int, descriptor: int) -> None:
    """The file's first bytes at `address`, shared, over a bare reservation; no access yet."""
    if _libc.mmap(address, size_bytes, PROT_NONE, _SHARED_AT, descriptor, 0) == _MAP_FAILED:
        failure = _failed()
        # The kernel may refuse the file after it took the reservation away. Put it back, over nothing else.
        with contextlib.suppress(OSError):
            _reserve_again(address, size_bytes, _MAP_FIXED_NOREPLACE)
        raise failure


def unmap_file(address: int, size_bytes: int) -> None:
    """Bare reservation again, in one call, so that no other thread's mapping can slip in between."""
    _reserve_again(address, size_bytes, _MAP_FIXED)


def _reserve_again(address: int, size_bytes: int, fixed: int) -> None:
    """Marked, it is one mapping again with the gap beside it; unmarked it does a child no harm either."""
    _mmap(address, size_bytes, _RESERVED | fixed, -1)
    _libc.madvise(address, size_bytes, mmap.MADV_DONTFORK)


def _keep_from_children(address: int, size_bytes: int) -> None:
    if _libc.madvise(address, size_bytes, mmap.MADV_DONTFORK) != 0:
        raise _failed()


def protect(address: int, size_bytes: int, protection: int) -> None:
    """Access for this process alone, to whole mappings."""
    _keep_from_children(address, size_bytes)
    if _libc.mprotect(address, size_bytes, protection) != 0:
        raise _failed()


def create_memory(size_bytes: int) -> int:
    """A descriptor of anonymous memory whose pages are allocated and whose size is sealed.

    Allocated now, because running out at first touch would be a SIGBUS (475 us for 2 MiB); sealed, because a
    holder that truncates it would kill every reader.
    """
    descriptor = os.memfd_create("kvcluster", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def duplicate(descriptor: int) -> int:
    """A new close-on-exec descriptor of the same file."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0)


def is_fixed_memory(descriptor: int, size_bytes: int) -> bool:
    """Whether it is anonymous memory of exactly this size that nobody can shrink or grow."""
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    return seals & _FIXED_SIZE == _FIXED_SIZE and os.fstat(descriptor).st_size == size_bytes


def held_bytes(descriptor: int) -> int:
    """The bytes that the kernel has allocated to the file."""
    return os.fstat(descriptor).st_blocks * 512


def write_zeros(descriptor: int, size_bytes: int) -> None:
    zeros = bytes(min(size_bytes, _CHUNK_BYTES))
    written = 0
    while written < size_bytes:
        written += os.pwrite(descriptor, zeros[: size_bytes - written], written)
