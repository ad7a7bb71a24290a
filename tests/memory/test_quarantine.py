"""Memory that somebody may still touch: charged until its process is dead, or for good."""

from __future__ import annotations

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.memory.quarantine import Quarantine


def handle(number: int, tenant: str = "", size_bytes: int = 4096) -> Handle:
    return Handle(HandleId(number, 0), PhysicalHandle(number, size_bytes), HandleState.QUARANTINED, tenant)


def test_a_dead_process_frees_its_own_handles_and_nobody_elses() -> None:
    quarantine, mine, other = Quarantine(), [handle(1), handle(2)], [handle(3)]
    quarantine.add("a", mine[:1])
    quarantine.add("a", mine[1:])
    quarantine.add("b", other)
    assert quarantine.held_bytes("a") == 8192
    assert quarantine.process_gone("a") == mine
    assert (quarantine.held_bytes("a"), quarantine.size_bytes) == (0, 4096)


def test_a_process_that_is_gone_twice_frees_once() -> None:
    quarantine = Quarantine()
    quarantine.add("a", [handle(1)])
    quarantine.process_gone("a")
    assert quarantine.process_gone("a") == []


def test_what_is_lost_stays_whoever_dies() -> None:
    quarantine = Quarantine()
    quarantine.lose({"": 4096})
    quarantine.add("a", [])
    assert quarantine.process_gone("a") == []
    assert quarantine.size_bytes == quarantine.lost_bytes == 4096


def test_each_tenant_pays_for_its_own_in_whichever_process_it_is() -> None:
    quarantine = Quarantine()
    quarantine.add("one", [handle(1, "acme"), handle(2, "beta", 16384)])
    quarantine.add("two", [handle(3, "acme")])
    quarantine.lose({"acme": 100})
    quarantine.lose({"acme": 20, "beta": 3})
    assert [quarantine.used_by(tenant) for tenant in ("acme", "beta", "other")] == [8312, 16387, 0]
    assert [quarantine.lost_by(tenant) for tenant in ("acme", "beta", "other")] == [120, 3, 0]
    assert quarantine.size_bytes == 8312 + 16387
    quarantine.process_gone("one")
    assert [quarantine.used_by(tenant) for tenant in ("acme", "beta")] == [4216, 3]
