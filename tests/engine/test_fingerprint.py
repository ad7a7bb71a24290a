"""A model's digest: of its content, and of nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcluster.engine.fingerprint import fingerprint_of
from kvcluster.engine.model import Model
from kvcluster.engine.refusals import ModelNotFound


def _copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def test_the_same_content_elsewhere_is_the_same_model(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    assert fingerprint_of(_copy(model_of("llama"), tmp_path / "other")) == fingerprint_of(model_of("llama"))


def test_one_changed_byte_of_the_weights_is_another_model(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    changed = _copy(model_of("llama"), tmp_path / "changed")
    content = bytearray((changed / "model.safetensors").read_bytes())
    content[-2] ^= 1
    (changed / "model.safetensors").write_bytes(content)
    assert fingerprint_of(changed) != fingerprint_of(model_of("llama"))


def _reconfigured(folder: Path, **figures: object) -> Path:
    """The folder, with these figures in its configuration, written in another order."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**figures, **{k: config[k] for k in config if k not in figures}}))
    return folder


def test_another_figure_in_the_configuration_is_another_model(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    changed = _reconfigured(_copy(model_of("llama"), tmp_path / "changed"), rms_norm_eps=0.5)
    assert fingerprint_of(changed) != fingerprint_of(model_of("llama"))


def test_another_name_in_the_configuration_is_the_same_model(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    renamed = _reconfigured(_copy(model_of("llama"), tmp_path / "renamed"), _name_or_path="mine/own")
    assert fingerprint_of(renamed) == fingerprint_of(model_of("llama"))


def test_weights_in_several_files_count_each_under_its_name(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    first, second = (_copy(model_of("llama"), tmp_path / name) for name in ("first", "second"))
    for folder, names in ((first, "ab"), (second, "ba")):
        (folder / f"model-{names[0]}.safetensors").write_bytes(b"one")
        (folder / f"model-{names[1]}.safetensors").write_bytes(b"other")
    assert fingerprint_of(first) != fingerprint_of(second)


def test_a_folder_without_weights_has_no_fingerprint(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    empty = _copy(model_of("llama"), tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="no weights"):
        fingerprint_of(empty)
    with pytest.raises(ModelNotFound, match="no such folder"):
        fingerprint_of(tmp_path / "nowhere")


def test_an_opened_model_knows_its_fingerprint(opened: Callable[[str], Model], model_of: Callable[[str], Path]) -> None:
    assert opened("llama").fingerprint == fingerprint_of(model_of("llama"))
    assert opened("llama").fingerprint != opened("qwen3").fingerprint
