"""Prefixes of one device against plain dictionaries: two tenants, rings and none, every verb, faults of the driver.

The model knows for each request which windows are its own and which prefixes it uses, and for each prefix who uses it,
who may still have it mapped and what builds on it. After each step the device's accounts are the model's, one by one,
and its audit holds. What is evicted must have been idle, and least recently so.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvcluster.errors import DriverError, GrantRefused, NeverFits, NotAllowed, NotShareable, OutOfBudget
from kvcluster.geometry.residency import Keeps, Shape
from kvcluster.geometry.windows import Window, runs_of
from kvcluster.testing.faulty_driver import Plan, failing_named, never
from kvcluster.wire import messages as wire
from tests.examples import examples
from tests.services.device_world import GRANULE, ROOT, refused
from tests.services.sharing.expected import Expected
from tests.services.sharing.parts import (
    CAPACITY,
    MOST,
    PLAIN,
    SLIDING,
    TENANTS,
    Mine,
    Prefix,
    all_windows,
    common,
    ids_of,
    may_join,
    straddles,
    wire_run,
)

tokens = st.one_of(st.sampled_from([48, 86, 96, 128]), st.integers(1, MOST))
families = st.sampled_from([0, 0, 0, 1, 2])
outcomes = st.sampled_from(["clean", "clean", "quarantined"])
plans = st.one_of(
    st.builds(failing_named, st.just("seal"), st.integers(1, 4)),
    st.builds(failing_named, st.just("create"), st.integers(1, 4)),
)


class SharingModel(Expected):
    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One rule: hypothesis leaves whole rules out of an example, and here every act needs others before it."""
        acts = [self.a_client_comes, self.the_driver_breaks, *[self.the_driver_heals] * 3, self.time_passes]
        if self.clients:
            acts += [self.opens] * (4 if len(self.requests) < 6 else 1)
            acts += [self.a_prompt_is_answered] * 8
            acts += [self.the_capacity_is_measured]
        if self.requests:
            acts += [*[self.grows] * 4, self.releases, *[self.closes] * 2]
            acts += [self.finds] * 2
            acts += [self.a_client_goes, self.a_process_that_lost_its_connection_dies]
        if any(mine.own for mine in self.requests):
            acts += [self.publishes] * 6
        if self.prefixes and self.requests:
            acts += [*[self.joins] * 6, *[self.finds] * 6]
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
        shareable = data.draw(st.sampled_from([0, 64, MOST]))
        shape = Shape(groups, GRANULE)
        sent = tuple(
            wire.Group(fragments=g.fragments, stride_bytes=g.stride_bytes, keeps=g.keeps.value, windows=g.windows)
            for g in groups
        )
        if shape.window_count(shape.windows(MOST)) > self.most(client.tenant, {}):
            refused(NeverFits, lambda: client.open(sent, max_tokens=MOST))
            return
        root = data.draw(st.sampled_from([*[ROOT] * 5, b""]))
        request = client.open(sent, max_tokens=MOST, shareable_tokens=shareable, root=root)
        self.arrived += 1
        assert request.arrival == self.arrived
        mine = Mine(request, client, shape, root=root)
        self.requests.append(mine)

    def a_prompt_is_answered(self, data: st.DataObject) -> None:
        """It finds, computes, may publish, and its request may end: an ordinary life in one act."""
        before = len(self.requests)
        self.opens(data)
        for mine in self.requests[before:]:
            self.looks(data, mine)
            self.grow(mine, data.draw(st.sampled_from([64, 100, MOST])), snapshot=mine.shape.has_rings)
            if data.draw(st.booleans()):
                self.publish(data, mine)
            if mine.writing and data.draw(st.integers(0, 3)):
                self.seal(mine)
            self.settle()
            if data.draw(st.booleans()):
                self.close(data, mine)

    def grows(self, data: st.DataObject) -> None:
        amount = data.draw(tokens)
        snapshot = data.draw(st.booleans())
        self.grow(data.draw(st.sampled_from(self.requests)), amount, snapshot=snapshot)

    def grow(self, mine: Mine, amount: int, *, snapshot: bool) -> None:
        missing = mine.missing(amount, snapshot=snapshot)
        need = max(1, len(missing))
        try:
            runs = mine.request.grow(amount, need, snapshot=snapshot)
        except (OutOfBudget, NeverFits) as refusal:
            self.refused(mine, need, refusal)
            return
        except NotAllowed:
            assert mine.is_broken
        except DriverError:
            pass
        else:
            self.committed(mine, runs, missing)
            self.waiting.pop(mine, None)
        self.evicted_for(mine.client.tenant)

    def releases(self, data: st.DataObject) -> None:
        outcome = data.draw(outcomes)
        mine = data.draw(st.sampled_from(self.requests))
        if mine.own:
            gone = self.some(data, mine, 1)
            part = {max(gone)}
            if mine.piece_of[max(gone)] != part:
                refused(NotAllowed, lambda: mine.request.release(*map(wire_run, runs_of(part)), outcome=outcome))
            mine.request.release(*map(wire_run, runs_of(gone)), outcome=outcome)
            self.released(mine, gone, outcome)

    def some(self, data: st.DataObject, mine: Mine, least: int) -> set[Window]:
        """Some of its own windows, whole handles."""
        drawn = data.draw(st.lists(st.sampled_from(sorted(mine.own)), min_size=least, unique=True))
        return {window for some in drawn for window in mine.piece_of[some]}

    def closes(self, data: st.DataObject) -> None:
        self.close(data, data.draw(st.sampled_from(self.requests)))

    def close(self, data: st.DataObject, mine: Mine) -> None:
        retain = data.draw(st.sampled_from([0, 33, 64, 100, MOST]))
        leaves = data.draw(st.booleans())
        some = data.draw(st.booleans())
        gone = self.some(data, mine, 0) if some and mine.own else set()
        ops: list[wire.Operation] = [mine.request.release_op(*map(wire_run, runs_of(gone)))] if gone else []
        left = mine.uses[::-1] if leaves else []
        ops += [mine.request.leave_op(prefix.number) for prefix, _ in left]
        more = ids_of(data.draw(families), MOST)[len(mine.ids) : retain] if data.draw(st.integers(0, 2)) else ()
        if mine.uses and not mine.ids:
            more = ()  # whatever it joined, it said nothing of its tokens
        *_, closed = mine.client.ask(*ops, mine.request.close_op(retain, more))
        mine.ids += more
        assert isinstance(closed, wire.Closed)
        if gone:
            self.released(mine, gone, "clean")
        self.closed(mine, retain, left, closed.prefix)

    # --- prefixes -------------------------------------------------------------------------------------------------

    def publishes(self, data: st.DataObject) -> None:
        self.publish(data, data.draw(st.sampled_from([mine for mine in self.requests if mine.own])))

    def publish(self, data: st.DataObject, mine: Mine) -> None:
        amount = data.draw(st.one_of(tokens, *map(st.just, self.publishable(mine))))
        windows = mine.shape.shared_windows(amount)
        needed = all_windows(mine.shape, mine.shared, windows)
        try:
            published = mine.request.publish(amount)
        except NotShareable:
            every = [n for g, n in zip(mine.shape.groups, windows, strict=True) if g.keeps is Keeps.EVERY]
            is_small = not all(every) or windows == mine.shared or any(map(int.__lt__, windows, mine.shared))
            pieces = set(mine.piece_of.values())
            is_bulky = any(straddles(pieces, group, count) for group, count in enumerate(windows))
            assert is_small or is_bulky or self.alike(mine, amount, windows)
        except NotAllowed:
            assert mine.is_broken or mine.writing or needed - mine.own
        else:
            assert not mine.is_broken
            assert needed <= mine.own
            assert not self.alike(mine, amount, windows)
            parent = mine.uses[-1][0] if mine.uses else None
            prefix = Prefix(published.prefix, mine.client.tenant, mine.shape, amount, windows, mine.shared, parent)
            prefix.owner, mine.writing = mine, prefix
            prefix.pieces = {mine.piece_of[window] for window in needed}
            assert set().union(*prefix.pieces) == needed
            self.prefixes[prefix.number] = prefix

    def publishable(self, mine: Mine) -> list[int]:
        """How many tokens of it are there, in whole handles."""
        found = []
        for amount in range(32, MOST + 1, 32):
            windows, pieces = mine.shape.shared_windows(amount), set(mine.piece_of.values())
            if all_windows(mine.shape, mine.shared, windows) <= mine.own:
                found += [amount] if not any(straddles(pieces, g, n) for g, n in enumerate(windows)) else []
        return found

    def seals(self, data: st.DataObject) -> None:
        self.seal(data.draw(st.sampled_from([mine for mine in self.requests if mine.writing])))

    def seal(self, mine: Mine) -> None:
        prefix = mine.writing
        assert prefix is not None
        sealed = mine.request.seal(prefix.number)
        assert len(mine.client.handles()) == len(prefix.pieces)
        mine.writing = None
        if sealed.refusal:
            del self.prefixes[prefix.number]
            return
        mine.own -= all_windows(mine.shape, prefix.base, prefix.windows)
        prefix.owner = None
        self.listed(mine, prefix)
        self.uses(mine, prefix, prefix.windows)

    def gives_the_plan_up(self, data: st.DataObject) -> None:
        mine = data.draw(st.sampled_from([mine for mine in self.requests if mine.writing]))
        assert mine.writing is not None
        mine.request.leave(mine.writing.number)
        self.unplan(mine)

    def joins(self, data: st.DataObject) -> None:
        also = data.draw(st.integers(0, 3))
        sealed = [number for number, prefix in self.prefixes.items() if prefix.owner is None]
        number = data.draw(st.sampled_from([1, *self.prefixes, *sealed * 3]))
        prefix = self.prefixes.get(number)
        amount = data.draw(st.one_of(tokens, st.just(min(MOST, prefix.tokens + 10))) if prefix else tokens)
        mine = self.joiner(data, prefix)
        if mine.ids and prefix and common(mine.ids, prefix.ids) < amount:
            return  # it would say that tokens are equal which are not
        ops: tuple[wire.Operation, ...] = mine.request.grow_ops(amount, also * 8) if also else ()
        try:
            joined, *more = mine.client.ask(mine.request.join_op(number, amount), *ops)
        except NotAllowed:
            assert mine.own or mine.uses or mine.is_broken
            return
        except NotShareable:
            assert prefix is None or not may_join(mine, prefix, amount) or self.has_failed("seal")
            return
        except (OutOfBudget, NeverFits) as refusal:
            assert prefix
            self.refused(mine, also * 8, refusal, joining=prefix, amount=amount)
            return
        except (GrantRefused, DriverError):  # the commit's: the grant before it may have evicted something
            assert also
            self.evicted_for(mine.client.tenant, spared=prefix)
            return
        assert isinstance(joined, wire.Joined)
        assert prefix is not None
        self.joined(mine, prefix, amount, joined)
        if more:
            *_, committed = more
            assert isinstance(committed, wire.Committed)
            self.committed(mine, committed.runs, mine.missing(amount, snapshot=False))
            self.evicted_for(mine.client.tenant)

    def finds(self, data: st.DataObject) -> None:
        listed = [prefix for prefix in self.prefixes.values() if prefix.ids]
        self.looks(data, self.joiner(data, data.draw(st.sampled_from(listed)) if listed else None))

    def looks(self, data: st.DataObject, mine: Mine) -> None:
        also = data.draw(st.sampled_from([0, 1, 1, 2, 3]))
        ids = ids_of(data.draw(families), data.draw(st.one_of(st.just(MOST), tokens)))
        try:
            [found] = mine.client.ask(mine.request.find_op(ids))
        except NotAllowed:
            assert mine.own or mine.uses or mine.is_broken
            return
        assert isinstance(found, wire.Found)
        mine.ids = ids
        prefix = self.found(mine, found)
        if also and not self.has_failed("seal"):
            self.finds_again(mine, prefix, also)

    def finds_again(self, mine: Mine, prefix: Prefix | None, also: int) -> None:
        """The same with a growth beside it, whole or not at all."""
        if prefix:
            mine.request.leave(prefix.number)
            mine.uses.pop()
            prefix.users.discard(mine)
        amount, equal = len(mine.ids), common(prefix.ids, mine.ids) if prefix else 0
        try:
            found, _, committed = mine.client.ask(
                mine.request.find_op(mine.ids), *mine.request.grow_ops(amount, also * 8)
            )
        except (OutOfBudget, NeverFits) as refusal:
            self.claimed = {key: claimer for key, claimer in self.claimed.items() if claimer is not mine}
            self.refused(mine, also * 8, refusal, joining=prefix, amount=equal)
            return
        except (GrantRefused, DriverError):
            self.claimed = {key: claimer for key, claimer in self.claimed.items() if claimer is not mine}
            self.evicted_for(mine.client.tenant, spared=prefix)
            return
        assert isinstance(found, wire.Found)
        assert isinstance(committed, wire.Committed)
        assert self.found(mine, found) is prefix
        self.waiting.pop(mine, None)
        self.committed(mine, committed.runs, mine.missing(amount, snapshot=False))
        self.evicted_for(mine.client.tenant)

    def leaves(self, data: st.DataObject) -> None:
        outcome = data.draw(outcomes)
        mine = data.draw(st.sampled_from([mine for mine in self.requests if mine.uses]))
        for older, _ in mine.uses[:-1]:
            self.cannot_leave(mine, older)
        prefix, _ = mine.uses.pop()
        mine.request.leave(prefix.number, outcome)
        if outcome == "quarantined":
            prefix.pins.add(mine.client)
            mine.is_broken = True
        prefix.users.discard(mine)
        self.emptied(mine)

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
        pinning = {client for prefix in self.prefixes.values() for client in prefix.pins} | set(self.quarantine)
        orphans = sorted(pinning - set(self.clients), key=lambda client: client.session)
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

    def the_capacity_is_measured(self, data: st.DataObject) -> None:
        utilization = data.draw(st.sampled_from([0.4, 0.7, 0.9, 1.0, 1.0, 1.0]))
        seen = self.world.driver.memory_info()
        wanted = min(CAPACITY, int(utilization * (seen.free_bytes + seen.held_bytes)) // GRANULE)
        claimed = self.capacity - self.free
        self.capacity = self.world.service.measure(utilization) // GRANULE
        gone = self.gone()
        assert claimed > wanted or not gone
        self.went(gone)
        assert "acme" not in [prefix.tenant for prefix in gone] or all(prefix.tenant for prefix in self.idle)
        assert self.capacity == wanted or not self.idle
        assert self.capacity == max(wanted, CAPACITY - self.free - (CAPACITY - self.capacity))

    def joiner(self, data: st.DataObject, prefix: Prefix | None) -> Mine:
        """Mostly one who may."""
        may = [mine for mine in self.requests if not mine.own and not mine.uses and not mine.is_broken]
        may = [m for m in may if not prefix or (m.shape, m.client.tenant) == (prefix.shape, prefix.tenant)]
        return data.draw(st.sampled_from([*self.requests, *may * 5]))


TestSharingModel = SharingModel.TestCase
TestSharingModel.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
