"""How many examples a test draws: as it says, in proportion to the profile of hypothesis that is loaded.

`tests.conftest` has the profiles. What a test says is meant beside hypothesis' own 100.
"""

from __future__ import annotations

from hypothesis import settings

USUAL = 100


def examples(usual: int) -> int:
    """So many where the profile draws the usual 100; more or less where it draws more or less."""
    return max(1, round(usual * settings.default.max_examples / USUAL))
