"""One thing that was looked at: how it is, and what to do where it is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` is None exactly where all is well."""

    topic: str
    status: Status
    sentence: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        if (self.remedy is None) != (self.status is Status.OK):
            raise ValueError(f"what is not as it should be has a remedy, and nothing else has: {self}")


def ok(topic: str, sentence: str) -> Finding:
    return Finding(topic, Status.OK, sentence)


def note(topic: str, sentence: str, *, remedy: str) -> Finding:
    return Finding(topic, Status.NOTE, sentence, remedy)


def problem(topic: str, sentence: str, *, remedy: str) -> Finding:
    return Finding(topic, Status.PROBLEM, sentence, remedy)
