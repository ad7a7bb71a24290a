"""Without an address the cluster is that of `ray start`, and no job's own, whatever else of Ray runs here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors.cluster import joined_cluster, started_address
from kvcluster.config import ConfigError
from tests.actors.world import TIMEOUT_S, World

KVCLUSTER = str(Path(sys.executable).with_name("kvcluster"))


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (folder := tmp_path / "ray").mkdir()
    return folder


def test_it_is_where_ray_start_wrote_it(ray_folder: Path) -> None:
    (ray_folder / "ray_current_cluster").write_text("10.0.0.9:6379\n")
    assert started_address() == "10.0.0.9:6379"


def test_where_none_was_started_no_other_ray_of_the_machine_is_taken(ray_folder: Path, world: World) -> None:
    world.device(world.settings())  # of this process's own Ray
    command = [KVCLUSTER, "status"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no Ray cluster was started on this machine" in ran.stderr


def test_an_empty_address_is_refused_and_no_cluster_taken(ray_folder: Path) -> None:
    with pytest.raises(ConfigError, match="ray_address is empty"), joined_cluster(" "):
        raise AssertionError("some cluster was joined")
