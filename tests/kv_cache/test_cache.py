"""A KVCache's memory: when it comes, when it goes, what is refused, and what a refusal leaves."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from kvcluster import (
    DriverError,
    KVCache,
    KvGeometry,
    LayerGroup,
    LocalDevice,
    NeverFits,
    OutOfBudget,
    SequenceMemory,
    open_device,
)
from kvcluster.engine.refusals import UnsupportedModel
from kvcluster.errors import KvClusterError, NotAllowed
from kvcluster.testing.invariants import assert_nothing_lost
from tests.kv_cache.layers import GEOMETRY, LAYERS, content, rows, write

GRANULE = 4096
A_GRANULE = 32  # tokens, of the layers that keep every token


def opened(device: LocalDevice, *, max_tokens: int = 512, batch: int = 3) -> KVCache:
    return KVCache(device, GEOMETRY, max_tokens=max_tokens, batch=batch)


def full(device: LocalDevice) -> SequenceMemory:
    """Another request, which has all that it can have: what is left are two granules of each row that is open."""
    memory = device.open(KvGeometry.uniform(layers=1, kv_heads=1, head_dim=512, element_bytes=4), max_tokens=1024)
    try:
        memory.grant(1024)  # of a granule each
    except OutOfBudget as error:
        tokens = error.free // GRANULE
        memory.commit(tokens, memory.grant(tokens))
    return memory


def test_an_open_cache_has_no_memory_and_a_longer_one_more_at_the_same_address(device: LocalDevice) -> None:
    with opened(device) as cache:
        assert device.audit().committed_bytes == cache.committed_bytes == 0
        write(cache, 2, 10)
        first, address = cache.committed_bytes, cache.layers[0].keys.data_ptr()
        write(cache, 2, 6 * A_GRANULE)
        assert cache.committed_bytes > first > 0
        assert cache.layers[0].keys.data_ptr() == address
        assert device.audit().committed_bytes == cache.committed_bytes


def test_growth_copies_nothing_that_was_written(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 1, 10)
        before = cache.layers[0].keys
        write(cache, 1, 6 * A_GRANULE)
        assert before.data_ptr() == cache.layers[0].keys.data_ptr()
        before.fill_(9.0)
        assert (cache.layers[0].keys[:, :, :10] == 9.0).all()


def test_a_step_inside_what_is_there_makes_no_driver_call(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 3, 1)
        before = device.port.driver_calls
        for seed in range(8):
            write(cache, 3, 1, seed)
        assert device.port.driver_calls == before


def test_crop_gives_memory_back_and_a_small_one_makes_no_driver_call(device: LocalDevice) -> None:
    with opened(device) as cache:
        cache.activate_past_recording()
        write(cache, 2, 12)
        few = cache.committed_bytes
        write(cache, 2, 240)
        cache.crop(-240)
        assert cache.committed_bytes <= few + 2 * 2 * GRANULE  # of both groups a granule a row more, for the margin
        assert device.audit().committed_bytes == cache.committed_bytes
        write(cache, 2, 5)
        before = device.port.driver_calls
        for seed in range(20):
            cache.crop(-5)
            write(cache, 2, 5, seed)
        assert device.port.driver_calls == before


def test_rows_that_are_not_selected_give_their_memory_back(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 3, 10)
        three, kept = cache.committed_bytes, content(cache)[0]
        cache.batch_select_indices(torch.tensor([2]))
        assert cache.committed_bytes * 3 == three
        assert cache.batch_size == 1
        assert torch.equal(cache.layers[0].keys, kept[2:])


def test_no_row_selected_is_an_empty_cache(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 3, 10)
        cache.batch_select_indices(torch.tensor([], dtype=torch.long))
        assert (cache.get_seq_length(), cache.committed_bytes, cache.batch_size) == (0, 0, -1)
        write(cache, 2, 1)


def test_what_does_not_fit_now_is_refused_before_anything_is_written(device: LocalDevice) -> None:
    with opened(device) as cache, full(device) as other:
        with pytest.raises(OutOfBudget):
            write(cache, 3, 1)
        assert (cache.get_seq_length(), cache.committed_bytes) == (0, 0)
        other.close()
        write(cache, 3, 1)


def test_a_growth_that_one_row_is_refused_no_row_keeps(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 3, 10)
        before = content(cache)
        with full(device):
            books = device.audit().accounts
            with pytest.raises(OutOfBudget):
                write(cache, 3, 60)  # 3 granules a row: two rows get them
            assert device.audit().accounts == books
        assert all(map(torch.equal, content(cache), before))
        write(cache, 3, 60)


def test_rows_that_there_is_no_memory_for_are_refused_and_the_others_stay(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 1, 100)
        before = content(cache)
        with full(device), pytest.raises(OutOfBudget):
            cache.batch_repeat_interleave(3)
        assert cache.batch_size == 1
        assert all(map(torch.equal, content(cache), before))


def test_what_never_fits_says_so() -> None:
    with open_device("host", memory=8 * GRANULE, granule=GRANULE) as device, opened(device, batch=1) as cache:
        with pytest.raises(NeverFits):
            write(cache, 1, 1)
        assert cache.get_seq_length() == 0


def test_more_tokens_than_it_was_opened_for_are_refused_with_both_figures(device: LocalDevice) -> None:
    with opened(device, max_tokens=40) as cache:
        write(cache, 1, 40)
        with pytest.raises(ValueError, match="at most 40 tokens a row, not 41"):
            write(cache, 1, 1)
        assert cache.get_seq_length() == 40
        assert cache.get_max_length() == 40


def test_other_rows_than_there_are_are_refused(device: LocalDevice) -> None:
    with opened(device) as cache:
        with pytest.raises(ValueError, match="at most 3 rows, not 4"):
            write(cache, 4, 1)
        write(cache, 2, 1)
        with pytest.raises(ValueError, match="holds 2 rows, and 3 are to be written"):
            write(cache, 3, 1)
        with pytest.raises(ValueError, match="at most 3 rows, not 4"):
            cache.batch_repeat_interleave(2)
        with pytest.raises(IndexError):
            cache.reorder_cache(torch.tensor([0, 2]))
        assert cache.batch_size == 2


def test_what_cannot_be_kept_is_refused(device: LocalDevice) -> None:
    with opened(device) as cache:
        with pytest.raises(ValueError, match="no gradients"):
            cache.update(rows(1, 1).requires_grad_(), rows(1, 1), 0)
        with pytest.raises(ValueError, match="8 bytes an element"):
            cache.update(rows(1, 1).double(), rows(1, 1).double(), 0)
        with pytest.raises(ValueError, match="not of meta"):
            cache.update(rows(1, 1).to("meta"), rows(1, 1).to("meta"), 0)
        assert cache.committed_bytes == 0


def test_a_crop_is_refused_as_the_dynamic_layers_refuse_it_and_changes_no_layer(device: LocalDevice) -> None:
    with opened(device) as cache:
        write(cache, 1, 10)
        with pytest.raises(ValueError, match="minus the number"):
            cache.crop(3)
        with pytest.raises(RuntimeError, match="activate_past_recording"):
            cache.crop(-3)
        cache.activate_past_recording()
        write(cache, 1, 2)
        with pytest.raises(RuntimeError, match="3 tokens are to be cropped, and 2 of them can be"):
            cache.crop(-3)
        assert [cache.get_seq_length(layer) for layer in range(LAYERS)] == [12] * LAYERS


def test_what_was_written_in_inference_mode_is_written_on_outside_of_it(device: LocalDevice) -> None:
    with opened(device) as cache:
        with torch.inference_mode():
            write(cache, 1, 3)
        write(cache, 1, 3)
        assert cache.get_seq_length() == 6


def test_a_closed_cache_has_given_all_back_and_takes_nothing(device: LocalDevice) -> None:
    cache = opened(device)
    write(cache, 2, 10)
    cache.close()
    cache.close()
    assert_nothing_lost(device)
    with pytest.raises(NotAllowed, match="the cache is closed"):
        write(cache, 2, 10)
    assert cache.get_seq_length() == 0


def test_a_cache_that_nobody_closed_goes_with_its_device() -> None:
    with open_device("host", memory="1MiB", granule=GRANULE) as device:
        cache = opened(device)
        write(cache, 2, 10)
    with pytest.raises(NotAllowed, match="the cache is closed"):
        write(cache, 2, 1)
    cache.close()


def test_it_works_on_any_session_of_a_device(device: LocalDevice) -> None:
    port = device.open_port()
    with KVCache(port, GEOMETRY, max_tokens=64) as cache:
        write(cache, 1, 10)
        assert device.audit().committed_bytes == cache.committed_bytes > 0
    port.close()


def test_a_cache_is_not_copied(device: LocalDevice) -> None:
    with opened(device) as cache:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(cache)


def test_what_cannot_be_a_cache_is_refused_and_nothing_is_open(device: LocalDevice) -> None:
    with pytest.raises(ValueError, match="every layer from 0 on"):
        KVCache(device, KvGeometry((LayerGroup((1,), 1, 4),), 4), max_tokens=8)
    with pytest.raises(ValueError, match="1 to 1024 rows, not 0"):
        opened(device, batch=0)
    with pytest.raises(ValueError, match="at least 1 token"):
        opened(device, max_tokens=0)
    assert device.port.memories() == ()


def test_a_model_that_no_geometry_is_read_from_needs_one(device: LocalDevice) -> None:
    from transformers import GPT2Config

    with pytest.raises(UnsupportedModel, match="gpt2"):
        KVCache(device, GPT2Config(), max_tokens=8)


def test_an_address_that_cannot_be_had_leaves_nothing(device: LocalDevice) -> None:
    with pytest.raises((DriverError, KvClusterError)):
        opened(device, max_tokens=1 << 50, batch=1024)
    assert device.port.memories() == ()
