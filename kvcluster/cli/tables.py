"""A table: with lines on a terminal, as aligned columns elsewhere. The first column to the left, the others right."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer


def write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """On standard output."""
    if sys.stdout.isatty():
        _write_rich(headings, rows)
    else:
        typer.echo("\n".join(aligned([headings, *rows])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _write_rich(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # here, because --help must come at once
    from rich.table import Table
    from rich.text import Text

    table = Table(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
