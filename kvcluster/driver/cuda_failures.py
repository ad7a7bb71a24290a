"""What CUDA says when it says no, and how that is told in errors of ours.

A status code is a `CudaFailed` inside this room and a DriverError outside, with the code and its name as CUDA has
them. Where a limit of the process is behind it (address space, descriptors) it is a LimitReached that names the
remedy. A rule that our own books found broken is told as INVALID_VALUE, which is what CUDA would have said.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from kvcluster.driver.limits import DESCRIPTORS
from kvcluster.driver.strict import Asked, CallFailed
from kvcluster.errors import DriverError, LimitReached

INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NO_DEVICE: Final = 100
OPERATING_SYSTEM: Final = 304
NOT_FOUND: Final = 500
NOT_READY: Final = 600
NOT_PERMITTED: Final = 800
NOT_SUPPORTED: Final = 801
UNKNOWN: Final = 999
UNSUPPORTED: Final = frozenset({INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED})
"""What a driver answers when it is asked for something that it, or the machine, does not offer."""


class CudaFailed(CallFailed):
    """A call of the driver API, by its own name, that returned another status than success."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})")
        self.function = function
        self.code = code
        self.name = name


def as_ours(asked: Asked, failure: Exception) -> LimitReached | DriverError:
    """The error to raise for `failure`."""
    code, name = INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"
    if isinstance(failure, CudaFailed):
        code, name = failure.code, failure.name
        if limit := _limit_behind(failure, asked):
            return limit
    return DriverError(call=asked.call, code=code, name=name, address=asked.address, size_bytes=asked.size_bytes)


def _limit_behind(failure: CudaFailed, asked: Asked) -> LimitReached | None:
    """The limit that the call ran into, if it was one: neither has a code of its own."""
    if (asked.call, failure.code) == ("reserve", OUT_OF_MEMORY):
        remedy = "raise the address-space limit (ulimit -v) or reserve for fewer tokens"
        return LimitReached(limit="bytes of address", need=asked.size_bytes, free=0, remedy=remedy)
    if failure.code == OPERATING_SYSTEM and _descriptors_are_used_up():
        return DESCRIPTORS.refusal(need=1, free=0)
    return None


def _descriptors_are_used_up() -> bool:
    """Found out by taking one: to count them needs one as well."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as failure:
        return failure.errno in (errno.EMFILE, errno.ENFILE)
    return False
