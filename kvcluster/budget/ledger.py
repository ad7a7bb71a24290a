"""Who has which bytes of one device: accounts that always sum to its capacity.

    free + granted + request/* + quarantine = capacity

Every act is one posting from one account to another, so the sum cannot change, and a posting that would leave an
account below zero is our bug and stops the process: a count that wraps or goes negative is how a full device comes
to look empty. Accounts of requests appear with their first bytes and vanish with their last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvcluster.errors import InvariantBroken
from kvcluster.ids import RequestId


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """`owner` is empty but for a request's account."""

    kind: str
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.owner}" if self.owner else self.kind


FREE = Account("free")
GRANTED = Account("granted")
QUARANTINE = Account("quarantine")


def account_of(request: RequestId) -> Account:
    """The account that pays for what `request` holds."""
    return Account("request", f"{request.session}/{request.number}.{request.generation}")


class Ledger:
    """The claims on `capacity_bytes` bytes. All of them begin as free."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._balances = {FREE: capacity_bytes}

    def balance(self, account: Account) -> int:
        """Bytes that `account` has."""
        return self._balances.get(account, 0)

    def balances(self) -> Mapping[Account, int]:
        """Every account that has bytes; a live, read-only view."""
        return MappingProxyType(self._balances)

    def post(self, size_bytes: int, *, debit: Account, credit: Account) -> None:
        """Move `size_bytes` from `debit` to `credit`.

        Raises:
            InvariantBroken: a negative amount, or more than `debit` has. Nothing moved.
        """
        left = self.balance(debit) - size_bytes
        if size_bytes < 0 or left < 0:
            raise InvariantBroken(sentence=f"{debit} has {self.balance(debit)} bytes and should pay {size_bytes}")
        self._settle(debit, left)
        self._settle(credit, self.balance(credit) + size_bytes)

    def _settle(self, account: Account, size_bytes: int) -> None:
        if size_bytes:
            self._balances[account] = size_bytes
        else:
            self._balances.pop(account, None)

    def check(self) -> None:
        """Every account above zero, and all of them together the capacity.

        Raises:
            InvariantBroken: they are not.
        """
        total = sum(self._balances.values())
        negative = [str(account) for account, size_bytes in self._balances.items() if size_bytes < 0]
        if negative or total != self.capacity_bytes:
            raise InvariantBroken(
                sentence=f"the accounts sum to {total} of {self.capacity_bytes} bytes; below zero: {negative}"
            )
