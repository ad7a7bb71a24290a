"""Whether one device's books are true: each figure is counted twice, in two ways, and both must agree.

accounts          sum to the capacity, none below zero
granted           the held grants, one by one, by tenant
out               the windows of all reservations, each request's account, what is retained and not sealed, and what is
                  kept for successors
foreign           what requests have of earlier incarnations, and who reads which old prefix, against the claims
shared            the handles of all sealed prefixes, each prefix's account
users             who uses a prefix, against what each reservation uses; who is idle, counted from nothing
found             what the index lists, against the prefixes that are there; who is to publish, against who is open
quarantined       the quarantine's list, and each tenant's quarantine account
tenants           the sum of a tenant's accounts
pooled            the pool's own list; and it is covered by free + granted
created           what the hardware itself says that it holds
"""

from __future__ import annotations

from collections import Counter

from kvcluster.budget.ledger import FREE, Account
from kvcluster.driver.protocol import Driver
from kvcluster.errors import InvariantBroken
from kvcluster.memory.handle import HandleState, bytes_of
from kvcluster.memory.remnant import Remnant
from kvcluster.memory.reservation import Reservation
from kvcluster.memory.shared_prefix import PrefixState, SharedPrefix
from kvcluster.services.books import Books, kept_account, prefix_account, request_account
from kvcluster.services.device_memory import DeviceMemory
from kvcluster.services.listing import listable_tokens


def audit_memory(memory: DeviceMemory, driver: Driver) -> None:
    """Count everything; changes nothing. A grant whose time is over is held until somebody collects it.

    Raises:
        InvariantBroken: two figures differ; the sentence has both.
    """
    books = memory.books
    books.ledger.check()
    _audit_tenants(books)
    _audit_requests(memory)
    _audit_prefixes(books)
    _audit_uses(memory)
    _audit_index(memory)
    _audit_foreign(memory)
    _audit_handles(memory)
    _same("held by the hardware", driver.memory_info().held_bytes, books.pool.created_bytes)


def _audit_tenants(books: Books) -> None:
    ledger, used = books.ledger, Counter[str]()
    for account, size_bytes in ledger.balances().items():
        used[account.tenant] += size_bytes if account != FREE else 0
    for tenant in {*used, *ledger.tenants()}:
        _same(f"used by tenant {tenant!r}", used[tenant], ledger.used_by(tenant))
        granted, quarantine = Account.granted(tenant), Account.quarantine(tenant)
        _same(f"granted to {tenant!r}", books.governor.held_bytes(tenant), ledger.balance(granted))
        _same(f"quarantined of {tenant!r}", books.quarantine.used_by(tenant), ledger.balance(quarantine))


def _audit_requests(memory: DeviceMemory) -> None:
    told = Counter[str]()
    for reservation in memory.requests:
        told[reservation.request.session] += len(reservation.token_ids)
    for session in told:
        _same(f"ids told by session {session}", told[session], memory.told.bytes_of(session))
    held = {request_account(r): r.own_bytes for r in memory.requests if r.own_bytes}
    _same_accounts("requests hold", held, _booked(memory.books, "request"))
    reserved = sum(reservation.reserved_bytes for reservation in memory.requests)
    _same("address reserved", reserved, memory.requests.reserved_bytes)


def _audit_prefixes(books: Books) -> None:
    held = {kept_account(remnant): remnant.size_bytes for remnant in books.kept if remnant.size_bytes}
    for prefix in books.prefixes:
        windows = prefix.shape.window_count(prefix.extent.windows) - prefix.shape.window_count(prefix.extent.base)
        wanted = 0 if prefix.owner else windows * prefix.shape.granule_bytes
        _same(f"handles of prefix {prefix.number}", bytes_of(prefix.handles), wanted)
        if is_idle(prefix) is not prefix.is_idle:
            raise InvariantBroken(
                sentence=f"prefix {prefix.number} is booked as idle: {prefix.is_idle}, which is wrong"
            )
        if wanted:
            held[prefix_account(prefix)] = wanted
    _same_accounts("prefixes hold", held, _booked(books, "prefix") | _booked(books, "retained"))


