"""What each device did, as a table: with lines on a terminal, as aligned columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from kvcluster.services.statistics import DeviceReport
from kvcluster.units import format_bytes

HEADINGS = (
    "device",
    "requests",
    "tokens/s",
    "peak reserved",
    "peak committed",
    "peak live",
    "messages/token",
    "driver calls",
)


def write_device_table(reports: Sequence[DeviceReport]) -> None:
    """On standard output, one row a device."""
    rows = [_row(report) for report in reports]
    if sys.stdout.isatty():
        _write_rich(rows)
    else:
        typer.echo("\n".join(aligned([HEADINGS, *rows])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _row(report: DeviceReport) -> tuple[str, ...]:
    return (
        report.device,
        str(report.requests),
        f"{report.tokens_per_s:.1f}",
        format_bytes(report.peak_reserved_bytes),
        format_bytes(report.peak_committed_bytes),
        format_bytes(report.peak_live_bytes),
        f"{report.messages_per_token:.3f}",
        str(report.driver_calls),
    )


def _write_rich(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # here, because --help must come at once
    from rich.table import Table

    table = Table(HEADINGS[0])
    for heading in HEADINGS[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
