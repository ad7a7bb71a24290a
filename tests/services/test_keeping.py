"""What a dead process leaves: kept for a while for whoever has the same work, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.errors import NotAllowed, OutOfBudget
from kvcluster.index.token_chain import packed
from kvcluster.services.keeping import WORDS_S
from kvcluster.wire import messages as wire
from tests.services.device_world import ROOT, TOKENS, WITH_RING, Device, DeviceWorld, refused
from tests.services.heirs import LABEL, OTHER, Noting, adopt, ask, granule_count

GRACE_S = 60.0


@pytest.fixture
def world() -> Iterator[DeviceWorld]:
    opened = DeviceWorld(Device(grace_s=GRACE_S))
    yield opened
    opened.service.close()
    opened.clear()


@pytest.fixture
def dead(world: DeviceWorld) -> Noting:
    """It died with 48 tokens of one request, in three granules."""
    noting = Noting(world)
    noting.computed(3)
    noting.die()
    return noting


def test_a_successor_has_the_same_handles_the_place_in_the_queue_and_all_that_was_said(world: DeviceWorld) -> None:
    noting, other = Noting(world), world.client()
    request = noting.computed(3)
    handles, between = noting.client.handles(), other.open()
    noting.die()
    heir, found = adopt(other, noting)
    assert (found.what, found.tokens, found.token_ids) == ("adopted", 3 * TOKENS, packed([5, 6]))
    assert other.handles() == handles
    assert granule_count(found.runs) == 3
    assert found.arrival == request.arrival < between.arrival < heir.arrival
    assert (world.granules("request"), world.granules("retained"), world.granules("free")) == (3, 0, 61)
    heir.grow(4 * TOKENS, 1)
    assert world.granules("request") == 4


def test_what_is_kept_is_charged_as_retained_and_free_to_whoever_needs_it(world: DeviceWorld, dead: Noting) -> None:
    assert (world.granules("retained"), world.granules("quarantine"), world.granules("request")) == (3, 0, 0)
    hungry = world.client().open(max_tokens=64 * TOKENS)
    hungry.grow(62 * TOKENS, 62)
    assert world.granules("retained") == 0
    assert adopt(world.client(), dead)[1].what == "said"


def test_a_refusal_takes_nothing_of_what_is_kept(world: DeviceWorld, dead: Noting) -> None:
    world.client().open().grow(10 * TOKENS, 10)
    hungry = world.client().open(max_tokens=64 * TOKENS)
    refusal = refused(OutOfBudget, lambda: hungry.grow(60 * TOKENS, 60))
    assert isinstance(refusal, OutOfBudget)
    assert world.granules("retained") == 3
    assert adopt(world.client(), dead)[1].what == "adopted"


def test_idle_prefixes_go_before_what_is_kept(world: DeviceWorld, dead: Noting) -> None:
    sharer = world.client().open(root=ROOT)
    sharer.find(range(32))
    sharer.grow(2 * TOKENS, 2)
    sharer.close(2 * TOKENS)
    assert world.granules("retained") == 5
    world.client().open(max_tokens=64 * TOKENS).grow(60 * TOKENS, 60)
    assert adopt(world.client(), dead)[1].what == "adopted"


def test_nothing_can_be_adopted_before_the_process_is_known_to_be_dead(world: DeviceWorld) -> None:
    noting = Noting(world)
    noting.computed(3)
    heir, found = adopt(world.client(), noting)
    assert found.what == "living"
    noting.orphan()
    assert ask(heir, noting).what == "living"
    assert world.granules("quarantine") == 3
    noting.die()
    assert ask(heir, noting).what == "adopted"


def test_what_is_kept_goes_after_its_grace_and_the_words_later(world: DeviceWorld, dead: Noting) -> None:
    world.clock.advance(GRACE_S - 1)
    world.service.idle()
    assert world.granules("retained") == 3
    world.clock.advance(1)
    world.service.idle()
    assert (world.granules("retained"), world.granules("free")) == (0, 64)
    found = adopt(world.client(), dead)[1]
    assert (found.what, found.token_ids, found.computed) == ("said", packed([5, 6]), 3 * TOKENS)
    world.clock.advance(WORDS_S)
    world.service.idle()
    assert adopt(world.client(), dead)[1].what == "nothing"


def test_memory_is_adopted_once(world: DeviceWorld, dead: Noting) -> None:
    assert adopt(world.client(), dead)[1].what == "adopted"
    assert adopt(world.client(), dead)[1].what == "nothing"


def test_only_who_has_the_label_and_names_the_session_gets_anything(world: DeviceWorld, dead: Noting) -> None:
    assert adopt(world.client(), dead, label=OTHER)[1].what == "nothing"
    stranger = Noting(world)
    stranger.die()
    assert adopt(world.client(), stranger)[1].what == "nothing"
    assert adopt(world.client(), stranger, dead)[1].what == "adopted"


def test_the_newest_session_that_left_something_counts(world: DeviceWorld, dead: Noting) -> None:
    newer = Noting(world)
    newer.computed(4)
    newer.die()
    assert adopt(world.client(), newer, dead)[1].tokens == 4 * TOKENS


def void(noting: Noting) -> None:
    noting.page.void()


def close(noting: Noting) -> None:
    noting.page.close()


@pytest.mark.parametrize("last_word", [void, close])
def test_nothing_is_kept_of_a_process_that_ended_itself(
    world: DeviceWorld, last_word: Callable[[Noting], None]
) -> None:
    noting = Noting(world)
    noting.computed(3)
    last_word(noting)
    noting.die()
    assert (world.granules("retained"), world.granules("free")) == (0, 64)
    found = adopt(world.client(), noting)[1]
    assert (found.what, found.computed) == ("said", 3 * TOKENS)
    assert found.token_ids == (b"" if last_word is void else packed([5, 6]))


def test_a_page_that_is_closed_is_read_though_its_process_lives(world: DeviceWorld) -> None:
    noting = Noting(world)
    slot = noting.note(noting.client.open(), 0)
    slot.lost()
    noting.page.close()
    noting.orphan()
    assert noting.client.session not in world.seen().sessions
    assert adopt(world.client(), noting)[1].what == "said"


@pytest.mark.parametrize("case", ["fenced", "fenced, and not the first", "heard"])
def test_of_a_process_that_surrendered_only_the_words_are_left_though_its_page_is_open(
    world: DeviceWorld, case: str
) -> None:
    """It goes on living, so that its page says that it runs."""
    first, noting = Noting(world), Noting(world)
    (first if "first" in case else noting).computed(3)
    first.die()
    if "first" in case:
        adopt(noting.client, first)
    for _ in range(0 if case == "heard" else 32):  # a device that does not look for long blames nobody
        world.clock.advance(1.0)
        world.service.idle()
    world.service.surrendered(noting.client.session)
    assert world.granules("free") == 64
    found = adopt(world.client(), noting)[1]
    assert (found.what, found.token_ids, found.computed) == ("said", packed([5, 6]), 3 * TOKENS)
    noting.page.close()


def test_without_a_grace_only_the_words_are_left() -> None:
    world = DeviceWorld(Device())
    noting = Noting(world)
    noting.computed(3)
    noting.die()
    assert world.granules("free") == 64
    assert adopt(world.client(), noting)[1].what == "said"
    world.service.close()
    world.clear()


def test_nothing_is_kept_of_which_a_window_is_not_there(world: DeviceWorld) -> None:
    noting = Noting(world)
    noting.computed(3, tokens=3 * TOKENS + 1)
    shed = noting.computed(3, label=OTHER)
    shed.release(wire.Run(group=0, fragment=0, start=1, count=1))
    noting.die()
    assert world.granules("free") == 64
    assert {adopt(world.client(), noting, label=label)[1].what for label in (LABEL, OTHER)} == {"said"}


def test_nothing_is_kept_of_a_request_that_is_publishing_or_quarantined(world: DeviceWorld) -> None:
    noting = Noting(world)
    noting.computed(3).publish(2 * TOKENS)
    noting.computed(3, label=OTHER).release(wire.Run(group=0, fragment=0, start=2, count=1), outcome="quarantined")
    noting.orphan()
    assert world.granules("quarantine") == 6
    noting.die()
    assert world.granules("free") == 64


def test_what_is_of_another_shape_or_tenant_is_not_adopted(world: DeviceWorld) -> None:
    noting, third = Noting(world), Noting(world)
    noting.computed(3)
    third.computed(3)
    noting.die()
    third.die()
    assert adopt(world.client("another"), noting)[1].what == "said"
    assert adopt(world.client(), third, groups=WITH_RING)[1].what == "said"
    assert world.granules("retained") == 0


def test_a_request_adopts_before_it_holds_anything(world: DeviceWorld, dead: Noting) -> None:
    heir = world.client().open()
    heir.grow(TOKENS, 1)
    refused(NotAllowed, lambda: ask(heir, dead))
    assert world.granules("retained") == 3


def test_prefixes_that_were_used_are_used_on(world: DeviceWorld) -> None:
    noting, other = Noting(world), world.client()
    sharer = other.open(root=ROOT)
    sharer.find(range(40))
    sharer.grow(2 * TOKENS, 2)
    prefix = sharer.share(2 * TOKENS)
    shared = other.handles()
    joiner = noting.client.open(root=ROOT)
    joiner.find(range(40))
    joiner.grow(4 * TOKENS, 2)
    own = noting.client.handles()
    noting.note(joiner, 3 * TOKENS)
    noting.die()
    sharer.leave(prefix)
    sharer.close()
    assert (world.granules("prefix"), world.granules("retained")) == (2, 2)
    heir, found = adopt(other, noting, root=ROOT)
    assert (found.what, found.prefixes, found.told) == ("adopted", (prefix,), 40)
    assert (granule_count(found.shared), granule_count(found.runs)) == (2, 2)
    assert other.handles() == [*shared, *own]
    heir.leave(prefix)
    heir.release(*found.runs)
    heir.close()
    assert (world.granules("retained"), world.granules("free")) == (2, 62)


def test_a_prefix_that_only_what_is_kept_uses_goes_after_it(world: DeviceWorld) -> None:
    noting = Noting(world)
    request = noting.computed(4)
    request.share(2 * TOKENS)
    noting.die()
    assert (world.granules("prefix"), world.granules("retained")) == (2, 2)
    world.clock.advance(GRACE_S)
    world.service.idle()
    assert world.granules("free") == 64


@pytest.mark.parametrize("notes", [False, True], ids=["before its first note", "after it"])
def test_a_successor_that_dies_too_leaves_what_it_adopted_or_went_on_to(world: DeviceWorld, *, notes: bool) -> None:
    first, second = Noting(world), Noting(world)
    first.computed(3)
    first.die()
    heir, _ = adopt(second.client, first)
    if notes:
        second.note(heir, 2 * TOKENS, ids=(5, 6, 7))
    second.die()
    found = adopt(world.client(), second, first)[1]
    assert (found.what, found.tokens) == ("adopted", (2 if notes else 3) * TOKENS)
    assert found.token_ids == packed((5, 6, 7) if notes else (5, 6))


def test_a_successor_that_gave_back_what_it_adopted_leaves_nothing_of_it(world: DeviceWorld) -> None:
    first, second = Noting(world), Noting(world)
    first.computed(3)
    first.die()
    heir, found = adopt(second.client, first)
    heir.release(*found.runs)
    heir.grow(3 * TOKENS, 3)
    second.die()
    assert adopt(world.client(), second)[1].what == "nothing"


def test_an_adoption_that_is_heard_twice_is_done_once(world: DeviceWorld, dead: Noting) -> None:
    client = world.client()
    heir = client.open()
    frame = client.frame(wire.Adopt(request=heir.key, sessions=(dead.client.session,), label=LABEL))
    assert client.service.frame(frame) == client.service.frame(frame)
    assert world.granules("request") == 3
