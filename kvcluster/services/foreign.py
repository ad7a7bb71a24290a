"""Memory that clients still have of earlier incarnations of their device: charged here, and in nobody's hands.

When a device's process dies its clients go on reading and writing what they have mapped. No handle of it is left
anywhere, so that nothing of it can be lent again or shared: it is only charged, until it is unmapped or its process is
dead. Three kinds of claim:

    survivor   a process that has not registered yet: the most that it may have mapped, by the table of sessions
    session    what a registered client still has of its own, by what it said
    prefix     what those that joined it still read, once for all of them: by the epoch that made it, and its number

Survivors that share a prefix count it each, so that together they may claim more than there is: a claim takes what is
free, and owes the rest. What is freed pays what is owed before anybody else has it: `settle` comes with each act that
frees something (`services.registering.Registering.settle`). Called under the device service's lock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvcluster.budget.ledger import FREE, Account, Ledger
from kvcluster.ids import RequestId

PrefixKey = tuple[int, int]  # the epoch that made it, and its number then


@dataclass(slots=True)
class _Old:
    """A prefix of an earlier incarnation: what each of its users has of it, and whose bill it is."""

    tenant: str
    users: dict[RequestId, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return max(self.users.values(), default=0)


class Foreign:
    """Of one device, over its ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wanted: Counter[Account] = Counter()
        self._owing: set[Account] = set()
        self._survivors: dict[str, int] = {}
        self._prefixes: dict[PrefixKey, _Old] = {}
        self._stranded: Counter[Account] = Counter()
        self._unclean: dict[tuple[PrefixKey, RequestId], int] = {}  # left, and perhaps still mapped

    @property
    def size_bytes(self) -> int:
        """What is charged."""
        return self._ledger.total("foreign")

    @property
    def owes(self) -> bool:
        """Whether more is claimed than could be charged."""
        return bool(self._owing)

    @property
    def unregistered(self) -> tuple[str, ...]:
        """Sessions that survived and have not registered."""
        return tuple(self._survivors)

    # --- survivors ------------------------------------------------------------------------------------------------

    def survived(self, session: str, size_bytes: int) -> None:
        """A client of an earlier incarnation lives, and may have so much mapped."""
        self._survivors[session] = size_bytes
        self._claim(_survivor(session), size_bytes)

    def registered(self, session: str) -> None:
        """It has said all that it has: nothing else is charged for it."""
        self._claim(_survivor(session), -self._survivors.pop(session, 0))

    def kept(self, session: str, size_bytes: int) -> None:
        """Of no request that is open, its process could not unmap so much."""
        self.hold(session, "", size_bytes)
        self.strand(session, "", size_bytes)

    # --- what was registered ----------------------------------------------------------------------------------------

    def hold(self, session: str, tenant: str, size_bytes: int) -> None:
        """A request of the session still has so much of its own mapped; the session's first claim is lowered by it."""
        self._turn_in(session, size_bytes)
        self._claim(_account(session, tenant), size_bytes)

    def let_go(self, session: str, tenant: str, size_bytes: int) -> None:
        """So much of that is unmapped."""
        self._claim(_account(session, tenant), -size_bytes)

    def strand(self, session: str, tenant: str, size_bytes: int) -> None:
        """So much of it no request has any more, and it may still be mapped."""
        self._stranded[_account(session, tenant)] += size_bytes

    def use(self, key: PrefixKey, request: RequestId, tenant: str, size_bytes: int) -> None:
        """The request reads so much of a prefix; `tenant` is its owner, and that of all who read it."""
        self._turn_in(request.session, size_bytes)
        old = self._prefixes.setdefault(key, _Old(tenant))
        before = old.size_bytes
        old.users[request] = size_bytes
        self._claim(_prefix(key, old.tenant), old.size_bytes - before)

    def leave(self, key: PrefixKey, request: RequestId) -> None:
        """The request reads it no longer."""
        old = self._prefixes[key]
        before = old.size_bytes
        del old.users[request]
        self._claim(_prefix(key, old.tenant), old.size_bytes - before)
        if not old.users:
            del self._prefixes[key]

    def leave_unclean(self, key: PrefixKey, request: RequestId) -> None:
        """The request reads it no longer, and its process may have it mapped: charged until that is gone."""
        self._unclean[key, request] = self._prefixes[key].users[request]

    def process_gone(self, session: str) -> None:
        """Its process is dead, or has nothing mapped any more: nothing is charged for it."""
        self.registered(session)
        for account in [a for a in self._wanted if a.owner == session]:
            self._claim(account, -self._wanted[account])
            self._stranded.pop(account, None)
        for key, old in list(self._prefixes.items()):
            for request in [request for request in old.users if request.session == session]:
                self._unclean.pop((key, request), None)
                self.leave(key, request)

    def bytes_of(self, session: str) -> int:
        """The most that its process may still have mapped of it, beside what its open requests say."""
        if not (self._unclean or self._stranded):  # asked for after each frame
            return self._survivors.get(session, 0)
        left = sum([size for (_, request), size in self._unclean.items() if request.session == session])
        stranded = sum([size for account, size in self._stranded.items() if account.owner == session])
        return self._survivors.get(session, 0) + stranded + left

    def has_of(self, session: str) -> bool:
        """Whether anything is charged because of its process."""
        if session in self._survivors or any(account.owner == session for account in self._wanted):
            return True
        return any(request.session == session for old in self._prefixes.values() for request in old.users)

    # --- the ledger -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Charge what is owed, as far as bytes are free."""
        for account in tuple(self._owing):
            self._charge(account)

    def wanted(self) -> dict[Account, int]:
        """Every claim: what would be charged if there were room for all."""
        return dict(self._wanted)

    def stranded_bytes(self) -> int:
        """What is charged for no request that is open, of requests' own."""
        return self._stranded.total()

    def prefix_users(self) -> dict[PrefixKey, frozenset[RequestId]]:
        """Who reads which prefix."""
        return {key: frozenset(old.users) for key, old in self._prefixes.items()}

    def _turn_in(self, session: str, size_bytes: int) -> None:
        left = self._survivors.get(session, 0)
        if left:
            part = min(left, size_bytes)
            self._survivors[session] -= part
            self._claim(_survivor(session), -part)

    def _claim(self, account: Account, change_bytes: int) -> None:
        self._wanted[account] += change_bytes
        over = self._ledger.balance(account) - self._wanted[account]
        if not self._wanted[account]:
            del self._wanted[account]
        if over > 0:
            self._ledger.post(over, debit=account, credit=FREE)
            self._owing.discard(account)
            self.settle()
        else:
            self._charge(account)

    def _charge(self, account: Account) -> None:
        owed = self._wanted[account] - self._ledger.balance(account)
        self._ledger.post(min(owed, self._ledger.balance(FREE)), debit=FREE, credit=account)
        if self._ledger.balance(account) < self._wanted[account]:
            self._owing.add(account)
        else:
            self._owing.discard(account)


def _account(session: str, tenant: str) -> Account:
    return Account("foreign", session, tenant)


def _survivor(session: str) -> Account:
    return Account("foreign", f"{session}/unregistered")


def _prefix(key: PrefixKey, tenant: str) -> Account:
    return Account("foreign", f"prefix/{key[0]}.{key[1]}", tenant)
