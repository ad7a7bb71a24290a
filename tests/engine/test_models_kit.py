from __future__ import annotations

from pathlib import Path

from kvcluster.engine.model import open_config
from kvcluster.testing.models import make_model


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_equal_seeds_make_equal_models_and_other_seeds_others(tmp_path: Path) -> None:
    first, again, other = (make_model(tmp_path / str(n), "qwen2", seed=s) for n, s in enumerate((3, 3, 4)))
    assert weights_of(first) == weights_of(again) != weights_of(other)
    assert (first / "tokenizer.json").read_text() == (again / "tokenizer.json").read_text()


def test_fields_of_a_family_can_be_changed(tmp_path: Path) -> None:
    config = open_config(make_model(tmp_path, "llama", kv_heads=4, layers=1))
    assert (config.num_key_value_heads, config.num_hidden_layers) == (4, 1)
