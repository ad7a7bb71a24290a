"""How much one request may ask for, and how much all of them together may hold here.

What is kept here is bounded by these: bodies by `most_streams` times `most_body_bytes`, and of an answer one word. What
is computed faster than its client reads waits in the server before, or behind in Serve's queue of this process (by
gRPC) or in Ray, and is at most `max_tokens` of its request. Memory for KV is none of this: it is decided where it is,
before anything is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_PROMPTS = 32  # of one request


@dataclass(frozen=True, slots=True)
class Limits:
    """`most_prompt_tokens` None: only the model's context limits a prompt. `api_key` None: everybody may ask.

    `most_choices` are all texts of one request: its prompts times `n`; `most_n` those of one prompt. `most_streams` are
    requests for an answer in hand at one time, streamed or not, from their first byte to the last of their answer.
    """

    most_body_bytes: int
    most_prompt_tokens: int | None
    most_prompts: int
    most_choices: int
    most_n: int
    most_streams: int
    api_key: str | None = field(repr=False)
