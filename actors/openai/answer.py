"""One answer as documents: whole, or a document a part; and what it counts.

Choices are numbered over all prompts of the request: the i-th text of prompt p is choice p * n + i. Every part has the
answer's own id and time. A part that says nothing is none, unless it ends its choice or has log-probabilities. What
opens a choice comes with its first part, not before: some load generators take the first event for the first token.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from actors.openai.asked import Asked, Stream
from actors.openai.forms import Fields, Form
from kvcluster.services.completion import Begun, Completion, Delta


class Answer:
    """To `asked`; each of its prompts has `begun`."""

    def __init__(self, form: Form, asked: Asked, begun: Sequence[Begun]) -> None:
        self._form = form
        self._asked = asked
        self._n = asked.request.n
        self._prompt_tokens = sum(one.prompt_tokens for one in begun)
        self._begun_cached_tokens = sum(one.cached_tokens for one in begun)
        self._said_tokens = 0
        self._characters: Counter[int] = Counter()  # of tokens, by choice
        self._opened: set[int] = set()  # choices
        self._completions: dict[int, Completion] = {}
        self._id = form.id_prefix + secrets.token_hex(16)
        self._created = int(time.time())

    def keep(self, prompt: int, completion: Completion) -> None:
        """The whole answer to one prompt, for what is counted and for `whole`."""
        self._completions[prompt] = completion

    def usage(self) -> dict[str, Any]:
        """Of what is known by now. A prompt counts once, however many texts continue it."""
        whole = self._completions.values()
        is_whole = len(whole) == len(self._asked.prompts)
        said = sum(one.completion_tokens for one in whole) if is_whole else self._said_tokens
        cached = sum(one.cached_tokens for one in whole) if is_whole else self._begun_cached_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": said,
            "total_tokens": self._prompt_tokens + said,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def whole(self) -> dict[str, Any]:
        """The document of an answer that is not streamed."""
        texts = (choice for _, completion in sorted(self._completions.items()) for choice in completion.choices)
        choices = [{"index": index, **self._form.whole(choice)} for index, choice in enumerate(texts)]
        return self._document(self._form.whole_object, choices) | {"usage": self.usage()}

    def parts(self, prompt: int, delta: Delta, stream: Stream) -> Iterator[dict[str, Any]]:
        """The documents that say `delta`: none, or its own, or before that the one that opens its choice."""
        self._said_tokens += delta.tokens
        if not (delta.text or delta.finish_reason or delta.logprobs):
            return
        index = prompt * self._n + delta.choice
        if self._form.opening and index not in self._opened:
            yield self._part({"index": index, **self._form.opening()}, stream)
        self._opened.add(index)
        yield self._part({"index": index, **self._form.part(delta, self._characters[index])}, stream)
        self._characters[index] += sum(len(likelihood.token) for likelihood in delta.logprobs)

    def last(self) -> dict[str, Any]:
        """The document after the last part: what the whole answer counts."""
        return self._document(self._form.part_object, []) | {"usage": self.usage()}

    def _part(self, choice: Fields, stream: Stream) -> dict[str, Any]:
        document = self._document(self._form.part_object, [choice])
        if stream.counts:
            return document | {"usage": self.usage()}
        return document | ({"usage": None} if stream.ends_with_usage else {})

    def _document(self, kind: str, choices: list[Fields]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._asked.model,
            "choices": choices,
        }
