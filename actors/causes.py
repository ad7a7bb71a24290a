"""Of what an actor died, in one sentence: Ray's words without its report, and the kernel's where it says more.

Ray's errors are pages of text with a sentence somewhere in them. The table below was made from Ray 2.60's words, each
of which a test brings about; what it does not have is told in Ray's first line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ray.exceptions import GetTimeoutError, RayTaskError

from actors.owners import reason_of

NODE_DIED = "its node died"
_SAID = (  # the first that fits
    (r"node has died", NODE_DIED),
    (r"node specified via NodeAffinity.* doesn't exist", NODE_DIED),
    (r"killed by `ray\.kill`", "it was ended (ray.kill)"),
    (r"receives a SIGTERM", "it was told to end (SIGTERM)"),
    (r"exit_actor\(\) is called", "it left by itself"),
    (r"memory on the node|low on memory", "Ray ended it, because its node was short of memory"),
)
_UNEXPECTED = re.compile(
    r"unexpectedly exits|worker process has died|temporarily unavailable|Actor is unavailable|restarting"
)
UNKNOWN = "its process ended, and nobody knows why"


def cause_of(error: Exception, *, ending: Callable[[], str] = str) -> str:
    """One sentence. `ending` says what the kernel does (`Watched.ending`); it is asked where Ray does not know."""
    if isinstance(error, GetTimeoutError):
        return "it did not answer"
    if isinstance(error, RayTaskError) or "creation task" in str(error):
        return reason_of(error)
    text = str(error)
    for pattern, sentence in _SAID:
        if re.search(pattern, text):
            return sentence
    if _UNEXPECTED.search(text):
        return ending() or UNKNOWN
    return reason_of(error)
