"""What became of the requests of one worker so far, counted from what it said: for its metrics and `kvcluster top`.

A frozen value that the worker's thread replaces and any thread reads. What was cancelled is not among them, because
a worker says nothing more about it. Memory and steps are counted elsewhere (`services.request.statistics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvcluster.services.completion import Completion, Refused, Said


@dataclass(frozen=True, slots=True)
class Answered:
    """`refused` counts by the refusal's code; tokens are those of completed requests."""

    completed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)

    def after(self, said: Iterable[Said]) -> Answered:
        """The same with what ended in `said`: a `Completion` or `Refused`; the rest is on its way."""
        answered = self
        for each in said:
            if isinstance(each, Completion):
                answered = answered._completed(each)
            elif isinstance(each, Refused):
                refused = {**answered.refused, each.code: answered.refused.get(each.code, 0) + 1}
                answered = replace(answered, refused=refused)
        return answered

    def _completed(self, done: Completion) -> Answered:
        return replace(
            self,
            completed=self.completed + 1,
            prompt_tokens=self.prompt_tokens + done.prompt_tokens,
            cached_tokens=self.cached_tokens + done.cached_tokens,
            completion_tokens=self.completion_tokens + done.completion_tokens,
        )
