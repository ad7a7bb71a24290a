"""What the caller of a request is told when there is no memory for it: a status, a code, and a sentence with figures.

    400 context_length_exceeded   it never fits: ask for less
    429 kv_memory_full            not now: come back when it says
    503 device_failed             the memory's owner could not do it, or only a process's end could

Whether somebody is told is decided in `answers`. `owner` is who has the memory, for people.
"""

from __future__ import annotations

from kvcluster.errors import KvClusterError, NeverFits, OutOfBudget
from kvcluster.services.completion import Refused
from kvcluster.services.request.intake import BAD_REQUEST, TOO_LONG

TOO_MANY, UNAVAILABLE = 429, 503
OUT_OF_MEMORY = "kv_memory_full"
DEVICE_FAILED = "device_failed"


def never_fits(owner: str, error: NeverFits) -> Refused:
    """It alone is more than there is."""
    need, capacity = error.need, error.capacity
    sentence = f"prompt and max_tokens need {need} bytes of KV memory, and {owner} has {capacity} bytes"
    return Refused(BAD_REQUEST, TOO_LONG, sentence)


def too_many_beams(owner: str, need_bytes: int, refusal: OutOfBudget) -> Refused:
    """The beams of one search are more together than there is, or than the quarantine leaves."""
    left_bytes = refusal.capacity - refusal.quarantined
    sentence = f"the beams need {need_bytes} bytes of KV memory together, and {owner} has {left_bytes} bytes"
    if need_bytes > refusal.capacity:
        return Refused(BAD_REQUEST, TOO_LONG, sentence)
    return Refused(UNAVAILABLE, DEVICE_FAILED, f"{sentence} that it could take back")


def come_back(owner: str, refusal: OutOfBudget) -> Refused:
    """There is too little now."""
    retry_after_s = refusal.retry_after_s
    sentence = (
        f"{owner} has {refusal.free} bytes of KV memory free and the request needs {refusal.need} to begin: "
        f"ask again in {retry_after_s:.1f} s"
    )
    return Refused(TOO_MANY, OUT_OF_MEMORY, sentence, retry_after_s)


def blocked(owner: str, need_bytes: int, refusal: OutOfBudget, *, waited_s: float) -> Refused:
    """Only the end of a process could bring back what it needs, and none came."""
    sentence = (
        f"the request needs {need_bytes} bytes at once, and {refusal.quarantined} of {owner}'s "
        f"{refusal.capacity} bytes could not be taken back: they stay charged until the processes that may "
        f"still use them end, and none did in {waited_s:.0f} s"
    )
    return Refused(UNAVAILABLE, DEVICE_FAILED, sentence)


def gave_none(owner: str, tries: int, error: KvClusterError) -> Refused:
    """It was asked so often, and failed each time."""
    sentence = f"{owner} gave no memory in {tries} tries, the last time because {error}"
    return Refused(UNAVAILABLE, DEVICE_FAILED, sentence)
