"""Which lines of a finished job failed, and why: a line a kind of error, on standard error.

The output is read once more, as it is for the texts: errors of earlier runs are in it too, and count. Only a count and
one line a kind are kept in memory.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kvcluster.cli.sentences import say
from kvcluster.services.batch.results import Result, decode_result


def say_failures(output_path: Path) -> None:
    """How many failed of each kind, the first of them in its own words, and what can be done; nothing if none did."""
    counts, first = Counter[str](), dict[str, Result]()
    with output_path.open("rb") as file:
        for raw in file:
            if (result := decode_result(raw)) and result.failed:
                code = str(result.code)
                counts[code] += 1
                first[code] = _earlier(result, first.get(code))
    for code, count in counts.most_common():
        say(f"{count} failed with {code}, the first of them: {first[code].message}")
    if counts:
        say(f"each error stands in {output_path}; --retry-failed asks these lines again")


def _earlier(one: Result, other: Result | None) -> Result:
    """By the input's order, which is not that of the results."""
    return one if other is None or one.line_number < other.line_number else other
