"""What each device did in a job, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.cli.tables import write_table
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
    write_table(HEADINGS, [_row(report) for report in reports])


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
