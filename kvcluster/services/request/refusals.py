"""What the caller of a request is told when there is no memory for it: a status, a code, and a sentence with figures.

    400 context_length_exceeded   it never fits: ask for less
    429 kv_memory_full            not now: come back when it says
    429 server_busy               as many wait as may: the same
    503 device_failed             the memory's owner could not do it, or only a process's end could

Whether somebody is told is decided in `answers`, and for a busy server in `door`. `owner` is who has the memory, for
people.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.errors import KvClusterError, NeverFits, OutOfBudget
from kvcluster.services.completion import BAD_REQUEST, BUSY, INVALID, TOO_LONG, TOO_MANY, UNAVAILABLE, Refused


@dataclass(frozen=True, slots=True)
class Load:
    """Texts that are computed and that wait; `most_waiting` is the setting, `room` how many may wait as it is now.

    `free_bytes` were free when the first of them was refused that waits for memory, where one does.
    """

    running: int
    waiting: int
    most_waiting: int
    room: int
    free_bytes: int | None = None


OUT_OF_MEMORY, DEVICE_FAILED = "kv_memory_full", "device_failed"


def never_fits(owner: str, error: NeverFits) -> Refused:
    """It alone is more than there is."""
    need, capacity = error.need, error.capacity
    sentence = f"prompt and max_tokens need {need} bytes of KV memory, and {owner} has {capacity} bytes"
    return Refused(BAD_REQUEST, TOO_LONG, sentence, need_bytes=need, free_bytes=capacity)


def too_many_beams(owner: str, need_bytes: int, refusal: OutOfBudget) -> Refused:
    """The beams of one search are more together than there is, or than the quarantine leaves."""
    left_bytes = refusal.capacity - refusal.quarantined
    sentence = f"the beams need {need_bytes} bytes of KV memory together, and {owner} has {left_bytes} bytes"
    if need_bytes > refusal.capacity:
        return Refused(BAD_REQUEST, TOO_LONG, sentence, need_bytes=need_bytes, free_bytes=left_bytes)
    sentence = f"{sentence} that it could take back"
    return Refused(UNAVAILABLE, DEVICE_FAILED, sentence, need_bytes=need_bytes, free_bytes=left_bytes)


def come_back(owner: str, refusal: OutOfBudget, retry_after_s: float) -> Refused:
    """There is too little now."""
    sentence = (
        f"{owner} has {refusal.free} bytes of KV memory free and the request needs {refusal.need} to begin: "
        f"ask again in {retry_after_s:.1f} s"
    )
    return Refused(
        TOO_MANY,
        OUT_OF_MEMORY,
        sentence,
        retry_after_s,
        need_bytes=refusal.need,
        free_bytes=refusal.free,
    )


def busy(load: Load, texts: int, prompt_bytes: int, retry_after_s: float) -> Refused:
    """With so many more texts too many would wait. Where its prompt takes more memory than was free for those that
    lack some, it is told both.
    """
    is_short = load.free_bytes is not None and prompt_bytes > load.free_bytes
    memory = f". Its prompt takes {prompt_bytes} bytes of KV memory, and {load.free_bytes} were free of late"
    sentence = (
        f"{load.running} {'text is' if load.running == 1 else 'texts are'} running and {load.waiting} "
        f"{'is' if load.waiting == 1 else 'are'} waiting; at most {load.room} may wait now ({_why_so_many(load)}), so "
        f"there is no room for {_counted(texts)} more: ask again in {retry_after_s:.1f} s{memory if is_short else ''}"
    )
    need_bytes, free_bytes = (prompt_bytes, load.free_bytes) if is_short else (None, None)
    return Refused(TOO_MANY, BUSY, sentence, retry_after_s, need_bytes, free_bytes)


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


def no_pages_for_beams() -> Refused:
    """Only host pages fork."""
    sentence = "use_beam_search needs host pages, and there are none: give host_memory 512MiB, say"
    return Refused(BAD_REQUEST, INVALID, sentence, param="use_beam_search")


def never_at_once(texts: int, *, seats: int, most_waiting: int) -> Refused:
    """It asks for more texts than may be here at all."""
    sentence = (
        f"n is {texts}, and here it is at most {seats + most_waiting}: {seats} texts are computed at once and "
        f"{most_waiting} may wait (max_num_seqs and max_num_waiting)"
    )
    return Refused(BAD_REQUEST, INVALID, sentence, param="n")


def _why_so_many(load: Load) -> str:
    setting, free_seats = f"max_num_waiting is {load.most_waiting}", load.room - load.most_waiting
    if not free_seats:
        return setting
    return f"{setting}, and max_num_seqs has room for {free_seats}"


def _counted(texts: int) -> str:
    return "one" if texts == 1 else str(texts)
