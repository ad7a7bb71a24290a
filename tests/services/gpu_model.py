"""A state machine on a stand-in's GPU, which itself counts what is left on it."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine

from kvcluster.testing.stand_in_cuda import DEFAULTS, load
from tests.services.world import GRANULE


class OnGpu(RuleBasedStateMachine):
    """Comes before the machine, whose device `gpu` says."""

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
