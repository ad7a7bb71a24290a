"""No tenant reads what another wrote; a client gets what it has imported; the capacity holds all the same."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvcluster.errors import DriverError
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.testing.faulty_driver import failing, failing_every, failing_named
from tests.memory.store import BULK, CAPACITY, GRANULE, Store

WRITER = """
import mmap, sys
memory = mmap.mmap(int(sys.argv[1]), int(sys.argv[2]))
for line in sys.stdin:
    memory[:] = line.strip().encode() * len(memory)
    print("written", flush=True)
"""


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(limit=CAPACITY)
    yield store
    store.clear()


def written(store: Store, count: int, tenant: str, *, handed_over: bool = False) -> list[Handle]:
    """Pooled handles full of the tenant's first letter."""
    handles = store.take(count, tenant)
    for handle in handles:
        store.write(handle, tenant[0].encode())
        handle.was_handed_over = handed_over
    store.pool.give_back(handles)
    return handles


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_second_tenant_never_reads_what_a_first_one_wrote(store: Store, handed_over: bool) -> None:
    written(store, CAPACITY, "a", handed_over=handed_over)
    for handle in store.take(CAPACITY, "b"):
        assert store.read(handle) == {0}
        assert (handle.tenant, handle.was_handed_over) == ("b", False)
    assert store.counts() == (0, CAPACITY, 0)


def test_a_tenant_gets_its_own_memory_back_as_it_was(store: Store) -> None:
    mine = written(store, 2, "a", handed_over=True)
    assert store.take(2, "a") == mine[::-1]
    assert store.read(mine[0]) == {ord("a")}
    assert store.driver.calls().get("scrub", 0) == 0


def test_what_no_other_process_had_is_scrubbed_and_not_made_anew(store: Store) -> None:
    handles = written(store, 3, "a")
    made = store.made()
    assert set(store.take(3, "b")) == set(handles)
    assert store.made() == made


def test_what_another_process_had_is_never_lent_to_another_tenant(store: Store) -> None:
    handles = written(store, 3, "a", handed_over=True)
    taken = store.take(CAPACITY, "b")
    assert not set(taken) & set(handles)
    assert {handle.state for handle in handles} == {HandleState.GONE}


def test_a_tenant_whose_process_kept_its_mapping_cannot_write_to_the_next_tenants_memory(store: Store) -> None:
    [first] = store.take(1, "a")
    with store.descriptor(first) as fd:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(fd), str(GRANULE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd], text=True,
        )  # fmt: skip
    with writer:
        assert writer.stdin
        assert writer.stdout
        for byte in "xy":
            print(byte, file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "written\n"
            if first.state is HandleState.OUT:
                assert store.read(first) == {ord("x")}
                first.was_handed_over = True
                store.pool.give_back([first])
                second = store.take(CAPACITY, "b")
        writer.stdin.close()
    assert first.state is HandleState.GONE
    assert [store.read(handle) for handle in second] == [{0}] * CAPACITY


def test_a_third_tenant_finds_the_scrubbed_memory_of_a_take_that_failed_without_scrubbing_it_again(
    store: Store,
) -> None:
    written(store, 2, "a")
    store.driver.follow(failing_named("create", 1))
    with pytest.raises(DriverError):
        store.take(3, "b")
    assert store.counts() == (2, 0, 0)
    store.driver.follow(failing_every("scrub"))
    for handle in store.take(2, "c"):
        assert store.read(handle) == {0}


def test_memory_that_cannot_be_scrubbed_is_destroyed_and_another_is_taken(store: Store) -> None:
    handles = written(store, 3, "a")
    store.driver.follow(failing_named("scrub", 1))
    taken = store.take(3, "b")
    assert sorted(handle.state.value for handle in handles) == ["gone", "out", "out"]
    assert [store.read(handle) for handle in taken] == [{0}] * 3
    assert store.counts() == (0, 3, 0)


def test_memory_that_can_neither_be_scrubbed_nor_released_is_quarantined_and_nobodys_bill(store: Store) -> None:
    written(store, 1, "a")
    store.driver.follow(failing(1, 2))
    [taken] = store.take(1, "b")
    assert store.read(taken) == {0}
    assert store.counts() == (0, 1, 1)
    assert store.pool.drain_lost() == {"": GRANULE}


def test_memory_lost_at_a_scrub_in_the_middle_of_a_take_that_needed_its_room_is_a_failure_and_no_bug_of_ours(
    store: Store,
) -> None:
    written(store, CAPACITY, "a")
    store.driver.follow(failing(1, 2))
    with pytest.raises(DriverError, match="release"):
        store.take(CAPACITY, "b")
    assert store.counts() == (CAPACITY - 1, 0, 1)
    assert store.pool.drain_lost() == {"": GRANULE}
    assert len(store.take(CAPACITY - 1, "b")) == CAPACITY - 1


def test_once_a_second_tenant_was_here_new_memory_is_scrubbed_too_and_a_failure_undoes_the_take(
    store: Store,
) -> None:
    store.take(1, "a")
    assert store.driver.calls().get("scrub", 0) == 0
    store.take(2, "b")
    assert store.driver.calls()["scrub"] == 2
    store.driver.follow(failing_named("scrub", 2))
    with pytest.raises(DriverError):
        store.take(2, "a")
    assert store.counts() == (0, 3, 0)


def test_taking_across_tenants_fails_at_any_call_and_leaves_nothing_out_and_nothing_readable() -> None:
    for failing_call in itertools.count(1):
        store = Store(limit=CAPACITY)
        written(store, 2, "a")
        written(store, 12, "a", handed_over=True)
        store.driver.follow(failing(failing_call))
        try:
            taken = store.pool.take([GRANULE, GRANULE, GRANULE, BULK], tenant="b")
        except DriverError:
            assert store.counts()[1:] == (0, 0)
            taken = store.take(CAPACITY, "b")
        assert [store.read(handle) for handle in taken] == [{0}] * len(taken)
        done = failing_call > len(store.driver.since_plan())
        store.clear()
        if done:
            break
    assert failing_call > 10


def test_a_client_gets_the_handles_that_it_knows_before_newer_ones(store: Store) -> None:
    a, b, c, d = written(store, 4, "a")
    known = frozenset({a.identity, c.identity})
    assert store.pool.take([GRANULE] * 3, tenant="a", known=known) == [c, a, d]
    assert store.pool.take([GRANULE], tenant="a", known=known) == [b]


def test_what_a_client_knows_of_another_tenants_is_not_lent_for_it(store: Store) -> None:
    handles = written(store, CAPACITY, "a", handed_over=True)
    known = frozenset(handle.identity for handle in handles)
    taken = store.pool.take([GRANULE] * CAPACITY, tenant="b", known=known)
    assert not known & {handle.identity for handle in taken}


def test_handles_of_nobody_come_before_other_tenants(store: Store) -> None:
    store.pool.fill(2 * GRANULE)
    clean = store.take(2, "a")
    assert store.made() == 2
    store.pool.give_back(clean)
    written(store, 1, "b")
    store.pool.fill(4 * GRANULE)
    before = store.driver.calls()["scrub"]
    store.take(1, "c")
    assert store.driver.calls()["scrub"] == before
