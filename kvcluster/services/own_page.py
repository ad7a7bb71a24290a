"""How a client comes to its session's progress page: over the attach socket, as the handle of a frame 0.

A port notes on one page for as long as it lives (`services.progress_page`). After its session was lost, or its device
was restarted, that goes on in the new session's file.
"""

from __future__ import annotations

from kvcluster.attach.client import AttachClient
from kvcluster.attach.protocol import HandedHandle
from kvcluster.services.progress_page import Memory, mapped

_PAGE = 0  # no frame has this seq


def page_memory(attach: AttachClient) -> Memory:
    """The session's file, mapped for as long as anybody refers to it; it is all zeros the first time.

    Raises:
        DeviceUnreachable, LimitReached: as `AttachClient.redeem`. Nothing is mapped.
        SessionEnded: the session is over. Nothing is mapped.
    """
    found: list[Memory] = []

    def take(handed: HandedHandle) -> None:
        if handed.fd is not None:
            found.append(mapped(handed.fd))

    attach.redeem(_PAGE, take)
    return found[0]
