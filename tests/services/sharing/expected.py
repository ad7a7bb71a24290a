"""What a device that shares must look like, in plain dictionaries: who has which windows, who waits, what goes when.

The model knows for each request which windows are its own and which prefixes it uses, and for each prefix who uses it,
who may still have it mapped and what builds on it. Refusals are computed too: their figures are the model's own.
"""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, invariant

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import NeverFits, NotAllowed, OutOfBudget
from kvcluster.geometry.windows import Window, windows_of
from kvcluster.wire import messages as wire
from tests.services.device_world import GRANULE, Client, Device, DeviceWorld
from tests.services.sharing.parts import (
    CAPACITY,
    MOST,
    QUOTA,
    TENANTS,
    Mine,
    Prefix,
    all_windows,
    chain_of,
    common,
    listable,
    may_join,
    run_of,
    serves,
    straddles,
)


class Expected(RuleBasedStateMachine):
    """A world, what is to be seen in it, and what always holds. Who acts is in `test_sharing_model`."""

    gpu = ""
    bulk = 0

    def __init__(self) -> None:
        super().__init__()
        quotas = Quotas({"acme": QUOTA * GRANULE})
        self.world = DeviceWorld(Device(CAPACITY, 3, self.bulk, quotas), self.gpu)
        self.clients: list[Client] = []
        self.requests: list[Mine] = []
        self.prefixes: dict[int, Prefix] = {}
        self.quarantine: dict[Client, int] = {}  # granules that wait for its process's end
        self.capacity = CAPACITY
        self.waiting: dict[Mine, int] = {}  # granules that it was refused, while it has none
        self.arrived = 0
        self.computed: dict[tuple[str, bytes, tuple[int, ...]], set[Mine]] = {}  # who had these tokens
        self.claimed: dict[tuple[str, bytes, tuple[int, ...]], Mine] = {}  # who is to publish them

    def released(self, mine: Mine, gone: set[Window], outcome: str) -> None:
        mine.own -= gone
        if outcome == "quarantined":
            mine.is_broken = True
            self.quarantine[mine.client] = self.quarantine.get(mine.client, 0) + len(gone)
        if mine.writing and all_windows(mine.shape, mine.writing.base, mine.writing.windows) - mine.own:
            self.unplan(mine)
        self.emptied(mine)

    def emptied(self, mine: Mine) -> None:
        """Whoever holds nothing any more is to publish nothing."""
        if not mine.own and not mine.uses:
            self.claimed = {key: claimer for key, claimer in self.claimed.items() if claimer is not mine}

    def committed(self, mine: Mine, runs: tuple[wire.Run, ...], missing: set[Window]) -> None:
        """The newest handles of the last ticket back these runs, in order."""
        new = list(windows_of(map(run_of, runs)))
        assert set(new) == missing
        mine.own |= missing
        handles = self.world.service.handles(mine.client.session, mine.client.seq) if missing else ()
        for handle in reversed(handles):
            if new:
                piece = frozenset(new.pop() for _ in range(handle.size_bytes // GRANULE))
                mine.piece_of |= dict.fromkeys(piece, piece)
        assert not new

    def unplan(self, mine: Mine) -> None:
        if mine.writing:
            del self.prefixes[mine.writing.number]
            mine.writing = None

    def joined(self, mine: Mine, prefix: Prefix, amount: int, joined: wire.Joined) -> None:
        assert not mine.own
        assert not mine.uses
        assert prefix.tenant == mine.client.tenant
        assert prefix.shape == mine.shape
        assert prefix.owner is None
        inside = prefix.whole(mine.shape.shared_windows(amount))
        assert joined.tokens == mine.shape.reusable_tokens(inside, min(amount, prefix.tokens)) < amount
        assert joined.tokens > 0
        assert set(map(run_of, joined.runs)) == set(mine.shape.runs((0,) * len(inside), inside))
        self.uses(mine, prefix, inside)

    def refused(
        self,
        mine: Mine,
        need: int,
        refusal: OutOfBudget | NeverFits,
        *,
        joining: Prefix | None = None,
        amount: int = 0,
    ) -> None:
        """Nothing was evicted, and the figures of the refusal are the model's."""
        assert not self.gone()
        tenant, used = mine.client.tenant, list(chain_of(joining))
        if isinstance(refusal, NeverFits):
            shared = mine.uses[-1][1] if mine.uses else ()
            if joining:
                shared = joining.whole(mine.shape.shared_windows(amount))
            has = len(mine.own) + (mine.shape.window_count(shared) if shared else 0)
            assert has + need > self.most(tenant, {})
            return
        spare = [prefix for prefix in self.idle if prefix not in used]
        idle = {name: sum(prefix.granules for prefix in spare if prefix.tenant == name) for name in TENANTS}
        claims = self.claims(mine)
        guarded = idle["acme"] if self.is_guarded else 0
        acmes = QUOTA - self.used("acme") + idle["acme"] - guarded
        on_device = sum(min(claim, acmes) if name else claim for name, claim in claims.items())
        free = self.free + sum(idle.values()) - guarded - on_device
        if tenant:
            all_that = self.free + sum(idle.values()) - claims[tenant]
            free = free + guarded if free > 0 else min(guarded, all_that)
            free = min(free, QUOTA - self.used(tenant) + idle[tenant] - claims[tenant])
        assert refusal.free == max(0, free) * GRANULE < refusal.need == need * GRANULE
        arrivals = [other.request.arrival for other in self.requests if self.is_within_reach(other)]
        assert refusal.oldest_arrival == min(arrivals, default=None)
        if not mine.is_running:
            self.waiting[mine] = need

    def claims(self, mine: Mine) -> dict[str, int]:
        """What must stay free beside a grant to it: of the whole device, and of its tenant."""
        claims = dict.fromkeys(TENANTS, 0)
        for other in self.requests if not mine.is_running else ():
            if other.is_running:
                claims[other.client.tenant] += other.growth
            elif other.request.arrival < mine.request.arrival and self.is_within_reach(other):
                claims[other.client.tenant] += self.waiting.get(other, 0)
        return claims

    def is_within_reach(self, mine: Mine) -> bool:
        gone = {name: sum(n for c, n in self.quarantine.items() if c.tenant == name) for name in TENANTS}
        return self.waiting.get(mine, 0) <= self.most(mine.client.tenant, gone)

    @property
    def is_guarded(self) -> bool:
        """Whether what acme retains goes for nobody else."""
        return self.capacity >= QUOTA

    def most(self, tenant: str, gone: dict[str, int]) -> int:
        """Granules that it can have, where so many of each tenant do not come back."""
        left, acmes = self.capacity - sum(gone.values()), max(0, QUOTA - gone.get("acme", 0))
        return min(left, acmes) if tenant else max(0, left - acmes * self.is_guarded)

    def used(self, tenant: str) -> int:
        return self.world.service.statistics().tenants.get(tenant, 0) // GRANULE

    @property
    def free(self) -> int:
        return self.world.service.statistics().free_bytes // GRANULE

    def has_failed(self, call: str) -> bool:
        """Whether such a call has failed since the driver was told to."""
        return any(made.name == call and made.failed for made in self.world.driver.since_plan())

    def cannot_leave(self, mine: Mine, prefix: Prefix) -> None:
        try:
            mine.request.leave(prefix.number)
        except NotAllowed:
            return
        raise AssertionError("left a prefix beneath another one")

    def closed(self, mine: Mine, retain: int, left: list[tuple[Prefix, tuple[int, ...]]], number: int | None) -> None:
        self.unplan(mine)
        limit = mine.shape.shared_windows(retain)
        kept = [use for use in left if retain and all(map(int.__le__, use[1], limit))]
        for prefix, _ in mine.uses:
            prefix.users.discard(mine)
            prefix.is_kept |= prefix in [p for p, _ in kept]
            if prefix not in [p for p, _ in left]:
                prefix.pins.add(mine.client)
        own = {window for window in mine.own if retain and max(mine.piece_of[window]).number < limit[window.group]}
        self.retained(mine, retain, own, kept, number)
        if mine.own - own:
            self.quarantine[mine.client] = self.quarantine.get(mine.client, 0) + len(mine.own - own)
        self.requests.remove(mine)
        self.waiting.pop(mine, None)
        self.claimed = {key: claimer for key, claimer in self.claimed.items() if claimer is not mine}

    def retained(
        self,
        mine: Mine,
        retain: int,
        own: set[Window],
        kept: list[tuple[Prefix, tuple[int, ...]]],
        number: int | None,
    ) -> None:
        parent, base = kept[0] if kept else (None, (0,) * len(mine.shape.groups))
        windows = tuple(self.reach(mine, own, g, start) for g, start in enumerate(base))
        is_of_use = mine.shape.reusable_tokens(windows, retain) > 0 if retain else False
        expected = retain > 0 and not mine.shape.has_rings and windows != base and is_of_use
        if not expected or self.alike(mine, retain, windows):
            assert number == (parent.number if parent else None)
        else:
            assert number
            assert number not in self.prefixes
            prefix = Prefix(number, mine.client.tenant, mine.shape, retain, windows, base, parent, is_kept=True)
            self.listed(mine, prefix)
            prefix.pieces = {mine.piece_of[window] for window in all_windows(mine.shape, base, windows)}
            self.prefixes[number] = prefix

    def reach(self, mine: Mine, own: set[Window], group: int, start: int) -> int:
        stop, pieces = start, {mine.piece_of[window] for window in own}
        while all(Window(group, fragment, stop) in own for fragment in range(mine.shape.groups[group].fragments)):
            stop += 1
        return next(count for count in range(stop, start - 1, -1) if not straddles(pieces, group, count))

    def alike(self, mine: Mine, tokens: int, windows: tuple[int, ...]) -> bool:
        """Whether what it would share can be found already."""
        tokens = listable(mine.shape, tokens, windows)
        is_named = mine.root and len(mine.ids) >= tokens
        return bool(is_named) and any(serves(mine, prefix, tokens, windows) for prefix in self.listed_for(mine))

    def listed(self, mine: Mine, prefix: Prefix) -> None:
        """It is found from now on, where its tokens were named."""
        tokens = listable(prefix.shape, prefix.tokens, prefix.windows)
        if mine.root and len(mine.ids) >= tokens > 0:
            prefix.ids, prefix.root, prefix.is_kept = mine.ids[:tokens], mine.root, True

    def listed_for(self, mine: Mine) -> list[Prefix]:
        """What the request may find."""
        return [p for p in self.prefixes.values() if p.ids and (p.tenant, p.root, p.shape) == mine.place]

    def longest_alike(self, mine: Mine) -> set[Prefix]:
        """Of its tenant and root, of any shape: those that have most tokens in common with it."""
        tenant, root, _ = mine.place
        alike = {
            p: common(p.ids, mine.ids) for p in self.prefixes.values() if p.ids and (p.tenant, p.root) == (tenant, root)
        }
        return {prefix for prefix, equal in alike.items() if equal == max(alike.values())}

    def found(self, mine: Mine, found: wire.Found) -> Prefix | None:
        """The longest of what it may find, and what it is to publish; it uses it now."""
        may = {p: common(p.ids, mine.ids) for p in self.listed_for(mine) if mine.root and self.has_room(mine)}
        may = {prefix: equal for prefix, equal in may.items() if may_join(mine, prefix, equal)}
        prefix = self.prefixes.get(found.prefix)
        covered = may[prefix] if prefix else 0
        if self.has_failed("seal"):
            covered = min(covered, found.known)  # the same prefix may be of use for fewer tokens, at the next try
        elif self.longest_alike(mine) <= may.keys():  # of those that go on differently the device tries one
            assert covered == max(may.values(), default=0)
        assert found.known == self.known(mine, covered)
        if not prefix:
            assert found == wire.Found(known=found.known)
            return None
        inside = prefix.whole(mine.shape.shared_windows(covered))
        most = min(covered, prefix.tokens) if mine.shape.has_rings else len(mine.ids)
        assert 0 < found.tokens == mine.shape.reusable_tokens(inside, most) <= covered
        assert set(map(run_of, found.runs)) == set(mine.shape.runs((0,) * len(inside), inside))
        self.uses(mine, prefix, inside)
        return prefix

    def known(self, mine: Mine, covered: int) -> int:
        """What others had of its tokens, if it is the one to publish it; and it has them too from now on."""
        self.claimed = {key: claimer for key, claimer in self.claimed.items() if claimer is not mine}
        if not mine.root or not mine.shape.has_rings or not self.has_room(mine):
            return covered
        known = 0
        for stop in range(16, len(mine.ids) + 1, 16):
            by = self.computed.setdefault((mine.client.tenant, mine.root, mine.ids[:stop]), set())
            known += 16 * (known == stop - 16 and bool(by - {mine}))
            by.add(mine)
        key = mine.client.tenant, mine.root, mine.ids[:known]
        return known if known > covered and self.claimed.setdefault(key, mine) is mine else covered

    def has_room(self, mine: Mine) -> bool:
        """Whether all of it would fit beside what it shares."""
        most = mine.shape.window_count(mine.shape.with_snapshots(mine.shape.windows(MOST)))
        return most <= self.most(mine.client.tenant, {})

    def uses(self, mine: Mine, prefix: Prefix, windows: tuple[int, ...]) -> None:
        prefix.users.add(mine)
        mine.uses.append((prefix, windows))
        self.waiting.pop(mine, None)

    def died(self, client: Client) -> None:
        self.quarantine.pop(client, None)
        for prefix in self.prefixes.values():
            prefix.pins.discard(client)

    def evicted_for(self, tenant: str, *, spared: Prefix | None = None) -> None:
        """What is gone by now was evicted: idle, leaves first, this tenant's own first, and nothing that is guarded."""
        self.settle()
        gone, used = self.gone(), list(chain_of(spared))
        assert not set(gone) & set(used)
        others = {prefix.tenant for prefix in gone} - {tenant}
        assert not (self.is_guarded and "acme" in others)
        self.went(gone)
        assert not others or {p for p in self.idle if p.tenant == tenant} <= set(used)

    def gone(self) -> list[Prefix]:
        """Those idle ones that the device has no longer."""
        there = set(self.world.service.statistics().prefixes)
        return [prefix for prefix in self.idle if prefix.number not in there]

    def went(self, gone: list[Prefix]) -> None:
        """These were evicted: none of them beneath one that is still there."""
        for prefix in gone:
            del self.prefixes[prefix.number]
        assert not [child for prefix in gone for child in self.children(prefix)]
        self.settle()

    @property
    def idle(self) -> list[Prefix]:
        return [prefix for prefix in self.prefixes.values() if self.is_idle(prefix)]

    def children(self, prefix: Prefix) -> list[Prefix]:
        return [child for child in self.prefixes.values() if child.parent is prefix]

    def is_idle(self, prefix: Prefix) -> bool:
        used = prefix.owner or prefix.users or prefix.pins
        return not used and all(map(self.is_idle, self.children(prefix)))

    def settle(self) -> None:
        """What nobody uses and nobody wants is gone."""
        while drained := [p for p in self.prefixes.values() if self.is_drained(p)]:
            for prefix in drained:
                del self.prefixes[prefix.number]

    def is_drained(self, prefix: Prefix) -> bool:
        return self.is_idle(prefix) and not prefix.is_kept and not self.children(prefix)

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def the_accounts_are_the_models(self) -> None:
        self.settle()
        seen = self.world.seen()
        counted = {name: size // GRANULE for name, size in seen.accounts.items() if not name.startswith("granted")}
        granted = sum(size for name, size in seen.accounts.items() if name.startswith("granted")) // GRANULE
        expected: dict[str, int] = {}
        for mine in self.requests:
            key = f"request/{mine.client.session}/{mine.request.key.number}.0"
            expected[self.named(key, mine.client.tenant)] = len(mine.own)
        for prefix in self.prefixes.values():
            kind = "retained" if self.is_idle(prefix) else "prefix"
            expected[self.named(f"{kind}/{prefix.number}", prefix.tenant)] = prefix.granules
        for client, granules in self.quarantine.items():
            name = self.named("quarantine", client.tenant)
            expected[name] = expected.get(name, 0) + granules
        expected["free"] = self.capacity - granted - sum(expected.values())
        assert counted == {name: granules for name, granules in expected.items() if granules}

    @invariant()
    def each_prefix_is_used_by_whom_the_model_says(self) -> None:
        seen = self.world.service.statistics().prefixes
        assert {number: (prefix.users, prefix.pins) for number, prefix in seen.items()} == {
            number: (len(prefix.users), len({client.session for client in prefix.pins}))
            for number, prefix in self.prefixes.items()
        }

    @invariant()
    def those_are_found_whose_tokens_were_named(self) -> None:
        listed = [prefix for prefix in self.prefixes.values() if prefix.ids]
        assert self.world.service.statistics().listed_prefixes == len(listed)

    @invariant()
    def those_run_that_hold_or_share_something(self) -> None:
        running = [mine for mine in self.requests if mine.is_running]
        assert self.world.service.statistics().running_requests == len(running)

    @invariant()
    def no_quota_is_passed(self) -> None:
        assert self.world.service.statistics().tenants.get("acme", 0) <= QUOTA * GRANULE

    def named(self, name: str, tenant: str) -> str:
        return f"{name}@{tenant}" if tenant else name

    def teardown(self) -> None:
        self.world.healed()
        for client in [*self.clients, *self.quarantine]:
            self.world.service.gone(client.session)
        for prefix in list(self.prefixes.values()):
            for client in list(prefix.pins):
                self.world.service.gone(client.session)
        self.world.service.close()
        assert dict(self.world.seen().accounts) == {"free": self.capacity * GRANULE}
        assert not self.world.seen().prefixes
        self.world.clear()
