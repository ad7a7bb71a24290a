"""What every message is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Name = Annotated[str, Field(min_length=1, max_length=64)]

MOST_TOKENS = 262_144  # whose ids one operation names: 1 MiB of a frame's 4

TokenIds = Annotated[bytes, Field(max_length=4 * MOST_TOKENS)]  # uint32, little-endian: `index.token_chain`
Root = Annotated[bytes, Field(max_length=32)]


class Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class RequestKey(Message):
    """A request within its session."""

    number: Count
    generation: Count = 0


class Run(Message):
    """Windows [start, start + count) of one fragment of one group."""

    group: Count
    fragment: Count
    start: Count
    count: Positive
