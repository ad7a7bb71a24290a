"""One LocalDevice of a few granules, a clock, and request services on it; whole again at the end, or the test fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver
from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.paged.shape import PageShape
from kvcluster.services.completion import Completion, CompletionRequest, Refused, answers_among
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.local import LocalDevice, open_local_device
from kvcluster.services.pages.local import LocalPages, open_pages
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.invariants import assert_ledger_balances
from kvcluster.units import KIB

GRANULE_BYTES = 4 * KIB
MOST_ROUNDS = 20_000  # a run that takes more is a livelock

Results = dict[int, Completion | Refused]


@dataclass(slots=True)
class World:
    """`open` gives a service with a port of its own; with `blocks` of host pages, one there too."""

    model: Model
    tokenizer: Tokenizer
    granules: int
    layout: Layout = Layout.TOKEN_MAJOR
    granule_bytes: int = GRANULE_BYTES
    blocks: int = 0
    block_size: int = 4
    grace_s: float = 0.0
    driver_of: Callable[..., Driver] = open_host_driver
    clock: ManualClock = field(default_factory=ManualClock)
    services: list[RequestService] = field(default_factory=list)
    device: LocalDevice = field(init=False)
    pages: LocalPages | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        capacity_bytes = self.granules * self.granule_bytes
        driver = self.driver_of(capacity_bytes=capacity_bytes, granule_bytes=self.granule_bytes)
        memory = MemorySettings(
            capacity_bytes, self.granule_bytes, pool_bytes=capacity_bytes // 4, grace_s=self.grace_s
        )
        self.device = open_local_device(driver, memory, clock=self.clock)
        if self.blocks:
            pitch_bytes = PageShape.of(self.model.geometry, block_size=self.block_size).pitch_bytes
            self.pages = open_pages(
                self.model.geometry,
                dtype=self.model.dtype,
                memory=self.blocks * pitch_bytes,
                block_size=self.block_size,
                clock=self.clock,
            )

    def open(self, **settings: Any) -> RequestService:
        chosen = RequestSettings(layout=self.layout, **settings)
        port = self.device.open_port()
        pages = self.pages.open_port() if self.pages else None
        service = open_request_service(self.model, self.tokenizer, port, chosen, pages=pages, clock=self.clock)
        self.services.append(service)
        return service

    def run(self, service: RequestService, requests: Mapping[int, CompletionRequest]) -> Results:
        """All answers to `requests`, submitted at once."""
        for key, request in requests.items():
            service.submit(key, request)
        return self.finish([service])[0]

    def finish(self, services: Sequence[RequestService], turn: Callable[[], int] = lambda: 0) -> list[Results]:
        """Step until nobody has anything to do or to wait for; `turn` draws whose step the next one is."""
        results: list[Results] = [{} for _ in services]
        busy, rounds = True, 0
        while busy:
            who = (rounds + turn()) % len(services)
            busy = services[who].step()
            results[who].update(answers_among(services[who].said()))
            busy = busy or any(service.step() for service in services) or self._waits(services)
            rounds += 1
            assert rounds <= MOST_ROUNDS, f"still at work after {MOST_ROUNDS} rounds"
        for result, service in zip(results, services, strict=True):
            result.update(answers_among(service.said()))
        return results

    def _waits(self, services: Sequence[RequestService]) -> bool:
        """Let time pass where somebody waits for it."""
        statistics = [service.statistics() for service in services]
        self.clock.advance(0.05)
        return any(s.waiting or s.running for s in statistics)

    @property
    def free_bytes(self) -> int:
        """What a newcomer can have: what is free, and what is kept only until somebody needs the room."""
        seen = self.device.audit()
        return seen.free_bytes + seen.retained_bytes

    def close(self) -> None:
        """Everything ends; nothing may be left."""
        for service in self.services:
            service.close()
            service.close()
        assert_only_kept(self.device)
        self.device.close()
        if self.pages:
            pages = self.pages.audit()
            kept_bytes = sum(size for name, size in pages.accounts.items() if name.startswith(("free", "retained")))
            assert kept_bytes == pages.capacity_bytes
            assert pages.open_requests == 0
            self.pages.close()


def assert_only_kept(device: LocalDevice) -> None:
    """Nobody has anything, and whatever is not free is kept for whoever comes until its room is needed."""
    seen = assert_ledger_balances(device)
    assert seen.accounts.get("free", 0) + seen.retained_bytes == seen.capacity_bytes
    assert (seen.open_requests, seen.reserved_bytes, seen.handles["quarantined"]) == (0, 0, 0)
    assert all(prefix.users == prefix.pins == 0 for prefix in seen.prefixes.values())
