"""The text of one answer, a token at a time: whole characters only, and nothing from a stop string on.

What may be shown is shown once: `fresh` gives it in pieces, `str` as a whole, and the pieces joined are the whole. A
stop string that is complete before `min_tokens` tokens is text as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcluster.engine.stop_strings import StopStrings

if TYPE_CHECKING:
    from kvcluster.engine.tokenizer import Detokenizer


class AnswerText:
    """Grows by `push`; complete after `finish`, or once a stop string was met."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings, min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._tokens = 0
        self._parts: list[str] = []
        self._given = 0  # parts
        self._stopped = False

    def push(self, token_id: int) -> bool:
        """Whether the text ends here, because a stop string is complete."""
        self._tokens += 1
        return self._pass_on(self._detokenizer.push(token_id))

    def finish(self) -> bool:
        """No token follows. Whether what was held back completes a stop string."""
        if not self._stopped and not self._pass_on(self._detokenizer.finish()):
            self._parts.append(self._stops.finish())
        return self._stopped

    def fresh(self) -> str:
        """What may be shown and was not given by this before."""
        fresh, self._given = self._parts[self._given :], len(self._parts)
        return "".join(fresh)

    def __str__(self) -> str:
        return "".join(self._parts)

    def _pass_on(self, text: str) -> bool:
        if self._tokens < self._min_tokens:
            self._parts.append(self._stops.pass_by(text))
            return False
        passed = self._stops.push(text)
        self._parts.append(passed.text)
        self._stopped = passed.stopped
        return self._stopped
