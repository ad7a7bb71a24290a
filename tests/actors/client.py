"""A process with a session of its own and no model: memory, a verb at a time. Runs as an actor."""

from __future__ import annotations

import ctypes
import os

from actors.devices import Device
from actors.proxies import open_port
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.asks import Grow
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec

GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)
MADV_REMOVE = 9  # as on x86-64 and arm64
TOKENS_A_GRANULE = 4096 // GEOMETRY.token_bytes


class Client:
    """One request at a time. Its token takes 256 bytes, so that a granule of 4 KiB holds 16."""

    def __init__(self, device: Device) -> None:
        self._port = open_port(device)
        self._memory: SequenceMemory

    def session(self) -> tuple[int, str]:
        """This process's id, and the session's name."""
        return os.getpid(), self._port.session

    def commit(self, granules: int) -> int:
        """A new request with so many granules, asked for in one frame. Returns how many bytes it holds."""
        self._memory = self._port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, granules * TOKENS_A_GRANULE))
        [outcome] = self._port.submit([Grow(self._memory, self._memory.spec.max_tokens)]).settle()
        if outcome.error:
            raise outcome.error
        return self._memory.committed_bytes

    def publish(self, granules: int) -> Prefix:
        """Share the first `granules`."""
        return self._memory.publish(granules * TOKENS_A_GRANULE)

    def join(self, prefix: Prefix, granules: int) -> int:
        """A new request of so many granules that joins `prefix`. Returns how many of its tokens are there."""
        self._memory = self._port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, granules * TOKENS_A_GRANULE))
        return self._memory.join(prefix, prefix.tokens)

    def release(self) -> None:
        self._memory.release()

    def fill(self, text: str) -> None:
        """Write "text/number;" into each granule, over and over."""
        for number in range(self._memory.committed_bytes // 4096):
            content = f"{text}/{number};".encode()
            ctypes.memmove(self._memory.address + number * 4096, content * (4096 // len(content)), 4096 - 32)

    def starts(self) -> list[str]:
        """What each granule begins with, up to the first ";"."""
        mapped_bytes = self._memory.committed_bytes + self._memory.shared_bytes
        places = range(self._memory.address, self._memory.address + mapped_bytes, 4096)
        return [ctypes.string_at(place, 64).partition(b";")[0].decode() for place in places]

    def lose_a_page(self) -> None:
        """Give a page of the device's memory back to the kernel behind everybody's back."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(self._memory.address), ctypes.c_size_t(4096), MADV_REMOVE) != 0:
            raise OSError(ctypes.get_errno(), "madvise")

    def close(self) -> None:
        """End the session in good order."""
        self._port.close()

    def hang_up(self) -> None:
        """End the session's connection, and live on with everything mapped."""
        self._port.exchange.line.close()
