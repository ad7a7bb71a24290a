"""How each backend is opened: here, and in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcluster.testing.stand_in_cuda import StandIn, fresh_stand_in


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A libcuda with two devices and nothing on them; nothing may be left on them."""
    with fresh_stand_in() as stand_in:
        yield stand_in


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Four other threads."""
    with ThreadPoolExecutor(4) as others:
        yield others
