"""A state machine as a table: which states may follow which.

One function changes a state, and a test walks every pair. A transition that the table does not have is our bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from kvcluster.errors import InvariantBroken

S = TypeVar("S", bound=Enum)


class State(Enum):
    """One of a table's states. Hashed by identity: an enum's own hash is a call of Python, and a commit has twenty."""

    __hash__ = object.__hash__


def moved(state: S, to: S, table: Mapping[S, frozenset[S]]) -> S:
    """`to`, if the table allows it after `state`.

    Raises:
        InvariantBroken: it does not.
    """
    if to not in table[state]:
        raise InvariantBroken(sentence=f"{type(state).__name__} goes from {state.name} to {to.name}")
    return to
