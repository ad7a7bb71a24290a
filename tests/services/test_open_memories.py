"""What a port has open is given up whole, or as far as it went."""

from __future__ import annotations

import pytest

from kvcluster.errors import DriverError
from kvcluster.geometry.layout import Layout
from kvcluster.services.open_memories import OpenMemories
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from tests.services.world import GEOMETRY, World

SPEC = SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 256)


def test_giving_up_ends_each_memory_once_and_goes_on_with_those_that_failed(world: World) -> None:
    port, opened, ended = world.device.open_port(), OpenMemories(), list[SequenceMemory]()
    memories = [port.memory(SPEC) for _ in range(4)]
    for memory in memories:
        memory.in_flight = True
        opened.opened(memory)
    opened.ended(memories.pop())

    def end(memory: SequenceMemory) -> None:
        if ended:
            raise DriverError(call="unmap", code=1, name="no", address=0, size_bytes=0)
        ended.append(memory)

    with pytest.raises(DriverError):
        opened.give_up(end)
    assert set(opened.all()) == set(memories) - set(ended)
    opened.give_up(ended.append)
    assert (opened.all(), len(ended), set(ended)) == ((), 3, set(memories))
    assert not any(memory.in_flight for memory in memories)
