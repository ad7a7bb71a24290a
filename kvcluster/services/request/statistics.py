"""What one request service did so far: counted in the service's thread, read as a frozen value.

Ratios are ratios of sums over steps, so that a long sequence counts for as long as it lived. Committed bytes include
the margin; live bytes are those of tokens whose K and V are written. Neither counts what is shared: it is paid once,
and not by who reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvcluster.services.kv_port import KvPort


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """One moment. A control message is a frame or its reply; redemptions are apart.

    `requests_done` counts answers of both kinds, `refused_waiting` those that were refused because too many waited
    already (`max_num_waiting`), `cancelled` requests that got none because nobody wanted it any more. `refusals` are
    the device's for lack of budget. `lookups` are admissions that looked for what others computed, `hit_tokens` what
    they found of it; `publications` are what was shared before its owner ended. `recomputed_tokens` were computed
    before, by a process that died or in memory that was lost by a failure; what a preempted request gave back is none
    of it. `adoptions` went on in memory that a dead process left. `fallbacks` went from the device to host pages before
    they began, `moves` between the two with what they had computed.
    `quarantined_bytes` could not be unmapped when they were to be given back: only this process's end frees them.
    `driver_calls` are those of the client's driver, which in a LocalDevice is the device's too.
    """

    requests_done: int = 0
    refused_waiting: int = 0
    cancelled: int = 0
    generated_tokens: int = 0
    steps: int = 0
    steps_that_grew: int = 0
    preemptions: int = 0
    refusals: int = 0
    lookups: int = 0
    hit_tokens: int = 0
    publications: int = 0
    recomputed_tokens: int = 0
    adoptions: int = 0
    fallbacks: int = 0
    moves: int = 0
    quarantined_bytes: int = 0
    control_messages: int = 0
    redemptions: int = 0
    committed_byte_steps: int = 0
    live_byte_steps: int = 0
    peak_reserved_bytes: int = 0
    peak_committed_bytes: int = 0
    peak_live_bytes: int = 0
    driver_calls: int = 0
    waiting: int = 0
    running: int = 0

    @property
    def messages_per_token(self) -> float:
        return self.control_messages / self.generated_tokens if self.generated_tokens else 0.0

    @property
    def committed_per_live(self) -> float:
        return self.committed_byte_steps / self.live_byte_steps if self.live_byte_steps else 0.0


class Tally:
    """The counts of a RequestStatistics, as they grow."""

    def __init__(self) -> None:
        self._so_far = RequestStatistics()

    def add(self, **more: int) -> None:
        """So much more of each of these fields."""
        self._so_far = replace(
            self._so_far, **{name: getattr(self._so_far, name) + count for name, count in more.items()}
        )

    def stepped(self, *, reserved_bytes: int, committed_bytes: int, live_bytes: int) -> None:
        """One model step was computed while so much was reserved, committed and written."""
        self.add(steps=1, committed_byte_steps=committed_bytes, live_byte_steps=live_bytes)
        self._so_far = replace(
            self._so_far,
            peak_reserved_bytes=max(self._so_far.peak_reserved_bytes, reserved_bytes),
            peak_committed_bytes=max(self._so_far.peak_committed_bytes, committed_bytes),
            peak_live_bytes=max(self._so_far.peak_live_bytes, live_bytes),
        )

    def snapshot(self, ports: Sequence[KvPort], *, waiting: int, running: int) -> RequestStatistics:
        return replace(
            self._so_far,
            control_messages=sum(port.traffic.control_messages for port in ports),
            redemptions=sum(port.traffic.redemptions for port in ports),
            quarantined_bytes=sum(port.quarantined_bytes for port in ports),
            driver_calls=sum(port.driver_calls for port in ports),
            waiting=waiting,
            running=running,
        )
