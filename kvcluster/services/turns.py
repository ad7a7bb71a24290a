"""One turn at a time, and none after a turn that broke off in the middle.

A turn that ends with a KvClusterError was a refusal: the state is what the error's docstring says. Any other end
leaves an act half done, and nobody can say what a later frame, or the same one again, would find: the process that
lives on in spite of it must not execute anything any more.
"""

from __future__ import annotations

import threading
from types import TracebackType

from kvcluster.errors import InvariantBroken, KvClusterError


class Turns:
    """A lock, as a context manager; `looking` is the same lock for those who change nothing."""

    def __init__(self) -> None:
        self.looking = threading.Lock()
        self._broken_by: str | None = None

    @property
    def are_over(self) -> bool:
        """Whether a turn broke off, so that there is none any more. Takes no lock."""
        return self._broken_by is not None

    def __enter__(self) -> None:
        """Raises InvariantBroken where an earlier turn broke off."""
        self.looking.acquire()
        if self._broken_by is not None:
            self.looking.release()
            raise InvariantBroken(sentence=f"the device is broken since an act of it broke off: {self._broken_by}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, KvClusterError):
            self._broken_by = f"{kind.__name__}: {error}"
        self.looking.release()
