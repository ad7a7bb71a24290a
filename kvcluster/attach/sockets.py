"""The unix sockets of both sides: addresses, who the peer is, packets with descriptors.

SOCK_SEQPACKET, because it keeps the bounds of messages and of the descriptors that come with each, and because a
packet is taken whole or not at all: there is no half-sent message to remember. Names are in the abstract namespace
(docs/decisions/0002-abstract-sockets.md), where anybody may connect; so both sides ask the kernel for the peer's
user. A packet carries at most 253 descriptors (the kernel's SCM_MAX_FD).
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
from dataclasses import dataclass
from uuid import uuid4

from kvcluster.errors import LimitReached, SessionEnded
from kvcluster.wire.codec import MAX_SOCKET_BYTES

MAX_DESCRIPTORS = 253
MAX_ADDRESS_BYTES = 107

SO_PEERPIDFD = 77  # Linux 6.5; not yet named by the socket module
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, or who listens, as the kernel noted it then."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Packet:
    """One message; its descriptors belong to whoever holds this. No data is the peer's end of the connection.

    `is_whole` is False where the kernel cut the data or left descriptors out.
    """

    data: bytes
    fds: tuple[int, ...] = ()
    is_whole: bool = True


def new_address(device: str) -> str:
    """A name that no other server has, in the abstract namespace.

    Raises:
        ValueError: the device's name is too long for a socket's.
    """
    address = f"\0kvcluster-{device}-{uuid4().hex}"
    if len(os.fsencode(address)) > MAX_ADDRESS_BYTES:
        raise ValueError(
            f"{device!r} is too long a name for a device: a socket's has at most {MAX_ADDRESS_BYTES} bytes"
        )
    return address


def packet_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def peer_of(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid)


def is_trusted(peer: Peer) -> bool:
    """Of our own user, and a process that we can see (its id is 0 where it lives in a foreign pid namespace)."""
    return peer.uid == os.geteuid() and peer.pid > 0


def open_pidfd(connection: socket.socket, session: str) -> int:
    """A pidfd of the process that connected: the caller closes it.

    Where the kernel can, it is asked for the connected process itself; else the id is looked up, which is exact as
    long as that process lives.

    Raises:
        SessionEnded: the process is already dead.
        LimitReached: no descriptor is left.
    """
    try:
        pidfd = _pidfd_of(connection)
    except ProcessLookupError:
        raise SessionEnded(session=session) from None
    except OSError as error:
        raise LimitReached(limit="descriptors", need=1, free=0, remedy=f"raise ulimit -n ({error})") from None
    if is_dead(pidfd):
        os.close(pidfd)
        raise SessionEnded(session=session)
    return pidfd


def _pidfd_of(connection: socket.socket) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:  # an older kernel
            return os.pidfd_open(peer_of(connection).pid)
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):  # it was already waited for
            raise ProcessLookupError from None
        raise


def is_dead(pidfd: int) -> bool:
    return bool(_poll(pidfd, select.POLLIN, 0.0))


def is_hung_up(connection: socket.socket) -> bool:
    """The peer has closed, or died; what it sent before may still be there to read."""
    return bool(_poll(connection.fileno(), select.POLLRDHUP, 0.0) & (select.POLLRDHUP | select.POLLHUP))


def wait_for(connection: socket.socket, event: int, timeout_s: float) -> bool:
    """Whether `event` (select.POLLIN or POLLOUT), or an end of the connection, came in time."""
    return bool(_poll(connection.fileno(), event, max(timeout_s, 0.0)))


def _poll(fd: int, event: int, timeout_s: float) -> int:
    poller = select.poll()
    poller.register(fd, event)
    return sum(seen for _, seen in poller.poll(timeout_s * 1000))


def send(connection: socket.socket, data: bytes, fds: tuple[int, ...] = ()) -> None:
    """One packet, now or not at all. The caller still owns `fds`.

    Raises:
        BlockingIOError: no room. Nothing was sent.
        OSError: the connection has ended, or no more descriptors may be under way. Nothing was sent.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, *, max_fds: int = 0) -> Packet:
    """The next packet. Descriptors beyond `max_fds` are closed by the kernel, unseen.

    Raises:
        BlockingIOError: none is there.
        OSError: the connection broke.
    """
    room = socket.CMSG_SPACE(max_fds * array.array("i").itemsize) if max_fds else 0
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    data, rights, seen, _ = connection.recvmsg(MAX_SOCKET_BYTES, room, flags)
    fds = array.array("i")
    for level, kind, raw in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return Packet(data, tuple(fds), not seen & (socket.MSG_TRUNC | socket.MSG_CTRUNC))


def close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
