"""What dead processes leave, against a plain list: processes compute, give back, die and are succeeded in any order.

The model knows of each text how much of it is noted and whether all of its windows are there, and of what is kept the
order in which it was left. After each step the device's audit holds, and it keeps what the model says, to the granule.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kvcluster.errors import OutOfBudget
from kvcluster.wire import messages as wire
from tests.examples import examples
from tests.services.device_world import GRANULE, TOKENS, Client, Device, DeviceWorld, Request
from tests.services.heirs import Noting, adopt, granule_count

GRACE_S = 60.0
CAPACITY = 24


@dataclass(eq=False)
class Text:
    """One that is computed: `written` tokens are noted; those of what was given back are not."""

    label: bytes
    owner: Noting
    request: Request
    granules: int
    written: int
    has_note: bool = True


@dataclass(eq=False)
class Kept:
    text: Text
    until: float


class KeepingModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = DeviceWorld(Device(capacity=CAPACITY, grace_s=GRACE_S))
        self.living: list[Noting] = [Noting(self.world)]
        self.texts: list[Text] = []
        self.kept: list[Kept] = []
        self.dead: dict[bytes, Noting] = {}  # by the label of what they left
        self.labels = 0
        self.hungry: Client = self.world.client()

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One rule: every act needs others before it."""
        acts = [self.one_comes, *[self.one_computes] * 4, self.time_passes, self.somebody_needs_room]
        if self.texts:
            acts += [self.one_gives_back, *[self.one_goes_on] * 2, *[self.one_dies] * 3]
        if self.dead:
            acts += [self.one_succeeds] * 4
        data.draw(st.sampled_from(acts))(data)
        self.settle()

    def one_comes(self, data: st.DataObject) -> None:
        if len(self.living) < 4:
            self.living.append(Noting(self.world))

    def one_computes(self, data: st.DataObject) -> None:
        owner, granules = data.draw(st.sampled_from(self.living)), data.draw(st.integers(1, 4))
        written = data.draw(st.integers(1, granules * TOKENS))
        self.labels += 1
        label = self.labels.to_bytes(16, "big")
        try:
            request = owner.computed(granules, tokens=written, label=label)
        except OutOfBudget:
            return
        self.make_room()
        self.texts.append(Text(label, owner, request, granules, written))

    def one_gives_back(self, data: st.DataObject) -> None:
        """As a preemption does: the note goes first."""
        text = data.draw(st.sampled_from(self.texts))
        if text.granules:
            owner, text.has_note = text.owner, False
            owner.lost(text.label)
            text.request.release(wire.Run(group=0, fragment=0, start=0, count=text.granules))
            text.granules = 0

    def one_goes_on(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.texts))
        if text.has_note:
            text.written = data.draw(st.integers(text.written, text.granules * TOKENS))
            text.owner.note(text.request, text.written, label=text.label)

    def one_dies(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.texts)).owner
        owner.die()
        self.living.remove(owner)
        self.living = self.living or [Noting(self.world)]
        mine = [text for text in self.texts if text.owner is owner]
        self.texts = [text for text in self.texts if text.owner is not owner]
        self.dead |= {text.label: owner for text in mine}
        until = self.world.clock() + GRACE_S
        self.kept += [Kept(text, until) for text in mine if text.has_note]

    def one_succeeds(self, data: st.DataObject) -> None:
        label = data.draw(st.sampled_from(sorted(self.dead)))
        heir, owner = data.draw(st.sampled_from(self.living)), self.dead[label]
        kept = next((kept for kept in self.kept if kept.text.label == label), None)
        request, found = adopt(heir.client, owner, label=label)
        assert found.what == ("adopted" if kept else "said")
        if kept is not None:
            self.kept.remove(kept)
            del self.dead[label]
            assert (found.tokens, granule_count(found.runs)) == (kept.text.written, kept.text.granules)
            heir.note(request, found.tokens, label=label)
            self.texts.append(Text(label, heir, request, kept.text.granules, found.tokens))

    def time_passes(self, data: st.DataObject) -> None:
        self.world.clock.advance(data.draw(st.sampled_from([1.0, GRACE_S / 2])))
        self.world.service.idle()
        self.kept = [kept for kept in self.kept if kept.until > self.world.clock()]

    def somebody_needs_room(self, data: st.DataObject) -> None:
        """And gives it back: what was kept in its place is gone."""
        granules = data.draw(st.integers(1, CAPACITY))
        request = self.hungry.open(max_tokens=CAPACITY * TOKENS)
        try:
            request.grow(granules * TOKENS, granules)
            request.release(wire.Run(group=0, fragment=0, start=0, count=granules))
        except OutOfBudget:
            pass
        request.close()
        self.make_room()

    def make_room(self) -> None:
        """The oldest went first."""
        left = self.world.granules("retained")
        while sum(kept.text.granules for kept in self.kept) > left:
            self.kept.pop(0)

    def settle(self) -> None:
        seen = self.world.seen()
        held = sum(text.granules for text in self.texts)
        assert seen.kept_bytes == seen.retained_bytes == GRANULE * sum(kept.text.granules for kept in self.kept)
        assert self.world.granules("request") == held
        assert seen.free_bytes == GRANULE * CAPACITY - seen.kept_bytes - held * GRANULE

    def teardown(self) -> None:
        for noting in self.living:
            noting.page.close()
        self.world.service.close()
        self.world.clear()


TestKeepingModel = KeepingModel.TestCase
TestKeepingModel.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
