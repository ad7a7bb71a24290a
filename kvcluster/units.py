"""Bytes, as people write them: "512MiB" in, "512.0 MiB" out. Binary units only."""

from __future__ import annotations

import re
from decimal import Decimal

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_FACTORS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB, "k": KIB, "m": MIB, "g": GIB}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """The bytes that `text` names: 4096, "64KiB", "1.5 GiB".

    Raises:
        ValueError: not a size; the sentence shows the form that is.
    """
    match = _SIZE.fullmatch(str(text))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: write a number with KiB, MiB or GiB, as in 512MiB")
    return int(Decimal(match[1]) * factor)


def format_bytes(size_bytes: int) -> str:
    """`size_bytes` in the largest binary unit that leaves at least 1: "11.3 MiB"."""
    for factor, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.1f} {name}"
    return f"{size_bytes} B"


def ceil_div(amount: int, unit: int) -> int:
    """How many whole `unit`s hold `amount`."""
    return -(-amount // unit)
