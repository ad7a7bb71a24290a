"""A batch job whose device is too small for any of its lines: with `fallback: host` they are answered all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.cluster import open_cluster
from kvcluster.config import ConfigError
from kvcluster.units import MIB
from tests.actors.test_batch import answered
from tests.actors.world import GRANULE, World


def test_lines_that_no_device_can_hold_get_the_texts_of_generate_in_host_pages(
    world: World, folder: Path, tmp_path: Path, wanted: list[str]
) -> None:
    sizes = {"device_memory": 2 * GRANULE, "fallback": "host", "host_memory": "1MiB"}
    with open_cluster(world.settings(model=str(folder), **sizes)) as cluster:
        assert answered(cluster, tmp_path, rounds=1) == wanted
        [report] = cluster.device_reports()
        assert 0 <= report.peak_live_bytes <= report.peak_committed_bytes <= 2 * GRANULE
        [pages] = cluster.host_reports()
    assert (pages.pages, pages.memory_bytes) == (cluster.seats[0].pages, MIB)
    assert 0 < pages.peak_used_bytes <= MIB
    assert pages.lookups >= len(wanted)
    assert pages.asked_tokens > pages.found_tokens


def test_more_host_memory_than_the_machine_has_is_one_sentence(world: World, folder: Path) -> None:
    settings = world.settings(model=str(folder), fallback="host", host_memory="1000TiB")
    with pytest.raises(ConfigError, match="host_memory is"), open_cluster(settings):
        pass
