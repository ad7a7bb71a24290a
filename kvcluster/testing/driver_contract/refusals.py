"""Every verb where no verb is allowed: in a forked child, during a capture, after close."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.testing.driver_contract.bench import CAPTURED, Bench, OnBench, forked


@dataclass(frozen=True, slots=True)
class Scene:
    """One of everything: three granules of address with one mapping, a handle beside it, an exported descriptor."""

    bench: Bench
    address: int
    empty: int
    spare: PhysicalHandle
    descriptor: int

    @property
    def vacant(self) -> int:
        return self.address + self.bench.granule


VERBS: dict[str, Callable[[Scene], object]] = {
    "reserve": lambda scene: scene.bench.reserve(1),
    "create": lambda scene: scene.bench.create(),
    "map": lambda scene: scene.bench.map_only(scene.vacant, scene.spare),
    "set_access": lambda scene: scene.bench.driver.set_access(scene.address, scene.bench.granule, Access.READ),
    "unmap": lambda scene: scene.bench.driver.unmap(scene.address, scene.bench.granule),
    "release": lambda scene: scene.bench.driver.release(scene.spare),
    "free_address": lambda scene: scene.bench.driver.free_address(scene.empty, scene.bench.granule),
    "seal": lambda scene: scene.bench.driver.seal(scene.spare),
    "export_fd": lambda scene: os.close(scene.bench.driver.export_fd(scene.spare)),
    "import_fd": lambda scene: scene.bench.adopt(scene.descriptor, scene.bench.granule),
    "synchronize": lambda scene: scene.bench.driver.synchronize(),
    "fence": lambda scene: scene.bench.driver.fence(),
    "memory_info": lambda scene: scene.bench.driver.memory_info(),
    "scrub": lambda scene: scene.bench.driver.scrub(scene.spare),
}
"""Each is allowed where a scene has just been set."""


class RefusalContract(OnBench):
    @pytest.fixture
    def scene(self, bench: Bench) -> Iterator[Scene]:
        address, empty, spare = bench.reserve(3), bench.reserve(1), bench.create()
        bench.map(address, bench.create())
        scene = Scene(bench, address, empty, spare, bench.driver.export_fd(spare))
        yield scene
        os.close(scene.descriptor)

    def test_the_verbs_are_all_that_a_driver_has(self) -> None:
        verbs = {name for name in vars(Driver) if not name.startswith("_")}
        assert set(VERBS) == verbs - {"granularity_bytes", "is_host_memory", "calls", "close"}

    @pytest.mark.parametrize("verb", VERBS)
    def test_during_a_capture_a_verb_is_refused_and_works_after_it(self, scene: Scene, verb: str) -> None:
        with capture_gate.closed(Meanwhile.REFUSE), scene.bench.refused(verb, name=CAPTURED):
            VERBS[verb](scene)
        VERBS[verb](scene)

    def test_a_forked_child_is_refused_everything(self, scene: Scene) -> None:
        def act() -> None:
            for verb, call in VERBS.items():
                with scene.bench.refused(verb):
                    call(scene)

        assert forked(act) == 0

    def test_what_a_forked_child_tried_changed_nothing_here(self, scene: Scene) -> None:
        def act() -> None:
            for call in VERBS.values():
                with pytest.raises(DriverError):
                    call(scene)

        assert forked(act) == 0
        for call in (VERBS["scrub"], VERBS["map"], VERBS["unmap"], VERBS["free_address"], VERBS["release"]):
            call(scene)

    def test_a_forked_child_does_not_reach_its_parents_memory(self, scene: Scene) -> None:
        bench, address = scene.bench, scene.address
        bench.poke(address, b"kept")
        ended = forked(lambda: bench.poke(address, b"lost"))
        assert ended != 0
        assert not bench.driver.is_host_memory or os.WTERMSIG(ended) == signal.SIGSEGV
        assert bench.peek(address, 4) == b"kept"

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_closed_driver_refuses_every_verb(self, open_driver: Callable[[], Driver], verb: str) -> None:
        bench = Bench(open_driver())
        nothing = Scene(bench, bench.granule, bench.granule, PhysicalHandle(1, bench.granule), 0)
        bench.driver.close()
        bench.driver.close()
        with bench.refused(verb) as caught:
            VERBS[verb](nothing)
        assert "closed" in str(caught.value.__cause__)
        assert bench.calls() == {}
