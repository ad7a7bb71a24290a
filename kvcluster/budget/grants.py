"""The grants that were asked for: those held, those that ended lately, and the numbers that were used.

A number is chosen by the client and used once in the life of its session, whatever became of its grant; it costs
nothing once its neighbours were used too (`budget.numbers`). Of each session the last `MOST_ENDED` ended grants are
remembered with what became of them. An older one is known as used (nobody gets its number again) and no more: whoever
names it is told that it is missing. So a request may run for ever and the table does not grow.

No bytes here: what a grant holds is the governor's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvcluster.budget.numbers import Numbers
from kvcluster.errors import NotAllowed
from kvcluster.ids import GrantId, RequestId
from kvcluster.states import State, moved

MOST_ENDED = 1024


class GrantState(State):
    HELD = "held"
    SPENT = "spent"
    RETURNED = "returned"
    EXPIRED = "expired"


GRANT_MOVES: dict[GrantState, frozenset[GrantState]] = {
    GrantState.HELD: frozenset({GrantState.SPENT, GrantState.RETURNED, GrantState.EXPIRED}),
    GrantState.SPENT: frozenset({GrantState.HELD}),  # a commit whose device half was undone
    GrantState.RETURNED: frozenset(),
    GrantState.EXPIRED: frozenset(),
}


@dataclass(slots=True, eq=False)
class HeldGrant:
    """One grant, held or ended. `size_bytes` is what it holds, or held."""

    identity: GrantId
    tenant: str
    size_bytes: int
    expires_at: float
    state: GrantState = GrantState.HELD


class Grants:
    """The grants of one device."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], HeldGrant] = {}  # oldest first
        self._of_request: dict[RequestId, dict[int, HeldGrant]] = {}
        self._ended: dict[str, dict[int, HeldGrant]] = {}  # by session; oldest end first
        self._used: dict[str, Numbers] = {}

    def check_new(self, identity: GrantId) -> None:
        """The session has not used this number.

        Raises:
            NotAllowed: it has. Nothing changed.
        """
        if identity.number in self._used.get(identity.request.session, ()):
            raise NotAllowed(reason=f"grant {identity.number} was asked for before: choose a new number")

    def add(self, grant: HeldGrant) -> None:
        """A new grant, held; `check_new` came before."""
        self._used.setdefault(grant.identity.request.session, Numbers()).add(grant.identity.number)
        self._hold(grant)

    def find(self, identity: GrantId) -> HeldGrant | None:
        """The grant of this session and number, whichever request's it is; None where it is not remembered."""
        session, number = identity.request.session, identity.number
        return self._held.get((session, number)) or self._ended.get(session, {}).get(number)

    def end(self, grant: HeldGrant, state: GrantState) -> None:
        """The grant is held no longer. The session's oldest ended one may be forgotten for it."""
        grant.state = moved(grant.state, state, GRANT_MOVES)
        self._unhold(grant)
        ended = self._ended.setdefault(grant.identity.request.session, {})
        ended[grant.identity.number] = grant
        if len(ended) > MOST_ENDED:
            del ended[next(iter(ended))]

    def hold_again(self, grant: HeldGrant) -> None:
        """Undo its spending."""
        grant.state = moved(grant.state, GrantState.HELD, GRANT_MOVES)
        del self._ended[grant.identity.request.session][grant.identity.number]
        self._hold(grant)

    def forget(self, identity: GrantId) -> None:
        """As if the grant had never been asked for; it is not held any more."""
        session = identity.request.session
        self._used.get(session, Numbers()).discard(identity.number)
        self._ended.get(session, {}).pop(identity.number, None)

    def forget_session(self, session: str) -> None:
        """The session is over and so are its grants: its numbers mean nothing any more."""
        self._used.pop(session, None)
        self._ended.pop(session, None)

    def held(self) -> Iterator[HeldGrant]:
        """Every held grant, newest first."""
        return reversed(self._held.values())

    def held_by(self, request: RequestId) -> list[HeldGrant]:
        """The request's held grants."""
        return list(self._of_request.get(request, {}).values())

    @property
    def remembered(self) -> int:
        """Entries in all tables: what the grants cost."""
        used = sum(numbers.ranges for numbers in self._used.values())
        return len(self._held) + sum(map(len, self._ended.values())) + used

    def _hold(self, grant: HeldGrant) -> None:
        identity = grant.identity
        self._held[identity.request.session, identity.number] = grant
        self._of_request.setdefault(identity.request, {})[identity.number] = grant

    def _unhold(self, grant: HeldGrant) -> None:
        identity = grant.identity
        del self._held[identity.request.session, identity.number]
        mine = self._of_request[identity.request]
        del mine[identity.number]
        if not mine:
            del self._of_request[identity.request]
