"""The texts of a finished job, for reading: each prompt and how the model went on, in the input's order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from kvcluster.services.batch.input import read_lines
from kvcluster.services.batch.results import Result, decode_result
from kvcluster.services.completion import CompletionRequest, Refused


def write_texts(input_path: Path, output_path: Path) -> None:
    """On standard output. Holds all results in memory, so it is for files that somebody reads."""
    with output_path.open("rb") as file:
        results = {result.line_number: result for raw in file if (result := decode_result(raw))}
    for line in read_lines(input_path):
        if result := results.get(line.number):
            typer.echo(typer.style(f"--- {line.custom_id or f'line {line.number}'}", bold=True))
            typer.echo("".join(_parts(line.asked, result)) + "\n")


def _parts(asked: CompletionRequest | Refused, result: Result) -> Iterator[str]:
    if result.text is None:
        yield f"(no answer: {_printable(result.message or '')})"
        return
    if isinstance(asked, CompletionRequest) and isinstance(asked.prompt, str):
        yield typer.style(_printable(asked.prompt), dim=True)
    yield _printable(result.text)


def _printable(text: str) -> str:
    """Without what could drive a terminal: control characters but for line ends and tabs."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())
