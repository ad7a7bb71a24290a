"""Ranges of plain memory in which a ring's second copy is the first, as the hardware makes it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import strategies as st

from kvcluster.driver.host import open_host_driver
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import RangeMap
from kvcluster.mapping.address_range import AddressRange, open_range
from kvcluster.tensors.memory import CPU, memory_at
from kvcluster.units import MIB

PAGE = mmap.PAGESIZE


@st.composite
def geometries(draw: st.DrawFn, slides: st.SearchStrategy[bool]) -> KvGeometry:
    """One or two groups of large rows, so that few tokens fill a page; in 4-byte elements."""
    layers = draw(st.permutations(range(3)))
    cut = draw(st.integers(0, 3))
    groups = []
    for part in (layers[:cut], layers[cut:]):
        if part:
            window = draw(st.integers(1, 9)) if draw(slides) else None
            groups.append(LayerGroup(tuple(sorted(part)), draw(st.integers(1, 2)), draw(st.integers(40, 90)), window))
    return KvGeometry(tuple(groups), element_bytes=4)


@contextmanager
def mapped(range_map: RangeMap) -> Iterator[AddressRange]:
    """A range with everything mapped that can be, snapshots too."""
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=16 * MIB)
    shape = range_map.shape
    runs = tuple(shape.runs(shape.windows(0), shape.with_snapshots(shape.windows(range_map.max_tokens))))
    handles = [driver.create(PAGE) for run in runs for _ in range(run.count)]
    address_range = open_range(driver, range_map)
    address_range.map_runs(runs, handles)
    try:  # an example that was drawn no further ends in the block, by an error
        yield address_range
    finally:
        address_range.close()
        for handle in handles:
            driver.release(handle)
        driver.close()


def elements(address_range: AddressRange) -> torch.Tensor:
    """All of the range's memory as 4-byte numbers."""
    return memory_at(address_range.address, address_range.range_map.size_bytes, torch.int32, CPU)
