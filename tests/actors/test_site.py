"""Where workers sit: at each device of each node, and what their devices are called."""

from __future__ import annotations

import pytest

from actors.site import Place, Site, open_site
from kvcluster.config import ConfigError, settings_from


def test_each_device_of_each_node_gets_a_worker_before_any_gets_its_second() -> None:
    site = Site(("here", "there"), ("host:0", "host:1"), 2)
    once = [Place(node, device) for node in ("here", "there") for device in ("host:0", "host:1")]
    assert list(site.seats) == once * 2
    assert site.workers_per_node == 4


def test_a_device_is_called_with_its_node_only_where_there_are_several() -> None:
    place = Place("0123456789abcdef", "host:0")
    assert Site((place.node_id,), ("host:0",), 1).named(place) == "host:0"
    assert Site((place.node_id, "other"), ("host:0",), 1).named(place) == "host:0 on node 01234567"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"nodes": 3}, "nodes is 3, and 1 of the cluster's 1 nodes have the 1 CPUs that the workers of each take"),
        ({"nodes": "all", "workers_per_device": 64}, "nodes is all, and 0 of the cluster's 1 nodes have the 64 CPUs"),
    ],
)
def test_more_than_the_cluster_has_is_refused_before_anybody_waits(
    node_id: str, asked: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_site(settings_from({"model": "none", **asked}), node_id, ())


def test_all_nodes_are_those_that_have_room_with_this_one_first(node_id: str) -> None:
    assert open_site(settings_from({"model": "none", "nodes": "all"}), node_id, ()).nodes == (node_id,)
