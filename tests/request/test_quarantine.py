"""Memory that only a process's end brings back: who waits for it, for how long, and in which place of the queue."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.errors import OutOfBudget
from kvcluster.geometry.layout import Layout
from kvcluster.ids import new_session
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import Shed
from kvcluster.services.completion import Completion, CompletionRequest, Refused, answers_among
from kvcluster.services.pacing import Pace
from kvcluster.services.request import RequestService, RequestSettings
from kvcluster.services.request.answers import Answers
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.inbox import Inbox
from kvcluster.services.request.intake import Intake
from kvcluster.services.request.outbox import Outbox
from kvcluster.services.request.place import shape_at
from kvcluster.services.request.roster import Roster
from kvcluster.services.request.shared import Shared
from kvcluster.services.sequence import SequenceSpec
from kvcluster.testing.faulty_driver import FaultyDriver, failing_every, failing_named, never
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire.codec import encode
from kvcluster.wire.messages import Close, Commit, Frame, Grant, Group, Open, RequestKey
from kvcluster.wire.socket import Hello
from tests.request.conftest import PROMPTS
from tests.request.world import GRANULE_BYTES, World

KEY = RequestKey(number=1)
STRIDE_BYTES = 512


def request(prompt_tokens: int, max_tokens: int) -> CompletionRequest:
    return CompletionRequest((5,) * prompt_tokens, max_tokens=max_tokens, temperature=0, ignore_eos=True)


def quarantine(world: World, granules: int) -> str:
    """Another process takes so many granules and ends its request without giving them back; its session's name."""
    session, tokens = new_session(), granules * GRANULE_BYTES // STRIDE_BYTES
    welcome = world.device.service.hello(Hello(session=session), pid=1)
    ops = (
        Open(request=KEY, groups=(Group(fragments=1, stride_bytes=STRIDE_BYTES),), max_tokens=tokens),
        Grant(request=KEY, grant=1, size_bytes=granules * GRANULE_BYTES),
        Commit(request=KEY, grant=1, tokens=tokens),
    )
    for seq, frame_ops in enumerate((ops, (Close(request=KEY),)), start=1):
        frame = Frame(session=session, seq=seq, ack=0, epoch=welcome.epoch, ops=frame_ops)
        world.device.service.frame(encode(frame))
    assert world.device.audit().accounts["quarantine"] == granules * GRANULE_BYTES
    return session


@pytest.fixture
def world(model: Model, tokenizer: Tokenizer) -> Iterator[World]:
    """One that is not whole at the end: whatever it leaves is taken back."""
    drivers: list[TidyDriver] = []

    def driver_of(**sizes: int) -> FaultyDriver:
        drivers.append(TidyDriver(**sizes))
        return FaultyDriver(drivers[0])

    made = World(model, tokenizer, granules=20, driver_of=driver_of)
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakedOnPurpose)
        faulty(made).follow(never())
        for service in made.services:
            service.close()
        made.device.close()
    drivers[0].clear()


def faulty(world: World) -> FaultyDriver:
    driver = world.device.driver
    assert isinstance(driver, FaultyDriver)
    return driver


def run_until(world: World, service: RequestService, seconds: float) -> dict[int, Completion | Refused]:
    """What is answered within so much time."""
    until, found = world.clock() + seconds, {}
    while world.clock() < until:
        if not service.step():
            world.clock.advance(0.05)
        found.update(answers_among(service.said()))
    return found


def test_a_request_that_a_quarantine_keeps_waiting_is_refused_after_a_bounded_time_and_younger_ones_are_served(
    world: World,
) -> None:
    quarantine(world, 10)
    service = world.open(quarantine_wait_s=20)
    service.submit(1, request(100, 30))  # thirteen granules and more
    service.submit(2, request(20, 10))
    early = run_until(world, service, 19)
    assert set(early) == {2}
    assert isinstance(early[2], Completion)
    [refused] = run_until(world, service, 2).values()
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.code) == (503, "device_failed")
    assert "could not be taken back" in refused.message


def test_a_capacity_that_was_measured_anew_counts_for_who_waits_for_a_quarantine(world: World) -> None:
    """Twenty granules when the client came, and fifteen now: without the quarantine's five, its thirteen never fit."""
    quarantine(world, 5)
    service = world.open(quarantine_wait_s=20)
    assert world.device.service.measure(0.75) == 15 * GRANULE_BYTES
    service.submit(1, request(100, 4))
    assert run_until(world, service, 19) == {}
    [refused] = run_until(world, service, 2).values()
    assert isinstance(refused, Refused)
    assert f"of the device's {15 * GRANULE_BYTES} bytes" in refused.message


def test_a_refusal_says_the_capacity_of_now(world: World) -> None:
    world.device.service.measure(0.5)
    memory = world.device.open(world.model.geometry, max_tokens=80)
    quarantine(world, 5)
    with pytest.raises(OutOfBudget) as refused:
        memory.grant(80)
    assert (refused.value.capacity, refused.value.quarantined) == (10 * GRANULE_BYTES, 5 * GRANULE_BYTES)
    memory.close()


def test_twice_the_lease_is_what_a_quarantine_is_waited_for(world: World) -> None:
    quarantine(world, 10)
    service = world.open()
    service.submit(1, request(100, 30))
    assert run_until(world, service, 59) == {}
    assert set(run_until(world, service, 2)) == {1}


