"""Where the slices of a step lie, as the compiled operators read it: one table for the layers of a group.

Rows of a range are one run, and so is a window in its ring, which is mapped twice; host pages are a run a block. What
is sealed of a range, or frozen of pages, is read and never written: of the first token above a range's sealed end the
open ends of its vectors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kvcluster.engine.kernels.library import StepTable
from kvcluster.tensors.paged_views import PagedViews
from kvcluster.tensors.views import GroupView
from kvcluster.units import ceil_div

if TYPE_CHECKING:
    from kvcluster.engine.batch import Slice

_ALL = 2**62


def step_table(slices: Sequence[Slice], group: int) -> StepTable:
    """The table for the layers of the `group`-th group."""
    rows: list[tuple[int, ...]] = []
    runs: list[tuple[int, int]] = []
    row = 0
    for piece in slices:
        count = len(piece.token_ids)
        if isinstance(piece.kv, PagedViews):
            first, where, found = _in_pages(piece.kv, piece, group)
        else:
            first, where, found = _in_range(piece.kv.groups[group], piece)
        rows.append((row, count, first, piece.stop, len(runs), *where))
        runs += found
        row += count
    return StepTable(torch.tensor(rows), torch.tensor(runs))


Where = tuple[int, tuple[int, ...], list[tuple[int, int]]]
"""The first token that the runs hold, the rest of `kvc::Slice` from `index_step` on, and the runs."""


def _in_range(view: GroupView, piece: Slice) -> Where:
    rows = view.rows
    first = first_seen(piece.start, view.window_tokens)
    rows.check(view.first + first, piece.stop - first)
    size = rows.memory.element_size()
    by_layer, by_side, by_head, _ = (step * size for step in rows.steps)
    at = (view.first + first) * rows.stride
    address = rows.memory.data_ptr() + (rows.start + (at % rows.ring if rows.ring else at)) * size
    sealed = max(0, rows.sealed - view.first * rows.stride)
    steps = (by_layer, 0, by_side, by_head, rows.stride * size)
    open_token = ceil_div(sealed, rows.stride)
    return first, (*steps, open_token, sealed * size, rows.pitch * size), [(address, piece.stop - first)]


def _in_pages(views: PagedViews, piece: Slice, group: int) -> Where:
    size = views.pool.element_size()
    by_block, by_side, by_layer, by_head, by_token, _ = (step * size for step in views.pool.stride())
    first = first_seen(piece.start, views.groups[group].window_tokens)
    base, block = views.pool.data_ptr(), views.block_size
    runs = [(base + number * by_block, block) for number in views.blocks_of(first, piece.stop)]
    return first - first % block, (0, by_layer, by_side, by_head, by_token, views.frozen, _ALL, 1), runs


def first_seen(position: int, window: int | None) -> int:
    """The first token that the one at `position` sees."""
    return 0 if window is None else max(0, position + 1 - window)
