"""Who may have bytes: grants. No grant, no commit.

A grant moves bytes from free to granted for a short while (5 s by default), so that two clients that saw the same
free bytes cannot both take them. It is spent whole: what the commit does not need goes back to free. Expired grants
are collected whenever the governor is asked anything; there is no timer.

The governor refuses by value (`OutOfBudget`) and estimates when to ask again from the rate at which bytes really
came back. Who is admitted before whom is decided in `budget.admission`.
Source: "Virtual Memory for KV Cache", case one, step 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kvcluster.budget.ledger import FREE, GRANTED, QUARANTINE, Account, Ledger
from kvcluster.budget.release_rate import ReleaseRate
from kvcluster.errors import GrantRefused, NotAllowed, OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.states import moved


class GrantState(Enum):
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: how long a grant is held, and the least and most that a refused client is told to wait.

    `busy_retry_s` is the most while somebody has, or is about to get, bytes that may come back at any moment: nobody
    tells a waiter when they do. (With nothing but the quarantine in the way it is `most_retry_s`.)
    """

    grant_s: float = 5.0
    least_retry_s: float = 0.1
    most_retry_s: float = 30.0
    busy_retry_s: float = 2.0


@dataclass(slots=True)
class _Grant:
    identity: GrantId
    size_bytes: int
    expires_at: float
    state: GrantState = GrantState.HELD


