"""Every driver call of a growth, of a crop and of a change of rows fails once, and its undo too."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from kvcluster import KVCache, KvClusterError, Quarantined
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.local import open_local_device
from kvcluster.testing.faulty_driver import FaultyDriver, failing, failing_every, failing_then, never
from kvcluster.testing.invariants import assert_ledger_balances, assert_nothing_lost
from kvcluster.testing.tidy_driver import TidyDriver
from tests.kv_cache.layers import GEOMETRY, content, write

GRANULE, CAPACITY = 4096, 256 * 4096


class Site:
    """A cache of two rows of ten tokens, on a device that keeps no pool, so that each growth creates."""

    def __init__(self) -> None:
        self._tidy = TidyDriver(granule_bytes=GRANULE, capacity_bytes=CAPACITY)
        self.driver = FaultyDriver(self._tidy)
        self.device = open_local_device(self.driver, MemorySettings(CAPACITY, GRANULE, 0))
        self.cache = KVCache(self.device, GEOMETRY, max_tokens=512, batch=3)
        self.cache.activate_past_recording()
        write(self.cache, 2, 10)

    def close(self) -> None:
        self.driver.follow(never())
        self.cache.close()
        assert_ledger_balances(self.device)
        self.device.close()
        self._tidy.clear()


GROWTHS: dict[str, Callable[[KVCache], object]] = {
    "longer": lambda cache: write(cache, 2, 100),
    "more rows": lambda cache: cache.batch_select_indices(torch.tensor([0, 1, 1])),
}


@pytest.mark.parametrize("growth", GROWTHS)
def test_a_growth_that_fails_at_any_call_leaves_cache_and_books_as_they_were(growth: str) -> None:
    for failing_call in itertools.count(1):
        site, done = Site(), False
        before, accounts = content(site.cache), dict(site.device.audit().accounts)
        site.driver.follow(failing(failing_call))
        try:
            GROWTHS[growth](site.cache)
        except KvClusterError:
            site.driver.follow(never())
            assert all(map(torch.equal, content(site.cache), before))
            assert (site.cache.get_seq_length(), site.cache.batch_size) == (10, 2)
            assert dict(site.device.audit().accounts) == accounts
            GROWTHS[growth](site.cache)
        else:
            done = True
        site.driver.follow(never())
        site.cache.close()
        assert_nothing_lost(site.device)
        site.close()
        if done:
            assert failing_call > 4
            return


def test_a_growth_whose_undo_fails_too_leaves_the_cache_readable_and_nothing_uncounted() -> None:
    seen = set()
    for failing_call in itertools.count(1):
        site = Site()
        before, done = content(site.cache), True
        site.driver.follow(failing_then(failing_call, 1))
        try:
            write(site.cache, 2, 100)
        except KvClusterError as error:
            done = False
            seen.add(type(error))
            assert all(map(torch.equal, content(site.cache), before))
        site.close()
        if done:
            assert Quarantined in seen
            return


def test_a_crop_that_cannot_give_memory_back_says_so_and_the_bytes_stay_charged() -> None:
    site = Site()
    write(site.cache, 2, 200)
    held = site.device.audit().committed_bytes
    site.driver.follow(failing_every("unmap"))
    with pytest.raises(Quarantined):
        site.cache.crop(-200)
    site.driver.follow(never())
    assert site.cache.get_seq_length() == 10
    left = site.device.audit()
    assert left.accounts["quarantine"] > 0
    assert left.committed_bytes + left.accounts["quarantine"] == held
    site.close()
