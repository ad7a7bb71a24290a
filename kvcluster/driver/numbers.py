"""Handles' numbers, over all drivers of the process: another driver's handle is never taken for one's own."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def next_number() -> int:
    """Never the same twice."""
    return next(_numbers)
