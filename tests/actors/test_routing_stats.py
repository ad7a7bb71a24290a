"""What a replica tells of itself, and what a router makes of whatever a replica told."""

from __future__ import annotations

from typing import Any

import pytest

from actors.devices import actor_name
from actors.routing_stats import RoutingStats
from kvcluster.index.identity import CacheIdentity, root_for

IDENTITY = CacheIdentity("weights", "float32", "token-major")
STATS = RoutingStats.of(IDENTITY, device="host:0", node_id="a node", token_bytes=512)


def test_what_was_told_is_heard_whatever_else_is_told_beside_it() -> None:
    assert RoutingStats.from_dict({**STATS.to_dict(), "word": object()}) == STATS


@pytest.mark.parametrize("told", [{}, {"device": "host:0"}, {**STATS.to_dict(), "node_id": 7}])
def test_what_is_not_all_of_it_is_nothing(told: dict[str, Any]) -> None:
    assert RoutingStats.from_dict(told) is None


def test_prompts_are_found_under_the_root_that_the_device_makes_of_the_workers() -> None:
    assert STATS.root("salt") == root_for("", IDENTITY.salted("salt").root)
    assert STATS.root("") != STATS.root("salt")
    assert RoutingStats.of(None, device="host:0", node_id="a node").root("salt") == b""


def test_a_place_is_the_name_of_the_devices_actor() -> None:
    assert STATS.place == actor_name("host:0", "a node")
