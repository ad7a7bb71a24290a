"""The memory of host pages: laid out as said, the same in every process, and written only where it was given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.driver import linux
from kvcluster.driver.protocol import Access
from kvcluster.errors import LimitReached
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.paged.shape import PageShape
from kvcluster.paged.store import PageStore, attach_store, open_store
from tests.examples import examples
from tests.paged.store_child import BLOCKS, DTYPE, SHAPE, kernel_mappings

ROOT = Path(__file__).parents[2]


def _run(*words: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.paged.store_child", *words]
    return subprocess.run(command, pass_fds=pass_fds, cwd=ROOT, capture_output=True, text=True, timeout=120)


def _child(store: PageStore, *, writable: int, written: int) -> subprocess.CompletedProcess[str]:
    words = (str(store.descriptor), str(writable), str(written))
    return _run("write", *words, pass_fds=(store.descriptor,))


@cache
def _found(act: str) -> dict[str, Any]:
    child = _run(act)
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def test_another_process_reads_all_blocks_and_writes_those_that_it_gave_itself() -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    try:
        store.tensor[:, 0, 0, 0, 0, 0] = torch.arange(BLOCKS, dtype=DTYPE)
        child = _child(store, writable=3, written=3)
        assert (child.returncode, child.stdout.strip()) == (0, "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]")
        assert store.tensor[:, 0, 0, 0, 0, 0].tolist() == [0, 1, 2, 99, 4, 5]
    finally:
        store.close()


@pytest.mark.parametrize("written", [2, 4])
def test_a_stray_write_ends_the_process_that_makes_it_and_changes_no_block(written: int) -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    try:
        store.tensor.fill_(7.0)
        assert _child(store, writable=3, written=written).returncode == -signal.SIGSEGV
        assert bool((store.tensor == 7.0).all())
    finally:
        store.close()


def test_a_block_lies_as_the_paper_says_and_begins_on_a_memory_page() -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    try:
        assert store.tensor.shape == (BLOCKS, 2, 2, 1, 4, 8)
        assert store.tensor[0].is_contiguous()
        assert store.tensor.stride(0) * SHAPE.element_bytes == SHAPE.pitch_bytes == os.sysconf("SC_PAGESIZE")
        assert linux.held_bytes(store.descriptor) == store.size_bytes
        assert linux.is_fixed(linux.seals_of(store.descriptor))
    finally:
        store.close()


def test_the_first_tokens_of_a_block_are_copied_in_every_layer_and_no_further() -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    try:
        store.tensor[1] = torch.arange(store.tensor[1].numel(), dtype=DTYPE).view_as(store.tensor[1])
        store.tensor[2] = -1.0
        store.copy_tokens(1, 2, 3)
        assert torch.equal(store.tensor[2, ..., :3, :], store.tensor[1, ..., :3, :])
        assert bool((store.tensor[2, ..., 3:, :] == -1.0).all())
    finally:
        store.close()


def test_adjacent_blocks_change_access_in_one_call() -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    try:
        store.protect([4, 1, 2, 0, 2], Access.READ)
        assert store.calls == 2
        store.protect([0, 1, 4], Access.READ)  # which they have
        assert store.calls == 2
    finally:
        store.close()


CHANGES = st.tuples(st.sets(st.integers(0, 19), max_size=8), st.sampled_from([Access.READ, Access.READ_WRITE]))


@given(st.lists(CHANGES, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_mappings_are_counted_as_the_kernel_counts_them(changes: list[tuple[set[int], Access]]) -> None:
    store = open_store(SHAPE, 20, DTYPE)
    try:
        for numbers, access in changes:
            store.protect(numbers, access)
            assert store.mappings == kernel_mappings(store.address, store.size_bytes)
    finally:
        store.close()


@pytest.mark.parametrize("numbers", [[-1], [0, BLOCKS], [BLOCKS]])
def test_blocks_that_are_not_there_are_refused_and_no_access_changes(numbers: list[int]) -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    try:
        with pytest.raises(ValueError, match="not all among"):
            store.protect(numbers, Access.READ)
        assert (store.calls, store.mappings) == (0, 1)
        store.tensor[0] = 1.0
    finally:
        store.close()


def test_memory_that_the_kernel_does_not_give_leaves_nothing_behind() -> None:
    assert _found("lack_memory") == {"calls": ["create", "map"], "left": 0}


def test_at_the_mapping_limit_access_is_refused_before_it_changes_and_a_failed_call_can_be_asked_again() -> None:
    found = _found("lack_mappings")
    assert found["seen"] == "LimitReached after 0 calls"
    assert found["unseen"] == "DriverError after 1 calls"
    assert found["found"][0] == [33, 33]


def test_at_the_mapping_limit_what_is_given_back_takes_from_the_spare() -> None:
    assert _found("lack_mappings")["found"][1] == [33, 33]


def test_what_is_no_memory_of_that_size_is_refused_and_its_descriptor_closed() -> None:
    store = open_store(SHAPE, BLOCKS, DTYPE)
    loose = os.memfd_create("loose")
    os.ftruncate(loose, store.size_bytes)
    try:
        for descriptor, blocks in ((os.dup(store.descriptor), BLOCKS + 1), (loose, BLOCKS)):
            with pytest.raises(ValueError, match=r"no memory of|Invalid argument"):
                attach_store(descriptor, SHAPE, blocks, DTYPE)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
    finally:
        store.close()


def test_more_memory_than_the_machine_has_is_refused_with_both_figures() -> None:
    with pytest.raises(LimitReached) as refused:
        open_store(SHAPE, 2**31, DTYPE)
    assert refused.value.need == 2**31 * SHAPE.pitch_bytes > refused.value.free


def test_a_type_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes an element"):
        open_store(SHAPE, BLOCKS, torch.bfloat16)


def test_a_model_whose_layers_differ_has_no_pages() -> None:
    mixed = KvGeometry((LayerGroup((0,), 1, 8), LayerGroup((1,), 2, 8, 16)), 4)
    with pytest.raises(ValueError, match="same heads"):
        PageShape.of(mixed)
    windows = KvGeometry((LayerGroup((0, 2), 1, 8), LayerGroup((1,), 1, 8, 16)), 4)
    assert PageShape.of(windows, block_size=8) == PageShape(3, 1, 8, 4, 8)
