"""The run folder: made for this user alone, and refused where something else stands in its place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcluster.run_folder import run_folder, run_folders


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this user alone, that the environment names."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr("kvcluster.run_folder._SHARED_MEMORY", folder)
    return folder


def test_the_folder_is_made_once_and_for_this_user_alone(runtime: Path) -> None:
    assert run_folder() == run_folder() == runtime / "kvcluster"
    assert stat.S_IMODE(run_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("value", ["", "relative", "/no/such/folder"])
def test_without_a_runtime_folder_of_ours_it_lies_in_shared_memory(
    shared: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    assert run_folder() == shared / f"kvcluster-{os.getuid()}"


def _link(place: Path) -> None:
    place.with_name("elsewhere").mkdir(mode=0o700)
    place.symlink_to(place.with_name("elsewhere"))


def _open_folder(place: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


@pytest.mark.parametrize("put", [_link, _open_folder, Path.touch], ids=["a link", "open to others", "no folder"])
def test_what_is_no_folder_of_this_user_alone_is_refused_and_stays(
    runtime: Path, shared: Path, put: Callable[[Path], None]
) -> None:
    put(runtime / "kvcluster")
    before = (runtime / "kvcluster").lstat()
    with pytest.raises(PermissionError, match="is to be a folder of this user alone"):
        run_folder()
    assert (runtime / "kvcluster").lstat() == before
    assert run_folders() == ()


def test_whoever_looks_for_leftovers_finds_the_folders_of_both_environments(
    runtime: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run_folder()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    two = run_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert run_folders() == (one, two)
