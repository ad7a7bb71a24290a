"""What a part is told, and what it tells: values that cross a process as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a part runs, and how much of it.

    `ordinal` is the GPU's number in this process. `rounds` is how often a call is timed, `run` how many handles lie
    side by side, `growths` how often a sequence grows, `held_bytes` what a process has that is killed.
    """

    ordinal: int
    is_stand_in: bool
    rounds: int
    run: int
    growths: int
    held_bytes: int

    @property
    def device(self) -> str:
        """As `open_cuda_driver` names it."""
        return f"cuda:{self.ordinal}"

    def encoded(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Setting:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Found:
    """What a part found: a sentence for the table, and figures for the JSON."""

    sentence: str
    figures: Mapping[str, Any]


class Skipped(Exception):
    """The part cannot run here; the message is the reason, a sentence."""


class Broken(Exception):
    """Something does not hold that we count on; the message says what. `figures` is what was found until then."""

    def __init__(self, sentence: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.figures = figures or {}
