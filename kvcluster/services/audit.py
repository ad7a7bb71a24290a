"""Whether one device's books are true: each figure is counted twice, in two ways, and both must agree.

accounts          sum to the capacity, none below zero
granted           the held grants, one by one
out               the windows of all reservations, and each request's account
quarantined       the quarantine's list, and the quarantine account
pooled            the pool's own list; and it is covered by free + granted
created           what the hardware itself says that it holds
"""

from __future__ import annotations

from kvcluster.budget.ledger import FREE, GRANTED, QUARANTINE, account_of
from kvcluster.driver.protocol import Driver
from kvcluster.errors import InvariantBroken
from kvcluster.memory.handle import HandleState
from kvcluster.services.device_memory import DeviceMemory


def audit_memory(memory: DeviceMemory, driver: Driver) -> None:
    """Count everything. Grants whose time is over are collected first.

    Raises:
        InvariantBroken: two figures differ; the sentence has both.
    """
    memory.governor.collect_expired()
    ledger, pool = memory.ledger, memory.pool
    ledger.check()
    _same("granted", memory.governor.held_bytes(), ledger.balance(GRANTED))
    _same("quarantined", memory.quarantine.size_bytes, ledger.balance(QUARANTINE))
    _same("handles in quarantine", pool.bytes_in(HandleState.QUARANTINED), memory.quarantine.size_bytes)
    _audit_requests(memory)
    _same("address reserved", sum(r.reserved_bytes for r in memory.reservations.values()), memory.reserved_bytes)
    pooled, spendable = pool.bytes_in(HandleState.POOLED), ledger.balance(FREE) + ledger.balance(GRANTED)
    _same("pooled", pool.pooled_bytes, pooled)
    if pooled > spendable:
        raise InvariantBroken(sentence=f"{pooled} bytes are pooled and only {spendable} are free or granted")
    _same("held by the hardware", driver.memory_info().held_bytes, pool.created_bytes)


def _audit_requests(memory: DeviceMemory) -> None:
    held = {account_of(request): r.held_bytes for request, r in memory.reservations.items() if r.held_bytes}
    booked = {account: size for account, size in memory.ledger.balances().items() if account.kind == "request"}
    if held != booked:
        raise InvariantBroken(sentence=f"requests hold {held} and are charged {booked}")
    _same("handles out", memory.pool.bytes_in(HandleState.OUT), sum(held.values()))


def _same(what: str, counted: int, booked: int) -> None:
    if counted != booked:
        raise InvariantBroken(sentence=f"{what}: counted {counted} bytes and booked {booked}")
