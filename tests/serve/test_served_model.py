"""What a replica says of its loop. The replica itself needs Ray: `tests.actors.test_serving`."""

from __future__ import annotations

import pytest

from actors.served_model import why_silent

LEASE_S = 30.0


@pytest.mark.parametrize(
    ("failure", "silent_s", "why"),
    [
        (None, 0.0, None),
        (None, 30.0, None),
        (None, 31.0, "the loop was not heard of for 31 s"),
        (ValueError("no memory"), 0.0, "the loop failed: no memory"),
    ],
)
def test_a_loop_that_hangs_or_failed_is_of_no_use_and_says_why(
    failure: BaseException | None, silent_s: float, why: str | None
) -> None:
    assert why_silent(failure, silent_s, lease_s=LEASE_S) == why
