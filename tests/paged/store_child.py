"""Another process at a store's memory, or at its own limits: `python -m tests.paged.store_child ACT NUMBER...`."""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from kvcluster.driver.limits import MAPPINGS
from kvcluster.driver.protocol import Access
from kvcluster.errors import DriverError, LimitReached
from kvcluster.paged.shape import PageShape
from kvcluster.paged.store import PageStore, attach_store, open_store
from tests.driver.children import Crowd

SHAPE = PageShape(num_layers=2, num_kv_heads=1, head_dim=8, element_bytes=4, block_size=4)  # 512 bytes a block
BLOCKS = 6
DTYPE = torch.float32
ISLANDS = range(1, 64, 4)


def kernel_mappings(address: int, size_bytes: int) -> int:
    """How many of this process's mappings lie in this range."""
    starts = [int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum(address <= start < address + size_bytes for start in starts)


def write(descriptor: int, writable: int, written: int) -> None:
    """Read all blocks, get access to block `writable`, write into block `written`."""
    store = attach_store(descriptor, SHAPE, BLOCKS, DTYPE)
    print(store.tensor[:, 0, 0, 0, 0, 0].tolist(), flush=True)
    store.protect([writable], Access.READ_WRITE)
    store.tensor[written] = 99.0
    store.close()


def lack_memory() -> dict[str, Any]:
    """The kernel gives no pages, and then no address: what is left of either try."""
    before = _held()
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCKS * SHAPE.pitch_bytes - 1, resource.RLIM_INFINITY))
    calls = [_call_that_failed(BLOCKS)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (8 << 20), resource.RLIM_INFINITY))
    calls.append(_call_that_failed((64 << 20) // SHAPE.pitch_bytes))
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return {"calls": calls, "left": _held() - before}


def lack_mappings() -> dict[str, Any]:
    """The rest of the process takes the mappings, unseen by us and then seen, and gives them back."""
    crowd, store = Crowd(), open_store(SHAPE, 64, DTYPE)
    store.protect(range(64), Access.READ)
    crowd.fill()
    unseen = _refusal(store)
    crowd.go()
    crowd.grow(leave=10)
    with suppress(LimitReached):
        MAPPINGS.ensure(sys.maxsize)  # measures
    seen = _refusal(store)
    crowd.go()
    store.protect(ISLANDS, Access.READ_WRITE)
    found = [_mappings(store)]
    store.protect(range(64), Access.READ_WRITE)
    crowd.grow(leave=10)
    with suppress(LimitReached):
        MAPPINGS.ensure(sys.maxsize)
    store.protect(ISLANDS, Access.READ)
    found.append(_mappings(store))
    crowd.go()
    store.close()
    return {"unseen": unseen, "seen": seen, "found": found}


def _mappings(store: PageStore) -> list[int]:
    return [store.mappings, kernel_mappings(store.address, store.size_bytes)]


def _call_that_failed(blocks: int) -> str:
    try:
        open_store(SHAPE, blocks, DTYPE)
    except DriverError as failure:
        return failure.call
    raise AssertionError("it was there")


def _refusal(store: PageStore) -> str:
    calls = store.calls
    try:
        store.protect(ISLANDS, Access.READ_WRITE)
    except (LimitReached, DriverError) as failure:
        return f"{type(failure).__name__} after {store.calls - calls} calls"
    raise AssertionError("there were mappings")


def _held() -> int:
    return len(os.listdir("/proc/self/fd")) + Path("/proc/self/maps").read_text().count("memfd:kvcluster")


def main() -> None:
    act, *numbers = sys.argv[1:]
    if act == "write":
        write(*map(int, numbers))
    else:
        print(json.dumps({"lack_memory": lack_memory, "lack_mappings": lack_mappings}[act]()))


if __name__ == "__main__":
    main()
