"""The verb by which a request goes on where another process died: its memory, and what it had said by then.

The device knows both by the progress page of the dead process's session (`services.progress_page`), under a label that
only the same work has. What can be adopted, and for how long: `services.keeping`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvcluster.wire.base import Count, Message, Name, Positive, RequestKey, Run, TokenIds

MOST_SESSIONS = 8  # that one request may have died with

Label = Annotated[bytes, Field(min_length=16, max_length=16)]


class Adopt(Message):
    """Take over what was computed under `label` in one of `sessions`, newest first. Alone in its group, of a request
    that holds nothing. Costs no bytes. That there is nothing is no fault."""

    verb: Literal["adopt"] = "adopt"
    request: RequestKey
    sessions: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_SESSIONS)]
    label: Label


class Adopted(Message):
    """What became of it.

    - adopted: the memory is this request's, and so is `arrival`, the number of who had it; `tokens` tokens of it are
      written. Map `shared` for reading, which is that of `prefixes` (oldest first), and `runs`, its own: the ticket
      hands over the one and then the other. Of the first `told` tokens the device has the ids.
    - said: nothing is there to be mapped, but what was emitted is known.
    - living: the process of the newest session is not known to be dead. Ask again.
    - nothing: nobody remembers.

    `token_ids` are all that was emitted, and `computed` tokens (prompt and all) had once been written.
    """

    verb: Literal["adopted"] = "adopted"
    what: Literal["adopted", "said", "living", "nothing"]
    tokens: Count = 0
    computed: Count = 0
    token_ids: TokenIds = b""
    prefixes: tuple[Positive, ...] = ()
    shared: tuple[Run, ...] = ()
    runs: tuple[Run, ...] = ()
    told: Count = 0
    arrival: Count = 0
