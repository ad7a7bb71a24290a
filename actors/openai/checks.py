"""What a field of a request may be: each check gives the value as the engine takes it, or the problem that names it.

A table of these, a check a field, is in `actors.openai.fields`; what both this and the batch job's own table ask of a
value is in `kvcluster.services.given`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.openai.problems import Problem, wrong
from kvcluster.services.given import is_text, is_whole, shown

Check = Callable[[str, Any], Any]


def must_be(name: str, value: object, wanted: str) -> Problem:
    """The sentence of every wrong field: what it is, and what is allowed."""
    return wrong(name, f"{name} is {shown(value)}, and must be {wanted}")


def whole(low: int, high: int) -> Check:
    """A whole number of that range."""

    def check(name: str, value: Any) -> int:
        if not is_whole(value, low, high):
            raise must_be(name, value, f"a whole number from {low} to {high}")
        return int(value)

    return check


def number(low: float, high: float) -> Check:
    """A number of that range."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise must_be(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def part(name: str, value: Any) -> float:
    """A number above 0, of at most 1."""
    share: float = number(0, 1)(name, value)
    if share == 0:
        raise must_be(name, value, "a number above 0 and at most 1")
    return share


def flag(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise must_be(name, value, "true or false")
    return value


def text(longest: int) -> Check:
    """A text of at most so many characters."""

    def check(name: str, value: Any) -> str:
        if not is_text(value) or len(value) > longest:
            raise must_be(name, value, f"a text of at most {longest} characters")
        return str(value)

    return check


def texts(most: int, longest: int) -> Check:
    """A text, or a list of up to so many; none of them empty, or of more characters."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        given = [value] if isinstance(value, str) else value
        are_texts = isinstance(given, list) and all(is_text(one) for one in given)
        if not are_texts or len(given) > most or not all(0 < len(one) <= longest for one in given):
            raise must_be(name, value, f"a text or a list of up to {most} texts, of 1 to {longest} characters each")
        return tuple(given)

    return check
