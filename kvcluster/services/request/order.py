"""What was asked for, in the model's terms: a value that does not change while its generation goes on."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Order:
    """One text of the request `key`. `number` is the place in order of submission, `choice` that among its texts.

    `texts` are all of its request, which hears that it begins where it `streams`, and of each text as it is made where
    that is `in_parts` too. `sample` numbers the draws of its seed. No end before `min_tokens`; with `logprobs` it says
    how likely each token was, and so many others. What others computed is found under the same `cache_root`; empty:
    nothing is looked for. `packed_prompt` is the prompt as `index.token_chain` has it. Under `label` (`request.label`)
    its progress is noted, and looked for among what the sessions that it `died_with` left.
    """

    key: int
    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    params: SamplingParams
    end_ids: frozenset[int]
    choice: int = 0
    texts: int = 1
    sample: int = 0
    min_tokens: int = 0
    logprobs: int | None = None
    streams: bool = False
    in_parts: bool = False
    cache_root: bytes = b""
    packed_prompt: bytes = b""
    label: bytes = b""
    died_with: tuple[str, ...] = ()

    @property
    def total_tokens(self) -> int:
        return len(self.prompt) + self.max_tokens

    @property
    def most_held(self) -> int:
        """Tokens whose K and V are ever written: the last one is only said."""
        return self.total_tokens - 1
