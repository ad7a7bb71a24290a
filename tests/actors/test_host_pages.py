"""Host pages that a machine cannot have; how those that it has are used is in `test_host_workers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.cluster import open_cluster
from kvcluster.config import ConfigError
from tests.actors.world import World


def test_more_host_memory_than_the_machine_has_is_one_sentence(world: World, folder: Path) -> None:
    settings = world.settings(model=str(folder), fallback="host", host_memory="1000TiB")
    with pytest.raises(ConfigError, match="host_memory is"), open_cluster(settings):
        pass
