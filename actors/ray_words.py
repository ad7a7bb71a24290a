"""What Ray prints while this process is connected to it: put on standard error, but for deaths that we tell ourselves.

Ray tells its driver of whatever crashed in the cluster, on standard output, where a command's results go: 46 lines of
a node that died, most of them the raylet's own log, and of a worker 900 characters on what may have killed it. Who
died, and that their lines go on, is what our sentences say. All else is passed on. Measured with Ray 2.60: one `print`,
whose end is written apart.
"""

from __future__ import annotations

import io
import threading
from typing import TextIO

SAID_BY_US = (
    "Raylet is terminated",
    "has been marked dead",
    "A worker died or was killed while executing a task by an unexpected system error",
    "Task ServeController.",  # was under way when Serve was ended: at each end of an endpoint
)


class RaysWords(io.TextIOBase):
    """Stands for standard output; what is written goes to `shown`. For any thread."""

    def __init__(self, shown: TextIO) -> None:
        self._shown = shown
        self._said = threading.local()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Returns the length of `text`, also where it is kept back."""
        is_end = text == "\n" and getattr(self._said, "is_kept_back", False)
        self._said.is_kept_back = any(words in text for words in SAID_BY_US)
        if not is_end and not self._said.is_kept_back:
            self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        self._shown.flush()

    def isatty(self) -> bool:
        return self._shown.isatty()
