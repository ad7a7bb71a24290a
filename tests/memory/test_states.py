"""Every pair of every state table: what the table has is moved, what it has not is our bug and changes nothing."""

from __future__ import annotations

from enum import Enum

import pytest

from kvcluster.budget.grants import GRANT_MOVES, GrantState
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import InvariantBroken
from kvcluster.ids import HandleId
from kvcluster.memory.handle import HANDLE_MOVES, Handle, HandleState
from kvcluster.memory.reservation import RESERVATION_MOVES, ReservationState
from kvcluster.memory.shared_prefix import PREFIX_MOVES, PrefixState
from kvcluster.services.memory_state import MEMORY_MOVES, MemoryState
from kvcluster.services.sessions import SESSION_MOVES, ReplyLimits, Session, SessionState
from kvcluster.states import moved

TABLES: list[dict[Enum, frozenset[Enum]]] = [
    dict(GRANT_MOVES),
    dict(HANDLE_MOVES),
    dict(RESERVATION_MOVES),
    dict(PREFIX_MOVES),
    dict(SESSION_MOVES),
    dict(MEMORY_MOVES),
]
PAIRS = [(state, to, table) for table in TABLES for state in table for to in table]


@pytest.mark.parametrize(
    ("state", "to", "table"), PAIRS, ids=lambda value: str(value) if isinstance(value, Enum) else ""
)
def test_a_state_follows_another_only_where_the_table_says_so(
    state: Enum, to: Enum, table: dict[Enum, frozenset[Enum]]
) -> None:
    if to in table[state]:
        assert moved(state, to, table) is to
    else:
        with pytest.raises(InvariantBroken, match=f"from {state.name} to {to.name}"):
            moved(state, to, table)


@pytest.mark.parametrize("kind", [GrantState, HandleState, ReservationState, PrefixState, SessionState, MemoryState])
def test_every_state_has_a_row_in_its_table(kind: type[Enum]) -> None:
    [table] = [table for table in TABLES if isinstance(next(iter(table)), kind)]
    assert set(table) == set(kind)


def test_ends_are_final() -> None:
    for end in (HandleState.GONE, GrantState.RETURNED, GrantState.EXPIRED):
        assert not {**HANDLE_MOVES, **GRANT_MOVES}[end]
    assert not RESERVATION_MOVES[ReservationState.CLOSED]
    assert not PREFIX_MOVES[PrefixState.DRAINED]
    assert not SESSION_MOVES[SessionState.GONE]
    assert not MEMORY_MOVES[MemoryState.CLOSED]


def test_a_handle_that_may_not_move_stays_where_it_is() -> None:
    handle = Handle(HandleId(1, 0), PhysicalHandle(1, 4096), HandleState.SHARED)
    with pytest.raises(InvariantBroken):
        handle.move(HandleState.POOLED)
    assert handle.state is HandleState.SHARED


def test_a_session_that_is_gone_does_not_come_back() -> None:
    session = Session("s", 1, ReplyLimits(), 0.0)
    session.move(SessionState.ORPHANED)
    session.move(SessionState.GONE)
    with pytest.raises(InvariantBroken):
        session.move(SessionState.LIVE)
