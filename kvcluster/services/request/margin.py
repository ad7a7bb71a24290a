"""How much memory to ask for, and when: ahead of need, and whole granules only. Pure arithmetic.

A sequence that has room for fewer than two more steps is due: the frame leaves before one step, its answer is used
before the next, so nothing waits. One frame tops up everybody, up to the last granule that the margin fills; what
the margin would only begin is not taken. With 8 tokens a granule and a margin of 16 that is one frame in 8 steps,
and 1 to 16 tokens of slack a sequence. One that is 8 margins long gets half a margin more: a frame in 16 steps then,
and the slack is a smaller share of it than before (counted by benchmarks/bench_quiet.py).
Source: "Virtual Memory for KV Cache", case one: memory grows ahead of need, so that no step waits for it.
"""

from __future__ import annotations

from kvcluster.geometry.residency import Shape

STEPS_AHEAD = 2
_LONG_MARGINS = 8


def margin_at(length: int, margin: int) -> int:
    """The margin of a sequence with `length` tokens written, where that of a short one is `margin`."""
    return margin if length < _LONG_MARGINS * margin else margin * 3 // 2


def is_due(room_tokens: int) -> bool:
    """Whether a sequence that needs more must ask before the next step."""
    return room_tokens < STEPS_AHEAD


def admission_tokens(known: int, most: int, margin: int) -> int:
    """What to commit for a sequence of `known` tokens that begins (or begins again), and never holds over `most`."""
    return min(known + margin, most)


def needed_tokens(length: int, most: int) -> int:
    """The least that lets a sequence with `length` tokens written go on; asked for where memory is short."""
    return min(length + STEPS_AHEAD, most)


def topped_up_tokens(shape: Shape, length: int, most: int, margin: int) -> int:
    """What to commit for a sequence with `length` tokens written: the granules that the margin fills.

    Groups that keep every token decide, and rings in their first lap; where there is neither it is all of `most`.
    """
    filled = shape.tokens_in(shape.whole_windows(length + margin))
    return min(max(length + STEPS_AHEAD, filled), most)