def test_a_process_that_ends_in_time_lets_the_waiter_through(world: World) -> None:
    session = quarantine(world, 10)
    service = world.open(quarantine_wait_s=20)
    service.submit(1, request(100, 30))
    assert run_until(world, service, 15) == {}
    world.device.service.gone(session)
    assert isinstance(run_until(world, service, 4)[1], Completion)


def test_a_running_request_that_a_quarantine_stops_gives_its_memory_to_others(world: World) -> None:
    service, other = world.open(quarantine_wait_s=20), world.open()
    service.submit(1, request(30, 120))  # nineteen granules at its end
    for _ in range(20):
        service.step()
    quarantine(world, 5)
    while not service.statistics().waiting:
        service.step()
    other.submit(2, request(60, 20))
    assert isinstance(run_until(world, other, 1)[2], Completion)
    assert isinstance(run_until(world, service, 22)[1], Refused)


def test_bytes_that_this_process_cannot_unmap_are_in_its_figures(world: World) -> None:
    service = world.open()
    service.submit(1, request(20, 40))
    for _ in range(5):
        service.step()
    assert service.statistics().quarantined_bytes == 0
    faulty(world).follow(failing_every("unmap"))
    service.cancel(1)
    while service.step():
        pass
    assert service.statistics().quarantined_bytes == world.device.audit().accounts["quarantine"] > 0


def one_generation(intake: Intake, key: int) -> Generation:
    made = intake.generations(key, request(5, 5))
    assert isinstance(made, list)
    return made[0]


def oldest_arrival(world: World) -> int | None:
    """What a newcomer that asks for everything is told."""
    memory = world.device.open_port().memory(SequenceSpec(world.model.geometry, Layout.TOKEN_MAJOR, 160))
    with pytest.raises(OutOfBudget) as refused:
        memory.grant(160)
    memory.close()
    return refused.value.oldest_arrival


def test_a_request_whose_memory_is_quarantined_keeps_its_place_on_the_device(world: World) -> None:
    """Its map fails and so does the undo: it goes on in another memory, older than whoever came after it."""
    first, second = world.open(), world.open()
    faulty(world).follow(lambda name, before: name in ("set_access", "unmap"))
    first.submit(1, request(30, 20))
    first.step()
    faulty(world).follow(never())
    second.submit(2, request(30, 20))
    second.step()
    first.step()
    first.step()
    assert (first.statistics().running, second.statistics().running) == (1, 1)
    assert first.statistics().quarantined_bytes > 0
    assert oldest_arrival(world) == 1
    second.cancel(2)
    second.step()
    assert oldest_arrival(world) == 1
    first.cancel(1)
    first.step()
    assert oldest_arrival(world) != 1


def test_the_waiting_are_sorted_by_age_once_the_device_has_numbered_them(
    world: World, model: Model, tokenizer: Tokenizer
) -> None:
    roster, intake = Roster(), Intake(model, tokenizer, RequestSettings())
    for key in range(4):
        roster.join(one_generation(intake, key))
    for place in (2, 0):  # the third was numbered before the first; the others are not numbered yet
        memory = world.device.open(model.geometry, max_tokens=10)
        memory.give_back(memory.grant(1))
        roster.waiting[place].memory = memory
    roster.sort()
    assert [generation.order.key for generation in roster.waiting] == [2, 0, 1, 3]
    oldest = roster.waiting[0]
    roster.admit(oldest)
    oldest.leave_memory()  # quarantined: its number is kept, and so is its place
    roster.requeue(oldest)
    assert [generation.order.key for generation in roster.waiting] == [2, 0, 1, 3]


def test_a_failed_address_costs_a_request_its_place_and_not_its_answer(world: World) -> None:
    service = world.open(max_num_seqs=2)
    faulty(world).follow(failing_named("reserve", 1))  # the second arrives before the first
    for key in range(4):
        service.submit(key, CompletionRequest(PROMPTS[key], max_tokens=30, temperature=0, ignore_eos=True))
    results = run_until(world, service, 3)
    assert {key: type(result) for key, result in results.items()} == dict.fromkeys(range(4), Completion)


@pytest.mark.parametrize(("failing_unmaps", "is_in_vain"), [((1,), False), ((1, 2, 3, 4), True)])
def test_preempting_is_in_vain_only_if_it_freed_no_byte(
    world: World, model: Model, tokenizer: Tokenizer, failing_unmaps: tuple[int, ...], is_in_vain: bool
) -> None:
    """The victim's memory has four fragments, and some of them stay mapped."""
    refused = one_generation(Intake(model, tokenizer, RequestSettings()), 1)
    refused.refusal = OutOfBudget(need=1, free=0, oldest_arrival=1, retry_after_s=1, quarantined=0, capacity=9)
    shared = Shared(
        model.geometry,
        model.dtype,
        RequestSettings(),
        shape_at(world.device.port, model, RequestSettings()),
        outbox=Outbox(Inbox()),
        pace=Pace(least_s=0.1, most_s=30.0, clock=world.clock),
    )
    shared.roster.join(refused)
    shared.roster.admit(refused)
    memory = world.device.open(model.geometry, max_tokens=16, layout=Layout.SEQ_MAJOR)
    memory.commit(16, memory.grant(16))
    held_bytes = {memory: memory.committed_bytes}
    faulty(world).follow(failing_named("unmap", *failing_unmaps))
    outcomes = world.device.port.submit([Shed(memory)]).settle()
    Answers(shared, world.device.port.welcome, clock=world.clock).absorb(outcomes, held_bytes)
    assert refused.preempted_in_vain is is_in_vain
