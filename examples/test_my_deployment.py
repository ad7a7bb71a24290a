"""A fault test of your own: run it with `pytest examples/test_my_deployment.py`. It takes about a minute.

The fixture `kv_cluster` comes with kvcluster (`kvcluster.testing.pytest_plugin`); `kvcluster failpoints` lists the
places at which a process can be killed.
"""

from __future__ import annotations

import pytest

PROMPTS = ("A list is", "A tuple is", "To open a file", "The first argument")


@pytest.mark.kv_cluster(devices=2)
def test_my_answers_survive_whatever_dies(kv_cluster):
    undisturbed = kv_cluster.run(*PROMPTS, max_tokens=24)

    kv_cluster.kill_at("request.step.computed", 5)  # a worker, in the middle of its work
    kv_cluster.lose_replies(10)  # and of each hundred replies that workers wait for, ten never arrive
    disturbed = kv_cluster.run(*PROMPTS, max_tokens=24)

    assert disturbed.texts == undisturbed.texts
    assert disturbed.lost_workers >= 1
    kv_cluster.assert_nothing_lost()
