"""The kernel: how old it is, and whether what kvcluster rests on works here. Each is tried, not looked up.

Containers and security modules take single system calls away (a seccomp filter answers EPERM or ENOSYS), so that the
release alone proves nothing.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator

from kvcluster.attach import sockets
from kvcluster.services.doctor.finding import Finding, note, ok, problem
from kvcluster.units import format_bytes

_PEER_PIDFD = (6, 5)  # Linux 6.5 hands out the pidfd of whoever connected (attach.sockets)
_LARGEST_DEFAULT = 64 * 1024
_UPDATE = "use Linux 5.10 or newer, and let the container's seccomp profile allow it"


def findings() -> Iterator[Finding]:
    yield release(platform.system(), platform.release())
    yield pages(mmap.PAGESIZE)
    yield _tried("memory seals", seals, "memory can be sealed against shrinking and writing, for every process")
    yield _tried("pidfd", pidfd, "the kernel tells when a process has died")
    yield _tried("descriptors over sockets", rights, "descriptors can be handed to another process")


def release(system: str, version: str) -> Finding:
    """`version` as in "6.1.0-18-amd64"."""
    if system != "Linux":
        return problem("kernel", f"this is {system}, and kvcluster needs Linux.", remedy="use a Linux machine")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _PEER_PIDFD:
        sentence = f"Linux {version} looks a client's pidfd up by its number, which is exact while the client lives."
        return note("kernel", sentence, remedy="nothing needs to be done; Linux 6.5 asks for the process itself")
    return ok("kernel", f"Linux {version}.")


def pages(page_bytes: int) -> Finding:
    """What a host device's granule may be."""
    sizes = f"pages have {format_bytes(page_bytes)}, and a host granule is any power of two from there up"
    if page_bytes > _LARGEST_DEFAULT:
        remedy = f"name a granule: --granule {page_bytes // 1024}KiB"
        return problem("granularity", f"{sizes}, so that the default of 64 KiB is refused.", remedy=remedy)
    return ok("granularity", f"{sizes}; the default is 64 KiB.")


def seals() -> None:
    """Raises OSError where sealed memory can still be written, or cannot be sealed."""
    descriptor = os.memfd_create("kvcluster-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        try:
            os.pwrite(descriptor, b"x", 0)
        except PermissionError:
            return
        raise OSError(errno.ENOTSUP, "sealed memory was written")
    finally:
        os.close(descriptor)


def pidfd() -> None:
    """Raises OSError where there is none, or a living process counts as dead."""
    descriptor = os.pidfd_open(os.getpid())
    try:
        if sockets.is_dead(descriptor):
            raise OSError(errno.ENOTSUP, "the kernel says that this process is dead")
    finally:
        os.close(descriptor)


def rights() -> None:
    """Raises OSError where a descriptor does not arrive as what it was sent as."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sockets.send(ours, b"x", (ours.fileno(),))
        packet = sockets.receive(theirs, max_fds=1)
        try:
            if [os.fstat(fd).st_ino for fd in packet.fds] != [os.fstat(ours.fileno()).st_ino]:
                raise OSError(errno.ENOTSUP, "another descriptor arrived")
        finally:
            sockets.close_all(packet.fds)


def _tried(topic: str, probe: Callable[[], None], promise: str) -> Finding:
    if sys.platform != "linux":
        return problem(topic, "it is not there on this system.", remedy="use a Linux machine")
    try:
        probe()
    except OSError as error:
        return problem(topic, f"it does not work here: {error.strerror or error}.", remedy=_UPDATE)
    return ok(topic, f"{promise}.")
