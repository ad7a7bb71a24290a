"""Whatever is wrong with a model's folder, opening it ends in one sentence, and nothing is computed from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvcluster.engine.model import open_model
from kvcluster.engine.refusals import ModelNotFound, UnsupportedModel
from kvcluster.engine.tokenizer import open_tokenizer

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def folder(model_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder of the test's own."""
    return Path(shutil.copytree(model_of("llama"), tmp_path / "model"))


@pytest.fixture(params=["llama", "gemma3"])
def either(request: pytest.FixtureRequest, model_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder of a model with one type of layer, or with two."""
    return Path(shutil.copytree(model_of(request.param), tmp_path / "model"))


def open_both(folder: Path) -> None:
    open_model(folder, dtype=torch.float32, threads=1)
    open_tokenizer(folder)


def refusal(folder: Path) -> str:
    """The sentence that opening the folder's model and tokenizer ends with."""
    with pytest.raises((ModelNotFound, UnsupportedModel)) as refused:
        open_both(folder)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    assert str(folder) in sentence
    return sentence


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_folder_is_opened(either: Path) -> None:
    open_both(either)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [0, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_refused(folder: Path, name: str, kept: float) -> None:
    content = (folder / name).read_bytes().rstrip()
    (folder / name).write_bytes(content[: int(len(content) * kept)])
    refusal(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b'"text"', b"[[{}]]", b"\xff\xfe\x00", b"[" * 100_000])
def test_a_file_that_holds_something_else_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    refusal(folder)


@pytest.mark.parametrize("name", NEEDED)
def test_a_file_that_is_missing_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_the_place_of_a_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refusal(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 60),
        ("hidden_size", "x"),
        ("hidden_size", 0),
        ("vocab_size", 511),
        ("vocab_size", 600),
        ("vocab_size", None),
        ("intermediate_size", 64),
        ("num_hidden_layers", None),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 9),
        ("num_hidden_layers", [2]),
        ("num_attention_heads", 0),
        ("num_attention_heads", -4),
        ("num_attention_heads", 3),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 4),
        ("num_key_value_heads", "two"),
        ("head_dim", 0),
        ("head_dim", 8),
        ("head_dim", "x"),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", "x"),
        ("max_position_embeddings", None),
        ("rope_parameters", "x"),
        ("rope_parameters", {"rope_type": "nothing"}),
        ("rope_parameters", {"rope_theta": "x", "rope_type": "default"}),
        ("rms_norm_eps", "x"),
        ("hidden_act", "nothing"),
        ("hidden_act", 3),
        ("layer_types", "x"),
        ("layer_types", ["full_attention"]),
        ("model_type", None),
        ("model_type", 3),
        ("model_type", "nothing"),
        ("eos_token_id", "x"),
        ("quantization_config", {"quant_method": "nothing"}),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_the_weights_is_refused(folder: Path, field: str, value: object) -> None:
    change_json(folder / "config.json", **{field: value})
    refusal(folder)


@pytest.mark.parametrize("value", ["x", [[1]], {"a": 1}, [None], 1.5, True])
def test_end_tokens_that_are_no_token_ids_are_refused(folder: Path, value: object) -> None:
    change_json(folder / "generation_config.json", eos_token_id=value)
    refusal(folder)


def test_layers_that_the_configuration_does_not_count_are_refused(either: Path) -> None:
    config = json.loads((either / "config.json").read_text())
    fewer = config["num_hidden_layers"] - 1
    types = config.get("layer_types")
    change_json(either / "config.json", num_hidden_layers=fewer, **({"layer_types": types[:fewer]} if types else {}))
    assert f"model.layers.{fewer}." in refusal(either)


def test_weights_that_the_model_has_no_place_for_are_refused(either: Path) -> None:
    weights = load_file(either / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.ones(64)
    save_file(weights, either / "model.safetensors", metadata={"format": "pt"})
    assert "1 weights have no place in it, model.layers.0.self_attn.q_proj.bias among them" in refusal(either)


def test_weights_of_another_shape_are_refused_by_name(either: Path) -> None:
    change_json(either / "config.json", intermediate_size=64)
    assert "mlp.down_proj.weight among them" in refusal(either)
