"""Others use a service's port too: what they release after a fence is given back at the service's boundaries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import SessionEnded
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.port import DevicePort
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from tests.request.conftest import PROMPTS
from tests.request.world import World


class Work:
    """A fence of work that is over when somebody says so."""

    is_over = False

    def done(self) -> bool:
        return self.is_over

    def wait(self) -> None:
        self.is_over = True


def open_service(world: World, port: DevicePort) -> RequestService:
    service = open_request_service(world.model, world.tokenizer, port, RequestSettings(), clock=world.clock)
    world.services.append(service)
    return service


def leaving(world: World, port: DevicePort, work: Work) -> SequenceMemory:
    """A memory of somebody else, which is given back when the work is over."""
    settings = RequestSettings()
    memory = port.memory(SequenceSpec(world.model.geometry, settings.layout, 20))
    memory.commit(20, memory.grant(20))
    memory.release(after=work)
    return memory


@pytest.fixture
def world(worlds: Callable[..., World]) -> World:
    return worlds(granules=40)


def test_what_others_release_after_a_fence_rides_along_with_the_loop(world: World) -> None:
    port, work = world.device.open_port(), Work()
    service, memory = open_service(world, port), leaving(world, port, work)
    service.submit(1, CompletionRequest(PROMPTS[1], max_tokens=12, temperature=0, ignore_eos=True))
    service.step()
    assert memory.committed_bytes > 0
    work.is_over = True
    service.step()
    assert memory.committed_bytes == 0
    assert isinstance(world.finish([service])[0][1], Completion)
    memory.close()


def test_a_session_that_ended_is_heard_of_by_what_rides_along(world: World) -> None:
    port, work = world.device.open_port(), Work()
    service = open_service(world, port)
    memory = leaving(world, port, work)
    world.device.service.disconnected(port.session)
    assert not service.step()
    work.is_over = True
    with pytest.raises(SessionEnded):
        service.step()
    with pytest.raises(SessionEnded):
        memory.close()
    world.device.service.gone(port.session)
