from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from kvcluster import LocalDevice
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.batch import Slice
from kvcluster.engine.linears import PackedLinear
from kvcluster.engine.model import Model, open_config, open_model
from kvcluster.engine.refusals import ModelNotFound, UnsupportedModel
from tests.engine.on_device import Loop, Running

Opened = Callable[[str], Model]


@pytest.fixture
def folder(model_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder of the test's own."""
    return Path(shutil.copytree(model_of("qwen2"), tmp_path / "model"))


def reopen(folder: Path) -> Model:
    return open_model(folder, dtype=torch.float32, threads=1)


def test_an_opened_model_tells_what_its_memory_looks_like(opened: Opened, model_of: Callable[[str], Path]) -> None:
    model = opened("qwen3")
    assert model.geometry == geometry_of(open_config(model_of("qwen3")), torch.float32)
    assert (model.vocabulary, model.context_tokens, model.eos_ids) == (512, 8192, frozenset({0}))


@pytest.mark.parametrize(("stated", "wanted"), [(None, set()), (7, {7}), ([3, 5], {3, 5})])
def test_texts_end_at_the_ids_of_the_generation_settings(folder: Path, stated: object, wanted: set[int]) -> None:
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "eos_token_id": stated}))
    assert reopen(folder).eos_ids == wanted


def test_the_number_of_threads_is_set(folder: Path) -> None:
    open_model(folder, dtype=torch.float32, threads=2)
    assert torch.get_num_threads() == 2
    reopen(folder)
    assert torch.get_num_threads() == 1


def test_linear_layers_are_packed(folder: Path) -> None:
    assert isinstance(
        open_model(folder, dtype=torch.float32, threads=1, fused=False).decoder.module.lm_head, PackedLinear
    )


def test_opening_a_model_leaves_the_progress_bars_as_they_were(folder: Path) -> None:
    reopen(folder)
    assert not logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    reopen(folder)
    assert logging.is_progress_bar_enabled()
    logging.disable_progress_bar()


def test_a_bfloat16_model_gives_float32_logits(model_of: Callable[[str], Path], device: LocalDevice) -> None:
    model = open_model(model_of("gemma3"), dtype=torch.bfloat16, threads=1)
    running = Running(model, device, Loop(new_tokens=1), [5, 6, 7])
    logits = model.forward([running.next_slice(8)])
    assert (logits.dtype, logits.shape) == (torch.float32, (1, 512))


def test_only_sampled_slices_have_logits_and_in_slice_order(opened: Opened, device: LocalDevice) -> None:
    model = opened("llama")

    def piece(*ids: int, sample: bool) -> Slice:
        running = Running(model, device, Loop(new_tokens=1), ids)
        return Slice(running.kv.views(len(ids)), 0, ids, sample)

    rows = model.forward([piece(5, 6, sample=True), piece(7, sample=False), piece(8, 9, 10, sample=True)])
    alone = [model.forward([piece(*ids, sample=True)])[0] for ids in ((5, 6), (8, 9, 10))]
    torch.testing.assert_close(rows, torch.stack(alone))
    assert model.forward([piece(5, sample=False)]).shape == (0, 512)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", None, "cannot be opened"),
        ("config.json", "{", "cannot be opened"),
        ("config.json", '{"model_type": "nothing"}', "nothing"),
        ("model.safetensors", None, "model.safetensors"),
        ("model.safetensors", "not weights", "cannot be opened"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(
    folder: Path, file: str, content: str | None, sentence: str
) -> None:
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(ModelNotFound, match=sentence) as refused:
        reopen(folder)
    assert "\n" not in str(refused.value)


def test_missing_weights_are_refused_and_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=r"1 weights are missing, model\.layers\.1\.self_attn\.k_proj\.bias"):
        reopen(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no such folder"):
        reopen(tmp_path / "missing")


def test_an_unsupported_model_is_refused_before_its_weights_are_read(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "gpt2"}))
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="family gpt2"):
        reopen(folder)
