"""The texts of one request, gathered: it is answered when the last of them is there."""

from __future__ import annotations

from kvcluster.services.completion import Choice, Completion


class Choices:
    """By the request's key. A request that is over is forgotten."""

    def __init__(self) -> None:
        self._expected: dict[int, int] = {}
        self._found: dict[int, dict[int, Completion]] = {}

    def expect(self, key: int, count: int) -> None:
        """The request of this key is for so many texts."""
        self._expected[key] = count
        self._found[key] = {}

    def is_expected(self, key: int) -> bool:
        """Whether the request is not over."""
        return key in self._expected

    def take(self, key: int, choice: int, completion: Completion) -> Completion | None:
        """One of its texts is complete; the answer, where it was the last."""
        found = self._found[key]
        found[choice] = completion
        if len(found) < self._expected[key]:
            return None
        self.forget(key)
        return _together([found[place] for place in sorted(found)])

    def forget(self, key: int) -> None:
        """The request is over."""
        self._expected.pop(key, None)
        self._found.pop(key, None)


def _together(texts: list[Completion]) -> Completion:
    """What was reused for the first text was reused for the request; the others may reuse what that one computed."""
    first = texts[0]
    if len(texts) == 1:
        return first
    return Completion(
        first.text,
        first.finish_reason,
        first.prompt_tokens,
        sum(text.completion_tokens for text in texts),
        tuple(Choice(text.text, text.finish_reason, text.logprobs) for text in texts[1:]),
        first.cached_tokens,
        first.logprobs,
    )
