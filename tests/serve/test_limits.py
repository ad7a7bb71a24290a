"""What the settings of an endpoint limit is limited where requests come in."""

from __future__ import annotations

import pytest

from actors.openai.limits import MOST_PROMPTS, Limits
from actors.serve_app import limits_of
from kvcluster.config import settings_of
from kvcluster.serving_config import ServingSettings
from kvcluster.units import MIB

OWN = {"max_body": "1MiB", "max_prompt_tokens": 5, "max_choices": 2, "max_streams": 3, "api_key": "k"}


def test_every_limit_of_the_settings_is_one_of_the_http_side() -> None:
    given = limits_of(settings_of(ServingSettings, {"model": "m", **OWN}))
    assert given == Limits(MIB, 5, MOST_PROMPTS, most_choices=2, most_n=2, most_streams=3, api_key="k")


@pytest.mark.parametrize(
    ("own", "most_n"), [({}, 32), ({"max_num_seqs": 4, "max_num_waiting": 0}, 4), ({"max_choices": 3}, 3)]
)
def test_no_more_texts_of_one_prompt_are_asked_for_than_a_replica_computes_and_keeps_waiting(
    own: dict[str, int], most_n: int
) -> None:
    assert limits_of(settings_of(ServingSettings, {"model": "m", **own})).most_n == most_n
