"""What is to be done: how many lines there are, and whether the output on hand is of this very input and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvcluster.services.batch.input import BatchFileError, Line, read_lines
from kvcluster.services.batch.output import Done, ResultFile


@dataclass(frozen=True, slots=True)
class Survey:
    """`total_lines` get a result each. `edited` of them have one, of what they asked for before they were edited."""

    total_lines: int
    edited: int = 0
    first_edited: Line | None = None


def survey(path: Path, output: ResultFile, *, model: str) -> Survey:
    """The input's lines, beside the results that are there.

    Raises:
        BatchFileError: the output holds the result of a line that is not there, or has another custom_id; or a text
            of another model.
    """
    _check_model(output, model)
    total, edited, first = 0, 0, None
    left = dict(output.earlier)
    for line in read_lines(path):
        total += 1
        done = left.pop(line.number, None)
        if done is not None and done.custom_id != line.custom_id:
            raise _foreign(output, f"line {line.number} has the custom_id {done.custom_id!r}, not {line.custom_id!r}")
        if done is not None and _is_edited(line, done):
            edited, first = edited + 1, first or line
    if left:
        raise _foreign(output, f"line {min(left)} is blank or beyond the end of {path}")
    return Survey(total, edited, first)


def _is_edited(line: Line, done: Done) -> bool:
    """As far as both say; an earlier version's results do not."""
    return bool(line.digest and done.digest) and line.digest != done.digest


def _check_model(output: ResultFile, model: str) -> None:
    """Texts of two models in one file could not be told apart by whoever counts on one."""
    for number, done in output.earlier.items():
        if done.model not in (None, model):
            reason = (
                f"line {number} was answered by the model {done.model!r}, not {model!r}: choose another output file"
            )
            raise BatchFileError(path=str(output.path), reason=f"{reason}, or that model")


def _foreign(output: ResultFile, evidence: str) -> BatchFileError:
    reason = f"the output belongs to another input ({evidence}): choose another output file"
    return BatchFileError(path=str(output.path), reason=reason)