def _audit_uses(memory: DeviceMemory) -> None:
    by_prefix = {(prefix.number, request) for prefix in memory.books.prefixes for request in prefix.users}
    users: list[Reservation | Remnant] = [*memory.requests, *memory.books.kept]
    by_request = {(use.prefix.number, user.request) for user in users for use in user.uses}
    if by_prefix != by_request:
        raise InvariantBroken(sentence=f"prefixes are used by {by_prefix} and requests use {by_request}")
    owned = {prefix.number: prefix.owner for prefix in memory.books.prefixes if prefix.owner}
    writing = {r.writing.number: r.request for r in memory.requests if r.writing}
    if owned != writing:
        raise InvariantBroken(sentence=f"prefixes are written by {owned} and requests write {writing}")


def _audit_index(memory: DeviceMemory) -> None:
    index = memory.books.index
    kept = [prefix for prefix in memory.books.prefixes if prefix.is_kept and prefix.owner is None]
    there = {prefix.number: listable_tokens(prefix.shape, prefix.extent) for prefix in kept}
    for number in index:
        listed = index.tokens_of(number)
        if there.get(number) != listed:
            said = there.get(number, "no")
            raise InvariantBroken(sentence=f"prefix {number} is found with {listed} tokens, and {said} are kept of it")
    if strangers := {request for request in index.claiming if request not in memory.requests}:
        raise InvariantBroken(sentence=f"requests that are not open are to publish: {strangers}")


def _audit_foreign(memory: DeviceMemory) -> None:
    foreign = memory.foreign
    wanted, booked = foreign.wanted(), _booked(memory.books, "foreign")
    short = {account: size for account, size in wanted.items() if booked.get(account, 0) < size}
    if not foreign.owes:
        _same_accounts("foreign claims are", wanted, booked)
    elif set(booked) - set(wanted) or memory.books.ledger.balance(FREE):
        raise InvariantBroken(sentence=f"{short} is owed of foreign claims, and bytes are free, or charged for nobody")
    own = sum(size for account, size in wanted.items() if "/" not in account.owner)
    _same("foreign windows", sum(r.foreign_bytes for r in memory.requests) + foreign.stranded_bytes(), own)
    read = {(use.key, r.request) for r in memory.requests for use in r.old_uses}
    claimed = {(key, request) for key, requests in foreign.prefix_users().items() for request in requests}
    if strangers := read - claimed:
        raise InvariantBroken(sentence=f"old prefixes are read and not charged: {strangers}")


def _audit_handles(memory: DeviceMemory) -> None:
    pool, prefixes = memory.books.pool, memory.books.prefixes
    unsealed = sum(prefix.size_bytes for prefix in prefixes if prefix.state is PrefixState.WRITING)
    sealed = sum(prefix.size_bytes for prefix in prefixes if prefix.state is PrefixState.SEALED)
    held = sum(reservation.own_bytes for reservation in memory.requests)
    kept = sum(remnant.size_bytes for remnant in memory.books.kept)
    _same("handles out", pool.bytes_in(HandleState.OUT), held + unsealed + kept)
    _same("handles shared", pool.bytes_in(HandleState.SHARED), sealed)
    _same("handles in quarantine", pool.bytes_in(HandleState.QUARANTINED), memory.books.quarantine.size_bytes)
    for state in HandleState:
        _same(f"handles {state.value}", pool.counted_bytes(state), pool.bytes_in(state))
    pooled = pool.bytes_in(HandleState.POOLED)
    _same("pooled", pool.pooled_bytes, pooled)
    spendable = memory.books.ledger.balance(FREE) + memory.books.ledger.total("granted")
    if pooled > spendable:
        raise InvariantBroken(sentence=f"{pooled} bytes are pooled and only {spendable} are free or granted")


def is_idle(prefix: SharedPrefix) -> bool:
    """Counted from nothing: nobody uses it or what is built on it."""
    links = [prefix]
    for link in links:
        if link.owner or link.users or link.pins:
            return False
        links += link.children
    return True


def _booked(books: Books, kind: str) -> dict[Account, int]:
    return {account: size for account, size in books.ledger.balances().items() if account.kind == kind}


def _same_accounts(what: str, held: dict[Account, int], booked: dict[Account, int]) -> None:
    if held != booked:
        raise InvariantBroken(sentence=f"{what} {held} and are charged {booked}")


def _same(what: str, counted: int, booked: int) -> None:
    if counted != booked:
        raise InvariantBroken(sentence=f"{what}: counted {counted} bytes and booked {booked}")
