"""What is said of requests until somebody takes it, in order: the other end of the inbox.

Whoever wants the whole at once gets one word, his answer. Whoever wants it as it is made hears first that it has begun,
once, however often it loses its memory and begins again; then what each text said in each step; and in the end the
same answer. The texts of a request are gathered in `choices`. Nothing is kept here of what was taken: what a text has
said already, it knows itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcluster.services.completion import Begun, Completion, Delta, Refused, Said
from kvcluster.services.request.choices import Choices
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.inbox import Inbox


class Outbox:
    """Of one service, in all its places. `inbox` knows which requests are over, and which nobody wants any more."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._choices = Choices()
        self._begun: set[int] = set()
        self._said: list[tuple[int, Said]] = []

    def expect(self, key: int, texts: int) -> None:
        """The request of this key is for so many texts."""
        self._choices.expect(key, texts)

    def is_expected(self, key: int) -> bool:
        """Whether the request is not over."""
        return self._choices.is_expected(key)

    def has_begun(self, key: int) -> bool:
        """Whether one of its texts ran: then its caller may have heard so, and cannot be sent away any more."""
        return key in self._begun

    def begins(self, generation: Generation) -> None:
        """One text of its request has memory, or needs none any more."""
        order = generation.order
        if order.key in self._begun:
            return
        self._begun.add(order.key)
        if order.streams:
            self._say(order.key, Begun(len(order.prompt), generation.cached or 0))

    def goes_on(self, generation: Generation) -> None:
        """A text has one more token, which may be its last."""
        if generation.order.streams:
            self.begins(generation)
        if generation.order.in_parts:
            self._say(generation.order.key, generation.delta())

    def ends(self, generation: Generation, completion: Completion, deltas: Iterable[Delta] = ()) -> bool:
        """A text is complete, and so are the `deltas` that were not said yet. Whether it was its request's last."""
        order = generation.order
        if order.in_parts:
            for delta in deltas:
                self._say(order.key, delta)
        answer = self._choices.take(order.key, order.choice, completion)
        if answer is not None:
            self.answer(order.key, answer)
        return answer is not None

    def answer(self, key: int, outcome: Completion | Refused) -> None:
        """The request is over with this; its key may be used again once that was taken."""
        self._forget_texts(key)
        self._say(key, outcome)

    def forget(self, key: int) -> None:
        """Nobody wants to hear of it any more, not even what was said and not taken."""
        self._forget_texts(key)
        self._said = [(other, said) for other, said in self._said if other != key]

    def take(self) -> list[tuple[int, Said]]:
        """All that was said since the last call, but of those that were cancelled meanwhile."""
        told, self._said = self._said, []
        over = [key for key, said in told if isinstance(said, Completion | Refused)]
        unwanted = self._inbox.over(over)
        return [(key, said) for key, said in told if key not in unwanted] if unwanted else told

    def _forget_texts(self, key: int) -> None:
        self._choices.forget(key)
        self._begun.discard(key)

    def _say(self, key: int, said: Said) -> None:
        self._said.append((key, said))
