"""How a process of this machine ended, by the kernel's word: the signal that killed it, or its exit code.

A process that is nobody's child cannot be waited for, but whoever held a pidfd of it while it lived may ask how it
ended (PIDFD_GET_INFO, Linux 6.15; `linux/pidfd.h`). An older kernel does not say, and then nobody knows: a worker of
Ray is Ray's child, and Ray tells a SIGKILL from a SIGSEGV as little as from an exit code.

The answer is there once its parent has reaped it, a moment after its end: whoever is told of a death by its sockets,
which close before, has to wait for it (`ending_within`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time

_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_EXIT_IS_KNOWN = 1 << 3
_MASK, _EXIT_CODE = struct.Struct("<Q"), struct.Struct("<i")
_EXIT_CODE_AT, _INFO_BYTES = 60, 64
_POLL_S = 0.005


class Watched:
    """A process that is to be asked about after its end; see `watch`. One descriptor, until `close`."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def ending(self) -> str | None:
        """ "it was killed by SIGKILL"; None while it lives or was not reaped.

        Empty after an exit code of 0, and where the kernel never says, even of one that lives.
        """
        info = bytearray(_INFO_BYTES)
        _MASK.pack_into(info, 0, _EXIT_IS_KNOWN)
        try:
            fcntl.ioctl(self._pidfd, _GET_INFO, info)
        except OSError:  # an older kernel
            return ""
        if not _MASK.unpack_from(info)[0] & _EXIT_IS_KNOWN:
            return None
        return sentence_of(_EXIT_CODE.unpack_from(info, _EXIT_CODE_AT)[0])

    def ending_within(self, timeout_s: float) -> str:
        """The same, waiting so long for it; empty where it is not known by then."""
        deadline = time.monotonic() + timeout_s
        while (ending := self.ending()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return ending or ""

    @property
    def descriptor(self) -> int:
        """Readable once the process has ended."""
        return self._pidfd

    def close(self) -> None:
        os.close(self._pidfd)


def watch(pid: int) -> Watched | None:
    """That process of this machine, from now on; None where it is gone already.

    Raises:
        OSError: this process cannot have another descriptor.
    """
    try:
        return Watched(os.pidfd_open(pid))
    except ProcessLookupError:
        return None


def sentence_of(status: int) -> str:
    """What a wait status says of an end that was no orderly one."""
    if number := os.WTERMSIG(status):
        known = {each.value: each.name for each in signal.Signals}
        return f"it was killed by {known.get(number, f'signal {number}')}"
    code = os.WEXITSTATUS(status)
    return f"it ended with exit code {code}" if code else ""
