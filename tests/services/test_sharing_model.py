"""Prefixes of one device against plain dictionaries: two tenants, rings and none, every verb, faults of the driver.

The model knows for each request which windows are its own and which prefixes it uses, and for each prefix who uses it,
who may still have it mapped and what builds on it. After each step the device's accounts are the model's, one by one,
and its audit holds. What is evicted must have been idle, and least recently so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import DriverError, GrantRefused, NeverFits, NotAllowed, NotShareable, OutOfBudget
from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.geometry.windows import Window, runs_of, windows_of
from kvcluster.ids import WindowRun
from kvcluster.testing.faulty_driver import Plan, failing_named, never
from kvcluster.testing.stand_in_cuda import DEFAULTS, load
from kvcluster.wire import messages as wire
from tests.services.device_world import GRANULE, Client, Device, DeviceWorld, Request

CAPACITY, QUOTA, MOST = 36, 24, 160
TENANTS = ("", "acme")
PLAIN = (GroupShape(1, 256), GroupShape(2, 96))
SLIDING = (GroupShape(1, 256), GroupShape(1, 128, Keeps.RING, 2), GroupShape(1, 128, Keeps.SNAPSHOT, 1))
tokens = st.one_of(st.sampled_from([48, 86, 128]), st.integers(1, MOST))
outcomes = st.sampled_from(["clean", "clean", "quarantined"])
plans = st.one_of(
    st.builds(failing_named, st.just("seal"), st.integers(1, 4)),
    st.builds(failing_named, st.just("create"), st.integers(1, 4)),
)


@dataclass(eq=False)
class Prefix:
    number: int
    tenant: str
    shape: Shape
    tokens: int
    windows: tuple[int, ...]
    base: tuple[int, ...]
    parent: Prefix | None
    users: set[Mine] = field(default_factory=set)
    ghosts: set[Client] = field(default_factory=set)
    owner: Mine | None = None  # until it is sealed
    is_kept: bool = False

    @property
    def granules(self) -> int:
        return 0 if self.owner else self.shape.window_count(self.windows) - self.shape.window_count(self.base)


@dataclass(eq=False)
class Mine:
    """A request."""

    request: Request
    client: Client
    shape: Shape
    own: set[Window] = field(default_factory=set)
    uses: list[tuple[Prefix, tuple[int, ...]]] = field(default_factory=list)
    writing: Prefix | None = None
    is_broken: bool = False

    @property
    def shared(self) -> tuple[int, ...]:
        """Where its own windows begin."""
        windows = self.uses[-1][1] if self.uses else (0,) * len(self.shape.groups)
        return tuple(0 if g.keeps is Keeps.SNAPSHOT else n for g, n in zip(self.shape.groups, windows, strict=True))

    def missing(self, amount: int, *, snapshot: bool) -> set[Window]:
        wanted = self.shape.windows(amount)
        if snapshot:
            wanted = self.shape.with_snapshots(wanted)
        return all_windows(self.shape, self.shared, wanted) - self.own


def all_windows(shape: Shape, start: tuple[int, ...], stop: tuple[int, ...]) -> set[Window]:
    return set(windows_of(shape.runs(start, stop)))


def wire_run(run: WindowRun) -> wire.Run:
    return wire.Run(group=run.group, fragment=run.fragment, start=run.start, count=run.count)


class SharingModel(RuleBasedStateMachine):
    gpu = ""

    def __init__(self) -> None:
        super().__init__()
        self.world = DeviceWorld(Device(CAPACITY, 3, quotas=Quotas({"acme": QUOTA * GRANULE})), self.gpu)
        self.clients: list[Client] = []
        self.requests: list[Mine] = []
        self.prefixes: dict[int, Prefix] = {}
        self.idle_order: list[Prefix] = []
        self.quarantine: dict[Client, int] = {}  # granules that wait for its process's end

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One rule: hypothesis leaves whole rules out of an example, and here every act needs others before it."""
        acts = [self.a_client_comes, self.the_driver_breaks, *[self.the_driver_heals] * 3, self.time_passes]
        if self.clients:
            acts += [self.opens] * (4 if len(self.requests) < 6 else 1)
        if self.requests:
            acts += [*[self.grows] * 4, self.releases, *[self.closes] * 2]
            acts += [self.a_client_goes, self.a_process_that_lost_its_connection_dies]
        if any(mine.own for mine in self.requests):
            acts += [self.publishes] * 6
        if self.prefixes and self.requests:
            acts += [self.joins] * 8
        if any(mine.writing for mine in self.requests):
            acts += [*[self.seals] * 10, self.gives_the_plan_up]
        if any(mine.uses for mine in self.requests):
            acts += [self.leaves]
        data.draw(st.sampled_from(acts))(data)
        self.settle()

    # --- clients and requests -------------------------------------------------------------------------------------

    def a_client_comes(self, data: st.DataObject) -> None:
        tenant = data.draw(st.sampled_from(TENANTS))
        if len(self.clients) < 4:
            self.clients.append(self.world.client(tenant))

    def opens(self, data: st.DataObject) -> None:
        groups = data.draw(st.sampled_from([PLAIN, PLAIN, SLIDING]))
        client = data.draw(st.sampled_from(self.clients))
        shape = Shape(groups, GRANULE)
        sent = tuple(
            wire.Group(fragments=g.fragments, stride_bytes=g.stride_bytes, keeps=g.keeps.value, windows=g.windows)
            for g in groups
        )
        self.requests.append(Mine(client.open(sent, max_tokens=MOST), client, shape))

    def grows(self, data: st.DataObject) -> None:
        amount = data.draw(tokens)
        snapshot = data.draw(st.booleans())
        mine = data.draw(st.sampled_from(self.requests))
        missing = mine.missing(amount, snapshot=snapshot)
        try:
            runs = mine.request.grow(amount, max(1, len(missing)), snapshot=snapshot)
        except (OutOfBudget, NeverFits):
            return  # and nothing was evicted
        except NotAllowed:
            assert mine.is_broken
        except DriverError:
            pass
        else:
            assert set(windows_of(WindowRun(r.group, r.fragment, r.start, r.count) for r in runs)) == missing
            mine.own |= missing
        self.evicted_for(mine.client.tenant)

    def releases(self, data: st.DataObject) -> None:
        outcome = data.draw(outcomes)
        mine = data.draw(st.sampled_from(self.requests))
        if mine.own:
            gone = set(data.draw(st.lists(st.sampled_from(sorted(mine.own)), min_size=1, unique=True)))
            mine.request.release(*map(wire_run, runs_of(gone)), outcome=outcome)
            self.released(mine, gone, outcome)

    def closes(self, data: st.DataObject) -> None:
        retain = data.draw(st.sampled_from([0, 0, 33, 64, 100, MOST]))
        leaves = data.draw(st.booleans())
        some = data.draw(st.booleans())
        mine = data.draw(st.sampled_from(self.requests))
        gone = set(data.draw(st.lists(st.sampled_from(sorted(mine.own)), unique=True))) if some and mine.own else set()
        ops: list[wire.Operation] = [mine.request.release_op(*map(wire_run, runs_of(gone)))] if gone else []
        left = mine.uses[::-1] if leaves else []
        ops += [mine.request.leave_op(prefix.number) for prefix, _ in left]
        *_, closed = mine.client.ask(*ops, mine.request.close_op(retain))
        assert isinstance(closed, wire.Closed)
        if gone:
            self.released(mine, gone, "clean")
        self.closed(mine, retain, left, closed.prefix)

    # --- prefixes -------------------------------------------------------------------------------------------------

    def publishes(self, data: st.DataObject) -> None:
        amount = data.draw(tokens)
        mine = data.draw(st.sampled_from([mine for mine in self.requests if mine.own]))
        windows = mine.shape.shared_windows(amount)
        needed = all_windows(mine.shape, mine.shared, windows)
        try:
            published = mine.request.publish(amount)
        except NotShareable:
            every = [n for g, n in zip(mine.shape.groups, windows, strict=True) if g.keeps is Keeps.EVERY]
            assert not all(every) or windows == mine.shared or any(map(int.__lt__, windows, mine.shared))
        except NotAllowed:
            assert mine.is_broken or mine.writing or needed - mine.own
        else:
            assert not mine.is_broken
            assert needed <= mine.own
            parent = mine.uses[-1][0] if mine.uses else None
            prefix = Prefix(published.prefix, mine.client.tenant, mine.shape, amount, windows, mine.shared, parent)
            prefix.owner, mine.writing = mine, prefix
            self.prefixes[prefix.number] = prefix

    def seals(self, data: st.DataObject) -> None:
        mine = data.draw(st.sampled_from([mine for mine in self.requests if mine.writing]))
        prefix = mine.writing
        assert prefix is not None
        sealed = mine.request.seal(prefix.number)
        assert len(mine.client.handles()) == len(all_windows(mine.shape, prefix.base, prefix.windows))
        mine.writing = None
        if sealed.refusal:
            del self.prefixes[prefix.number]
            return
        mine.own -= all_windows(mine.shape, prefix.base, prefix.windows)
        prefix.owner = None
        prefix.users.add(mine)
        mine.uses.append((prefix, prefix.windows))

    def gives_the_plan_up(self, data: st.DataObject) -> None:
        mine = data.draw(st.sampled_from([mine for mine in self.requests if mine.writing]))
        assert mine.writing is not None
        mine.request.leave(mine.writing.number)
        self.unplan(mine)

    def joins(self, data: st.DataObject) -> None:
        amount = data.draw(tokens)
        also = data.draw(st.integers(0, 3))
        sealed = [number for number, prefix in self.prefixes.items() if prefix.owner is None]
        number = data.draw(st.sampled_from([1, *self.prefixes, *sealed * 3]))
        prefix = self.prefixes.get(number)
        mine = self.joiner(data, prefix)
        ops: tuple[wire.Operation, ...] = mine.request.grow_ops(amount, also * 8) if also else ()
        try:
            joined, *more = mine.client.ask(mine.request.join_op(number, amount), *ops)
        except NotAllowed:
            assert mine.own or mine.uses or mine.is_broken
            return
        except (NotShareable, OutOfBudget, NeverFits):
            return
        except (GrantRefused, DriverError):  # the commit's: the grant before it may have evicted something
            assert also
            self.evicted_for(mine.client.tenant, spared=prefix)
            return
        assert isinstance(joined, wire.Joined)
        assert prefix is not None
        self.joined(mine, prefix, amount, joined)
        if more:
            mine.own |= mine.missing(amount, snapshot=False)
            self.evicted_for(mine.client.tenant)

    def leaves(self, data: st.DataObject) -> None:
        outcome = data.draw(outcomes)
        mine = data.draw(st.sampled_from([mine for mine in self.requests if mine.uses]))
        for older, _ in mine.uses[:-1]:
            self.cannot_leave(mine, older)
        prefix, _ = mine.uses.pop()
        mine.request.leave(prefix.number, outcome)
        if outcome == "quarantined":
            prefix.ghosts.add(mine.client)
        prefix.users.discard(mine)

    # --- ends and faults ------------------------------------------------------------------------------------------

    def a_client_goes(self, data: st.DataObject) -> None:
        is_dead = data.draw(st.booleans())
        client = data.draw(st.sampled_from(self.clients))
        self.world.service.disconnected(client.session)
        for mine in [mine for mine in self.requests if mine.client is client]:
            self.closed(mine, 0, [], None)
        self.clients.remove(client)
        self.settle()
        if is_dead:
            self.world.service.gone(client.session)
            self.died(client)

    def a_process_that_lost_its_connection_dies(self, data: st.DataObject) -> None:
        haunting = {ghost for prefix in self.prefixes.values() for ghost in prefix.ghosts} | set(self.quarantine)
        orphans = sorted(haunting - set(self.clients), key=lambda client: client.session)
        if orphans:
            client = data.draw(st.sampled_from(orphans))
            self.world.service.gone(client.session)
            self.died(client)

    def the_driver_breaks(self, data: st.DataObject) -> None:
        plan: Plan = data.draw(plans)
        self.world.driver.follow(plan)

    def the_driver_heals(self, data: st.DataObject) -> None:
        self.world.driver.follow(never())

    def time_passes(self, data: st.DataObject) -> None:
        seconds = data.draw(st.sampled_from([1.0, 6.0]))
        self.world.clock.advance(seconds)

    def joiner(self, data: st.DataObject, prefix: Prefix | None) -> Mine:
        """Mostly one who may."""
        may = [mine for mine in self.requests if prefix and not mine.own and not mine.uses and not mine.is_broken]
        may = [mine for mine in may if prefix and (mine.shape, mine.client.tenant) == (prefix.shape, prefix.tenant)]
        return data.draw(st.sampled_from([*self.requests, *may * 5]))

    # --- the model ------------------------------------------------------------------------------------------------

    def released(self, mine: Mine, gone: set[Window], outcome: str) -> None:
        mine.own -= gone
        if outcome == "quarantined":
            mine.is_broken = True
            self.quarantine[mine.client] = self.quarantine.get(mine.client, 0) + len(gone)
        if mine.writing and all_windows(mine.shape, mine.writing.base, mine.writing.windows) - mine.own:
            self.unplan(mine)

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
        inside = tuple(map(min, mine.shape.shared_windows(amount), prefix.windows))
        assert joined.tokens == mine.shape.reusable_tokens(inside, min(amount, prefix.tokens)) < amount
        assert joined.tokens > 0
        runs = {WindowRun(r.group, r.fragment, r.start, r.count) for r in joined.runs}
        assert runs == set(mine.shape.runs((0,) * len(inside), inside))
        prefix.users.add(mine)
        mine.uses.append((prefix, inside))

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
                prefix.ghosts.add(mine.client)
        own = {window for window in mine.own if retain and window.number < limit[window.group]}
        self.retained(mine, retain, own, kept, number)
        if mine.own - own:
            self.quarantine[mine.client] = self.quarantine.get(mine.client, 0) + len(mine.own - own)
        self.requests.remove(mine)

    def retained(
        self,
        mine: Mine,
        retain: int,
        own: set[Window],
        kept: list[tuple[Prefix, tuple[int, ...]]],
        number: int | None,
    ) -> None:
        parent, base = kept[0] if kept else (None, (0,) * len(mine.shape.groups))
        windows = tuple(self.reach(mine.shape, own, g, start) for g, start in enumerate(base))
        is_of_use = mine.shape.reusable_tokens(windows, retain) > 0 if retain else False
        expected = retain > 0 and not mine.shape.has_rings and windows != base and is_of_use
        assert (number is not None) == expected
        if number is not None:
            prefix = Prefix(number, mine.client.tenant, mine.shape, retain, windows, base, parent, is_kept=True)
            self.prefixes[number] = prefix

    def reach(self, shape: Shape, own: set[Window], group: int, start: int) -> int:
        stop = start
        while all(Window(group, fragment, stop) in own for fragment in range(shape.groups[group].fragments)):
            stop += 1
        return stop

    def died(self, client: Client) -> None:
        self.quarantine.pop(client, None)
        for prefix in self.prefixes.values():
            prefix.ghosts.discard(client)

    def evicted_for(self, tenant: str, *, spared: Prefix | None = None) -> None:
        """What is gone by now was evicted: idle, of this tenant or of one without a quota, the longest idle first."""
        self.settle()
        there = set(self.world.service.statistics().prefixes)
        gone = [prefix for prefix in self.idle_order if prefix.number not in there]
        if gone:
            assert spared not in gone
            assert {prefix.tenant for prefix in gone} <= {tenant, ""}
        for prefix in self.in_turn(gone):
            first = next(p for p in self.idle_order if p.tenant == prefix.tenant and not self.children(p))
            assert first is prefix or not prefix.is_kept
            self.idle_order.remove(prefix)
            del self.prefixes[prefix.number]
        self.settle()

    def in_turn(self, gone: list[Prefix]) -> Iterator[Prefix]:
        while gone:
            leaf = next(prefix for prefix in gone if not self.children(prefix))
            gone.remove(leaf)
            yield leaf

    def children(self, prefix: Prefix) -> list[Prefix]:
        return [child for child in self.prefixes.values() if child.parent is prefix]

    def is_idle(self, prefix: Prefix) -> bool:
        used = prefix.owner or prefix.users or prefix.ghosts
        return not used and all(map(self.is_idle, self.children(prefix)))

    def settle(self) -> None:
        """What nobody uses and nobody wants is gone; what has become idle stands behind what was idle before."""
        while drained := [p for p in self.prefixes.values() if self.is_drained(p)]:
            for prefix in drained:
                del self.prefixes[prefix.number]
        self.idle_order = [p for p in self.idle_order if p.number in self.prefixes and self.is_idle(p)]
        late = [p for p in self.prefixes.values() if self.is_idle(p) and p not in self.idle_order]
        self.idle_order += sorted(late, key=lambda p: p.number, reverse=True)

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
        expected["free"] = CAPACITY - granted - sum(expected.values())
        assert counted == {name: granules for name, granules in expected.items() if granules}

    @invariant()
    def each_prefix_is_used_by_whom_the_model_says(self) -> None:
        seen = self.world.service.statistics().prefixes
        assert {number: (prefix.users, prefix.ghosts) for number, prefix in seen.items()} == {
            number: (len(prefix.users), len({ghost.session for ghost in prefix.ghosts}))
            for number, prefix in self.prefixes.items()
        }

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
            for ghost in list(prefix.ghosts):
                self.world.service.gone(ghost.session)
        self.world.service.close()
        assert dict(self.world.seen().accounts) == {"free": CAPACITY * GRANULE}
        assert not self.world.seen().prefixes
        self.world.clear()


TestSharingModel = SharingModel.TestCase
TestSharingModel.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


class GpuSharingModel(SharingModel):
    """The same on a stand-in's GPU, which itself counts what is left on it."""

    gpu = "cuda:0"

    def __init__(self) -> None:
        load().set(GRANULE=GRANULE)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
            assert load().memory_alive() == {}
        finally:
            load().set(**DEFAULTS)


TestGpuSharingModel = GpuSharingModel.TestCase
TestGpuSharingModel.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
