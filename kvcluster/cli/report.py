"""What each device did in a job, as a table; and what was done in host pages, where there are any."""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.cli.tables import write_table
from kvcluster.services.pages.statistics import HostReport
from kvcluster.services.statistics import DeviceReport
from kvcluster.units import format_bytes

HEADINGS = (
    "device",
    "requests",
    "tokens/s",
    "peak reserved",
    "peak committed",
    "peak live",
    "found/asked",
    "messages/token",
    "driver calls",
)

HOST_HEADINGS = ("host pages", "memory", "peak used", "lookups", "asked tokens", "found tokens", "evictions")


def write_device_table(reports: Sequence[DeviceReport]) -> None:
    """On standard output, one row a device; found/asked are tokens of prompts that were looked up. What was computed
    again has a column where there was any."""
    again = any(report.recomputed_tokens for report in reports)
    headings = (*HEADINGS, "recomputed") if again else HEADINGS
    write_table(headings, [_row(report)[: len(headings)] for report in reports])


def write_host_table(reports: Sequence[HostReport]) -> None:
    """On standard output, one row for the pages of each node; nothing where there are none."""
    if reports:
        write_table(HOST_HEADINGS, [_host_row(report) for report in reports])


def _host_row(report: HostReport) -> tuple[str, ...]:
    return (
        report.pages,
        format_bytes(report.memory_bytes),
        format_bytes(report.peak_used_bytes),
        str(report.lookups),
        str(report.asked_tokens),
        str(report.found_tokens),
        str(report.evictions),
    )


def _row(report: DeviceReport) -> tuple[str, ...]:
    return (
        report.device,
        str(report.requests),
        f"{report.tokens_per_s:.1f}",
        format_bytes(report.peak_reserved_bytes),
        format_bytes(report.peak_committed_bytes),
        format_bytes(report.peak_live_bytes),
        f"{report.found_tokens}/{report.asked_tokens}",
        f"{report.messages_per_token:.3f}",
        str(report.driver_calls),
        str(report.recomputed_tokens),
    )
