"""Prints what a client hears when the kernel takes no more descriptors under way for this user.

Run as a process of its own: it gives up its privileges, because root is exempt from that limit.
"""

from __future__ import annotations

import os
import resource
import socket

from kvcluster.attach.connection import Connection
from kvcluster.attach.protocol import Descriptors, HandedHandle
from kvcluster.attach.sockets import MAX_DESCRIPTORS, Packet, receive
from kvcluster.ids import ImportKey
from kvcluster.wire.codec import decode_socket


def main() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(ours)
    made: list[int] = []

    def export(start: int) -> Descriptors:
        numbers = range(start, start + min(MAX_DESCRIPTORS, 600 - start))
        handles = tuple(HandedHandle(ImportKey(number, 1), 4096, os.dup(0)) for number in numbers)
        piece = Descriptors(handles, 600)
        made.extend(piece.fds)
        return piece

    if os.geteuid() == 0:
        os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    connection.asked(7)
    connection.hand(1, export)
    connection.flush()
    connection.close()
    heard: list[Packet] = []
    while not heard or heard[-1].data:
        heard.append(receive(theirs))
    messages = [decode_socket(packet.data).model_dump() for packet in heard[:-1]]
    still_open = len([fd for fd in set(made) if os.path.exists(f"/proc/self/fd/{fd}")])
    print([message["verb"] for message in messages], messages[-1]["fault"]["error"], messages[-1]["ask"], still_open)


if __name__ == "__main__":
    main()
