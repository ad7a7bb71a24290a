"""A client in a process of its own: reads commands from its standard input, answers one line each.

Run as `python -m tests.attach.child ADDRESS`.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import sys

from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.attach.protocol import HandedHandle
from kvcluster.errors import KvClusterError


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class Child:
    def __init__(self, address: str) -> None:
        self.address = address
        self.client: AttachClient | None = None
        self.clients: dict[str, AttachClient] = {}
        self.mapped: list[mmap.mmap] = []

    def attach(self, session: str) -> str:
        self.client = self.clients[session] = open_attach_client(self.address, session, timeout_s=20)
        return f"welcome to {self.client.welcome.device}"

    def redeem(self, seq: str) -> str:
        """The contents, read from each descriptor."""
        assert self.client is not None
        texts: list[str] = []
        inheritable = total_bytes = 0

        def take(handle: HandedHandle) -> None:
            nonlocal inheritable, total_bytes
            assert handle.fd is not None
            texts.append(os.pread(handle.fd, 100, 0).decode())
            inheritable += os.get_inheritable(handle.fd)
            total_bytes += handle.size_bytes

        self.client.redeem(int(seq), take, timeout_s=20)
        return f"{inheritable} {total_bytes} {' '.join(texts)}"

    def close(self, _: str) -> str:
        assert self.client is not None
        self.client.close()
        return "closed"

    def map(self, session: str) -> str:
        """What frame 2 committed, and write into all of it."""

        def take(handle: HandedHandle) -> None:
            assert handle.fd is not None
            self.mapped.append(mmap.mmap(handle.fd, handle.size_bytes))
            self.mapped[-1][:] = session[:1].encode() * handle.size_bytes

        self.clients[session].redeem(2, take, timeout_s=20)
        return f"{len(self.mapped)} mapped"

    def content(self, _: str) -> str:
        """The letters that are in what is mapped."""
        return "".join(sorted({chr(byte) for memory in self.mapped for byte in memory[:]}))

    def surrender(self, session: str) -> str:
        self.clients[session].surrender(timeout_s=20)
        return "surrendered"

    def is_fenced(self, session: str) -> str:
        """Whether it was heard by now: it is sent with the turn that answers the first redemption, or before.

        Then the name of what the last of two redemptions ended with.
        """
        client, ends = self.clients[session], ["served"]
        for _ in range(2):
            try:
                client.redeem(2, lambda _: None, timeout_s=20)
            except KvClusterError as error:
                ends.append(type(error).__name__)
        return f"{client.is_fenced} {len(client.pushes())} {ends[-1]}"

    def fds(self, _: str) -> str:
        return str(open_fds())

    def limit(self, more: str) -> str:
        """Room for so many more descriptors."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(open_fds() + int(more), hard), hard))
        return "limited"

    def fork(self, _: str) -> str:
        """From now on a second process holds the socket; it ends when the standard input does."""
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        return "forked"

    def fork_and_redeem(self, seq: str) -> str:
        """A child of this process redeems, and says on our standard output what came of it, before we say "ended"."""
        if (child := os.fork()) == 0:
            try:
                said = self.redeem(seq)
            except KvClusterError as error:
                said = type(error).__name__
            os.write(1, f"{said}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
        return "ended"

    def fork_and_end(self, session: str) -> str:
        """A child of this process surrenders and then closes our client; what the first ended with comes first."""
        if (child := os.fork()) == 0:
            try:
                said = self.surrender(session)
            except KvClusterError as error:
                said = type(error).__name__
            self.clients[session].close()
            os.write(1, f"{said}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
        return "ended"


def main() -> None:
    signal.alarm(60)  # whatever a test does, this process ends
    child = Child(sys.argv[1].replace("@", "\0"))
    while line := os.read(0, 1000).decode():
        verb, _, argument = line.strip().partition(" ")
        try:
            answer = getattr(child, verb)(argument)
        except KvClusterError as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer, flush=True)
        if verb == "fork":
            signal.pause()


if __name__ == "__main__":
    main()
