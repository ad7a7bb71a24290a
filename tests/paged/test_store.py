"""The memory of host pages: laid out as said, the same in every process, and written only where it was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvcluster.driver import linux
from kvcluster.driver.protocol import Access
from kvcluster.errors import LimitReached
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.paged.shape import PageShape
from kvcluster.paged.store import PageStore, attach_store, open_store

SHAPE = PageShape(num_layers=2, num_kv_heads=1, head_dim=8, element_bytes=4, block_size=4)  # 512 bytes a block
BLOCKS = 6
DTYPE = torch.float32
ROOT = Path(__file__).parents[2]


def _child(store: PageStore, *, writable: int, written: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.paged.store_child", str(store.descriptor), str(writable), str(written)]
    return subprocess.run(command, pass_fds=[store.descriptor], cwd=ROOT, capture_output=True, text=True, timeout=120)


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
    finally:
        store.close()


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
