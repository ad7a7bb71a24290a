"""A model's digest: of its content, and of nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from kvcluster.engine.fingerprint import fingerprint_of
from kvcluster.engine.model import Model


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


def test_another_figure_in_the_configuration_is_another_model(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    changed = _copy(model_of("llama"), tmp_path / "changed")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    assert fingerprint_of(changed) != fingerprint_of(model_of("llama"))


def test_an_opened_model_knows_its_fingerprint(opened: Callable[[str], Model], model_of: Callable[[str], Path]) -> None:
    assert opened("llama").fingerprint == fingerprint_of(model_of("llama"))
    assert opened("llama").fingerprint != opened("qwen3").fingerprint
