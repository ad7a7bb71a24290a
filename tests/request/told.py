"""What a streamed request was told, put together again, and held against what streaming promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcluster.services.completion import Begun, Completion, Delta, Likelihood, Refused, Said
from kvcluster.services.request import RequestService
from tests.request.world import World


@dataclass(slots=True)
class Told:
    """One request's words so far, in order."""

    begun: list[Begun] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    answer: Completion | Refused | None = None

    def hear(self, said: Said) -> None:
        """The next word: Begun once and before all deltas, and nothing after the answer."""
        assert self.answer is None, f"{said} after {self.answer}"
        match said:
            case Begun():
                assert not self.begun, "begun twice"
                self.begun.append(said)
            case Delta():
                assert self.begun, "a delta before it has begun"
                assert self.finish_reason(said.choice) is None, "a delta after the last"
                self.deltas.append(said)
            case Completion() | Refused():
                self.answer = said

    def of(self, choice: int) -> list[Delta]:
        return [delta for delta in self.deltas if delta.choice == choice]

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.of(choice))

    def logprobs(self, choice: int = 0) -> tuple[Likelihood, ...]:
        return tuple(likelihood for delta in self.of(choice) for likelihood in delta.logprobs)

    def finish_reason(self, choice: int = 0) -> str | None:
        return next((delta.finish_reason for delta in self.of(choice) if delta.finish_reason), None)

    @property
    def completion(self) -> Completion:
        """The answer, which is what the deltas said."""
        assert isinstance(self.answer, Completion)
        for place, choice in enumerate(self.answer.choices):
            assert (self.text(place), self.finish_reason(place)) == (choice.text, choice.finish_reason)
            assert self.logprobs(place) == choice.logprobs
        assert sum(delta.tokens for delta in self.deltas) == self.answer.completion_tokens
        return self.answer

    @property
    def whole(self) -> Completion | Refused:
        """The answer of either kind, and what the deltas said where it is a text."""
        assert self.answer is not None, "no answer"
        return self.answer if isinstance(self.answer, Refused) else self.completion


def told(world: World, services: Sequence[RequestService], heard: dict[int, Told] | None = None) -> dict[int, Told]:
    """All that is said until nobody has anything to do or to wait for, by key, after what was `heard` before."""
    heard = {} if heard is None else heard
    for _ in range(20_000):
        busy = [service.step() for service in services]
        listen(heard, services)
        statistics = [service.statistics() for service in services]
        if not any(busy) and not any(each.waiting or each.running for each in statistics):
            return heard
        world.clock.advance(0.05)
    raise AssertionError("still at work")


def listen(heard: dict[int, Told], services: Sequence[RequestService]) -> None:
    """Take what was said by now."""
    for service in services:
        for key, said in service.said():
            heard.setdefault(key, Told()).hear(said)
