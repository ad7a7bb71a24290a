"""Who has which bytes of one device: accounts that always sum to its capacity.

    free + granted + request/* + prefix/* + retained/* + foreign/* + quarantine = capacity

Every account but free is some tenant's. Every act is one posting from one account to another, so the sum cannot
change, and a posting that would leave an account below zero is our bug and stops the process: a count that wraps or
goes negative is how a full device comes to look empty. Accounts appear with their first bytes and vanish with their
last. The sums by kind and by tenant are kept, not counted, and so is what each tenant retains: a refusal costs the
same with one request and thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from kvcluster.errors import InvariantBroken
from kvcluster.ids import RequestId

RETAINED = "retained"


class Account(NamedTuple):
    """`owner` is the request or the prefix that holds the bytes, empty where there is none; `tenant` pays for them.

    A tuple, because every posting hashes several of them.
    """

    kind: str
    owner: str = ""
    tenant: str = ""

    @staticmethod
    def granted(tenant: str) -> Account:
        """What the tenant's held grants hold."""
        return Account("granted", tenant=tenant)

    @staticmethod
    def prefix(number: int, tenant: str) -> Account:
        """A shared prefix that is in use."""
        return Account("prefix", str(number), tenant)

    @staticmethod
    def retained(number: int, tenant: str) -> Account:
        """A prefix that nobody uses, kept until its bytes are needed."""
        return Account(RETAINED, str(number), tenant)

    @staticmethod
    def kept(request: RequestId, tenant: str) -> Account:
        """What a request had whose process died: retained too, for whoever goes on with it."""
        return Account(RETAINED, _name(request), tenant)

    @staticmethod
    def quarantine(tenant: str) -> Account:
        """What of the tenant's may still be in use, or could not be released."""
        return Account("quarantine", tenant=tenant)

    def __str__(self) -> str:
        name = f"{self.kind}/{self.owner}" if self.owner else self.kind
        return f"{name}@{self.tenant}" if self.tenant else name


FREE = Account("free")


def account_of(request: RequestId, tenant: str = "") -> Account:
    """The account that pays for what `request` holds."""
    return Account("request", _name(request), tenant)


def _name(request: RequestId) -> str:
    return f"{request.session}/{request.number}.{request.generation}"


class Ledger:
    """The claims on `capacity_bytes` bytes. All of them begin as free."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._balances: dict[Account, int] = {}
        self._totals: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._retained: dict[str, int] = {}
        self._add(FREE, capacity_bytes)

    def balance(self, account: Account) -> int:
        """Bytes that `account` has."""
        return self._balances.get(account, 0)

    def balances(self) -> Mapping[Account, int]:
        """Every account that has bytes; a live, read-only view."""
        return MappingProxyType(self._balances)

    def total(self, kind: str) -> int:
        """Bytes of all accounts of a kind, every tenant's."""
        return self._totals.get(kind, 0)

    def used_by(self, tenant: str) -> int:
        """Bytes of all the tenant's accounts."""
        return self._used.get(tenant, 0)

    def retained_by(self, tenant: str) -> int:
        """Bytes of the tenant's prefixes that nobody uses."""
        return self._retained.get(tenant, 0)

    def tenants(self) -> Mapping[str, int]:
        """Every tenant that has bytes, and how many; a live, read-only view."""
        return MappingProxyType(self._used)

    @property
    def claimed_bytes(self) -> int:
        """All that is not free: the least that the capacity can be."""
        return self.capacity_bytes - self.balance(FREE)

    def post(self, size_bytes: int, *, debit: Account, credit: Account) -> None:
        """Move `size_bytes` from `debit` to `credit`.

        Raises:
            InvariantBroken: a negative amount, or more than `debit` has. Nothing moved.
        """
        if not 0 <= size_bytes <= self.balance(debit):
            raise InvariantBroken(sentence=f"{debit} has {self.balance(debit)} bytes and should pay {size_bytes}")
        if size_bytes:
            self._add(debit, -size_bytes)
            self._add(credit, size_bytes)

    def resize(self, capacity_bytes: int) -> None:
        """Make the capacity another; the difference comes from free, or goes to it.

        Raises:
            InvariantBroken: less than `claimed_bytes`. Nothing changed.
        """
        if capacity_bytes < self.claimed_bytes:
            raise InvariantBroken(sentence=f"{self.claimed_bytes} bytes are claimed, more than {capacity_bytes}")
        self._add(FREE, capacity_bytes - self.capacity_bytes)
        self.capacity_bytes = capacity_bytes

    def check(self) -> None:
        """Every account above zero, all of them together the capacity, and the kept sums those of the accounts.

        Raises:
            InvariantBroken: they are not.
        """
        total = sum(self._balances.values())
        negative = [str(account) for account, size_bytes in self._balances.items() if size_bytes < 0]
        if negative or total != self.capacity_bytes:
            raise InvariantBroken(
                sentence=f"the accounts sum to {total} of {self.capacity_bytes} bytes; below zero: {negative}"
            )
        self._check_sums()

    def _check_sums(self) -> None:
        totals: dict[str, int] = {}
        used: dict[str, int] = {}
        retained: dict[str, int] = {}
        for account, size_bytes in self._balances.items():
            _bump(totals, account.kind, size_bytes)
            if account.kind != FREE.kind:
                _bump(used, account.tenant, size_bytes)
            if account.kind == RETAINED:
                _bump(retained, account.tenant, size_bytes)
        counted, kept = (totals, used, retained), (self._totals, self._used, self._retained)
        if counted != kept:
            raise InvariantBroken(
                sentence=f"by kind, by tenant, and retained by tenant {counted} are counted and {kept} kept"
            )

    def _add(self, account: Account, change_bytes: int) -> None:
        _bump(self._balances, account, change_bytes)
        _bump(self._totals, account.kind, change_bytes)
        if account.kind != FREE.kind:
            _bump(self._used, account.tenant, change_bytes)
        if account.kind == RETAINED:
            _bump(self._retained, account.tenant, change_bytes)


K = TypeVar("K")


def _bump(sums: dict[K, int], key: K, change: int) -> None:
    """Change one sum; what is zero is not listed."""
    value = sums.get(key, 0) + change
    if value:
        sums[key] = value
    else:
        sums.pop(key, None)
