"""A process that joins prefixes of every length, maps them for reading only, and goes on: prints what it found.

It would die of a write below a sealed end. One driver stands for both sides: the same handles are mapped writable in
the owner's range and for reading in the joiner's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model, open_model
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.geometry.windows import Window, runs_of, windows_of
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import open_range
from kvcluster.tensors.snapshots import copy_from_snapshot, copy_to_snapshot
from kvcluster.tensors.views import kv_views
from kvcluster.units import MIB

GRANULE_BYTES = 4096
CHUNK_TOKENS = 5
NEW_TOKENS = 6
LENGTHS = range(12, 45)


class Joining:
    """One range with its own windows, and perhaps some of another's for reading."""

    def __init__(self, model: Model, driver: HostDriver, range_map: RangeMap, layout: Layout) -> None:
        self.range = open_range(driver, range_map)
        self.handles: dict[Window, PhysicalHandle] = {}
        self._model, self._driver, self._map, self._layout = model, driver, range_map, layout
        self._own: list[PhysicalHandle] = []
        self._sealed: tuple[int, ...] = ()

    def borrow(self, owner: Joining, shared: tuple[int, ...]) -> None:
        self._sealed = shared
        runs = list(self._map.shape.runs(self._map.shape.windows(0), shared))
        self._map_runs(runs, [owner.handles[window] for window in windows_of(runs)], Access.READ)

    def back(self, *, snapshots: bool) -> None:
        """Memory of its own for all that is not borrowed."""
        shape = self._map.shape
        want = shape.windows(self._map.max_tokens)
        runs = list(shape.runs(shape.windows(0), shape.with_snapshots(want) if snapshots else want))
        missing = runs_of(window for window in windows_of(runs) if window not in self.handles)
        made = [self._driver.create(GRANULE_BYTES) for _ in windows_of(missing)]
        self._own += made
        self._map_runs(missing, made, Access.READ_WRITE)

    def _map_runs(self, runs: Sequence[WindowRun], handles: Sequence[PhysicalHandle], access: Access) -> None:
        self.range.map_runs(runs, handles, access=access)
        self.handles.update(zip(windows_of(runs), handles, strict=True))

    def compute(self, tokens: Sequence[int], start: int) -> int:
        """Compute tokens from `start` on, in chunks; the most likely next one."""
        tokens_held = self._map.max_tokens
        views = kv_views(
            self.range.address,
            self._map,
            self._model.geometry,
            self._layout,
            tokens=tokens_held,
            dtype=self._model.dtype,
            sealed=self._sealed,
        )
        for at in range(start, len(tokens), CHUNK_TOKENS):
            chunk = tokens[at : at + CHUNK_TOKENS]
            logits = self._model.forward([Slice(views, at, chunk, True)])
        return int(logits.argmax())

    def said(self, prompt: Sequence[int], start: int) -> list[int]:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + NEW_TOKENS:
            following = self.compute(tokens, start)
            start = len(tokens)
            tokens.append(following)
        return tokens[len(prompt) :]

    def close(self) -> None:
        self.range.close()
        for handle in self._own:
            self._driver.release(handle)


def joined(model: Model, driver: HostDriver, layout: Layout, prompt: Sequence[int]) -> tuple[int, bool]:
    """Where a joiner of the whole prompt begins to compute, and whether it says what the owner says."""
    shape = Shape.of(model.geometry, layout, GRANULE_BYTES, chunk_tokens=CHUNK_TOKENS)
    range_map = RangeMap(shape, len(prompt) + NEW_TOKENS)
    shared = shape.shared_windows(len(prompt))
    boundary = shape.reusable_tokens(shared, len(prompt))
    owner, joiner = (Joining(model, driver, range_map, layout) for _ in range(2))
    owner.back(snapshots=True)
    if boundary:
        owner.compute(prompt[:boundary], 0)
        copy_to_snapshot(owner.range.address, range_map, model.geometry, tokens=boundary, written=boundary)
        joiner.borrow(owner, shared)
    wanted = owner.said(prompt, boundary)
    joiner.back(snapshots=False)
    if boundary:
        copy_from_snapshot(joiner.range.address, range_map, model.geometry, tokens=boundary)
    said = joiner.said(prompt, boundary)
    joiner.close()
    owner.close()
    return boundary, said == wanted


def found_with(folder: str) -> dict[str, tuple[int, bool]]:
    """Of the model in `folder`, by layout and length of the prompt."""
    model = open_model(Path(folder), dtype=torch.float32, threads=1)
    driver = open_host_driver(capacity_bytes=16 * MIB, granule_bytes=GRANULE_BYTES)
    found = {}
    for layout in (Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR):
        for count in LENGTHS:
            prompt = torch.randint(2, 512, (count,), generator=torch.Generator().manual_seed(count)).tolist()
            found[f"{layout} {count}"] = joined(model, driver, layout, prompt)
    return found


if __name__ == "__main__":
    print(json.dumps([found_with(folder) for folder in sys.argv[1:]]))