class Governor:
    """The grants of one device, over its ledger. `clock` gives seconds and never goes back."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float], limits: Limits) -> None:
        self._ledger = ledger
        self._clock = clock
        self._limits = limits
        self._grants: dict[tuple[str, int], _Grant] = {}
        self._of_request: dict[RequestId, list[_Grant]] = {}
        self._expiries: list[tuple[float, GrantId]] = []
        self._release_rate = ReleaseRate(clock)

    def ask(self, identity: GrantId, size_bytes: int, *, headroom_bytes: int, oldest_arrival: int | None) -> None:
        """Hold `size_bytes` for `identity`, provided that `headroom_bytes` more stay free beside it.

        Raises:
            OutOfBudget: too little is free. Nothing changed.
            NotAllowed: the session used this grant's number before. Nothing changed.
        """
        self.collect_expired()
        key = (identity.request.session, identity.number)
        if key in self._grants:
            raise NotAllowed(reason=f"grant {identity.number} was asked for before: choose a new number")
        free = self._ledger.balance(FREE)
        if size_bytes + headroom_bytes > free:
            raise self.refusal(size_bytes, headroom_bytes=headroom_bytes, oldest_arrival=oldest_arrival)
        grant = _Grant(identity, size_bytes, self._clock() + self._limits.grant_s)
        self._ledger.post(size_bytes, debit=FREE, credit=GRANTED)
        self._grants[key] = grant
        self._of_request.setdefault(identity.request, []).append(grant)
        self._hold(grant)

    def refusal(self, size_bytes: int, *, headroom_bytes: int, oldest_arrival: int | None) -> OutOfBudget:
        """The refusal of `size_bytes`, with what is free for it and when to ask again."""
        free = max(0, self._ledger.balance(FREE) - headroom_bytes)
        wait_s = max(self._release_rate.seconds_until(size_bytes - free), self._limits.least_retry_s)
        return OutOfBudget(
            need=size_bytes,
            free=free,
            oldest_arrival=oldest_arrival,
            retry_after_s=min(wait_s, self._most_retry_s(headroom_bytes)),
            quarantined=self._ledger.balance(QUARANTINE),
        )

    def _most_retry_s(self, headroom_bytes: int) -> float:
        idle_bytes = self._ledger.balance(FREE) + self._ledger.balance(QUARANTINE)
        is_busy = headroom_bytes > 0 or idle_bytes < self._ledger.capacity_bytes
        return min(self._limits.most_retry_s, self._limits.busy_retry_s) if is_busy else self._limits.most_retry_s

    @property
    def grant_s(self) -> float:
        return self._limits.grant_s

    def check(self, identity: GrantId, size_bytes: int) -> None:
        """The grant is this request's, held, and enough for `size_bytes`.

        Raises:
            GrantRefused: missing, foreign, spent, expired, returned or too-small. Nothing changed.
        """
        self.collect_expired()
        grant = self._grants.get((identity.request.session, identity.number))
        if grant is None:
            raise GrantRefused(reason="missing")
        if grant.identity != identity:
            raise GrantRefused(reason="foreign")
        if grant.state is not GrantState.HELD:
            raise GrantRefused(reason=grant.state.value)
        if grant.size_bytes < size_bytes:
            raise GrantRefused(reason="too-small", need=size_bytes, granted=grant.size_bytes)

    def spend(self, identity: GrantId, size_bytes: int, *, account: Account) -> None:
        """Pay `size_bytes` into `account`; the rest of the grant goes back to free. `check` came before."""
        grant = self._held(identity)
        self._ledger.post(size_bytes, debit=GRANTED, credit=account)
        self._ledger.post(grant.size_bytes - size_bytes, debit=GRANTED, credit=FREE)
        grant.state = moved(grant.state, GrantState.SPENT, GRANT_MOVES)

    def unspend(self, identity: GrantId, size_bytes: int, *, account: Account) -> None:
        """Undo `spend` before anybody else had a turn: the grant is held again, whole."""
        grant = self._held(identity)
        self._ledger.post(grant.size_bytes - size_bytes, debit=FREE, credit=GRANTED)
        self._ledger.post(size_bytes, debit=account, credit=GRANTED)
        grant.state = moved(grant.state, GrantState.HELD, GRANT_MOVES)
        self._hold(grant)

    def forfeit(self, identity: GrantId, size_bytes: int, *, account: Account) -> None:
        """Take `size_bytes` out of a held grant into `account`: bytes that a failed undo left behind."""
        grant = self._held(identity)
        self._ledger.post(size_bytes, debit=GRANTED, credit=account)
        grant.size_bytes -= size_bytes

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant.

        Raises:
            GrantRefused: it is not held, or not this request's. Nothing changed.
        """
        self.check(identity, 0)
        self._end(self._held(identity), GrantState.RETURNED)

    def forget(self, identity: GrantId) -> None:
        """Undo `ask`: as if the grant had never been asked for. It is held, or its time is over by now."""
        grant = self._grants.pop((identity.request.session, identity.number))
        self._of_request[identity.request].remove(grant)
        if grant.state is GrantState.HELD:
            self._end(grant, GrantState.RETURNED)

    def close(self, request: RequestId) -> None:
        """Return what the request still holds, and forget its grants."""
        for grant in self._of_request.pop(request, []):
            if grant.state is GrantState.HELD:
                self._end(grant, GrantState.RETURNED)
            del self._grants[(request.session, grant.identity.number)]

    def freed(self, size_bytes: int) -> None:
        """Note that so many bytes became free: what `retry_after_s` is estimated from."""
        self._release_rate.note(size_bytes)

    def collect_expired(self) -> None:
        """Expire every held grant whose time is over."""
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            _, identity = heapq.heappop(self._expiries)
            grant = self._grants.get((identity.request.session, identity.number))
            if grant and grant.state is GrantState.HELD and grant.expires_at <= now:  # not a later one of this number
                self._end(grant, GrantState.EXPIRED)

    def held_bytes(self) -> int:
        """The sum of all held grants, counted one by one: what the ledger's `granted` must equal."""
        return sum(g.size_bytes for g in self._grants.values() if g.state is GrantState.HELD)

    def _held(self, identity: GrantId) -> _Grant:
        return self._grants[(identity.request.session, identity.number)]

    def _hold(self, grant: _Grant) -> None:
        """Have it collected when its time is over."""
        heapq.heappush(self._expiries, (grant.expires_at, grant.identity))

    def _end(self, grant: _Grant, state: GrantState) -> None:
        grant.state = moved(grant.state, state, GRANT_MOVES)
        self._ledger.post(grant.size_bytes, debit=GRANTED, credit=FREE)
