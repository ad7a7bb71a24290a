"""Beam search, without a model: which beams go on with which tokens, and which sequences are the best in the end.

The rules, the float32 scores and the order are those of transformers' `generate(num_beams=width, do_sample=False)`. Of
all beams' continuations the best (1 + end tokens) x width are looked at: there are always enough among them that go on.
What ends among the best `width` of them is finished and weighed by its length; the best `width` finished ones are kept.

    search = BeamSearch(BeamSettings(width=4, max_tokens=64, eos_ids=model.eos_ids))
    while not search.is_over:
        chosen = search.advance(logits.log_softmax(-1))  # a row for the prompt, and then for each beam
        ...                                              # beam i goes on from what beam chosen.parents[i] has
    search.best()

Source: `_beam_search` of transformers 5.24.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """`width` beams, and as many results. A score is the sum of log-probabilities / length ** `length_penalty`.

    `early_stopping`, once `width` sequences are finished: True ends the search; False ends it where the best beam's
    score is no better than the worst finished one's now; "never" where it cannot become better at any length.
    """

    width: int
    max_tokens: int
    eos_ids: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if self.width < 1 or self.max_tokens < 1:
            raise ValueError(f"a beam search has at least 1 beam and 1 token, not {self.width} and {self.max_tokens}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f'early_stopping is True, False or "never", not {self.early_stopping!r}')

    @property
    def looked_at(self) -> int:
        """Continuations a step: so many that `width` of them go on whatever ends."""
        return max(2, 1 + len(self.eos_ids)) * self.width


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence's new tokens, with the end token if it has one."""

    token_ids: tuple[int, ...]
    score: float
    is_ended: bool  # by an end token, not by `max_tokens`


@dataclass(frozen=True, slots=True)
class Chosen:
    """Beam i goes on from the tokens of beam `parents[i]` with `token_ids[i]`. Empty when the search is over."""

    parents: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()


class BeamSearch:
    """One prompt's search."""

    def __init__(self, settings: BeamSettings) -> None:
        self.settings = settings
        self.is_over = False
        self.beams: tuple[tuple[int, ...], ...] = ((),)
        """The new tokens of each beam under way, the best first: one without tokens until the first step."""
        self._scores = torch.zeros(1)
        self._finished: list[Hypothesis] = []

    def advance(self, log_probabilities: torch.Tensor) -> Chosen:
        """Choose the next token of every beam: the argument is float32, [beams, vocabulary], in the order of `beams`.

        Raises:
            ValueError: not a row a beam, fewer tokens than are looked at, or the search is over. Nothing changed.
        """
        settings = self.settings
        if self.is_over or len(log_probabilities) != len(self.beams) or log_probabilities.dim() != 2:
            raise ValueError(f"{len(self.beams)} beams do not go on with {tuple(log_probabilities.shape)}")
        if log_probabilities.shape[1] < settings.looked_at:
            raise ValueError(f"{settings.width} beams need {settings.looked_at} tokens to choose from")
        candidates = self._candidates(log_probabilities)
        self._finish(candidates[: settings.width])
        going_on = [one for one in candidates if not self._ends(one)][: settings.width]
        self.is_over = not going_on or self._is_settled(going_on[0])
        if self.is_over:
            self.beams = ()
            return Chosen()
        self.beams = tuple(one.token_ids for one in going_on)
        self._scores = torch.stack([one.score for one in going_on])
        return Chosen(tuple(one.parent for one in going_on), tuple(one.token_ids[-1] for one in going_on))

    def best(self) -> list[Hypothesis]:
        """The `width` best sequences, the best first.

        Raises:
            ValueError: the search is not over.
        """
        if not self.is_over:
            raise ValueError("the search is not over: there is no best sequence yet")
        return list(self._finished)

    def _candidates(self, log_probabilities: torch.Tensor) -> list[_Candidate]:
        """The best continuations of all beams, the best first."""
        all_scores = (log_probabilities + self._scores[:, None]).flatten()
        scores, places = all_scores.topk(self.settings.looked_at)
        vocabulary = log_probabilities.shape[1]
        return [
            _Candidate(score, place // vocabulary, (*self.beams[place // vocabulary], place % vocabulary))
            for score, place in zip(scores, places.tolist(), strict=True)
        ]

    def _ends(self, candidate: _Candidate) -> bool:
        return candidate.is_ended(self.settings) or len(candidate.token_ids) == self.settings.max_tokens

    def _finish(self, best: list[_Candidate]) -> None:
        finished = [
            Hypothesis(one.token_ids, self._weighed(one, len(one.token_ids)), one.is_ended(self.settings))
            for one in best
            if self._ends(one)
        ]
        ranked = sorted(self._finished + finished, key=lambda one: one.score, reverse=True)
        self._finished = ranked[: self.settings.width]

    def _is_settled(self, leader: _Candidate) -> bool:
        """Whether as many are finished as are wanted, and none of them would be replaced."""
        settings = self.settings
        if len(self._finished) < settings.width:
            return False
        if settings.early_stopping is True or settings.width == 1:  # one beam is greedy text, which ends once
            return True
        is_to_grow = settings.early_stopping == "never" and settings.length_penalty > 0
        length = settings.max_tokens if is_to_grow else len(leader.token_ids)
        return self._weighed(leader, length) <= self._finished[-1].score

    def _weighed(self, candidate: _Candidate, length: int) -> float:
        return float(candidate.score / length**self.settings.length_penalty)


@dataclass(frozen=True, slots=True)
class _Candidate:
    score: torch.Tensor  # float32, of one element: sums and quotients are rounded as transformers rounds them
    parent: int
    token_ids: tuple[int, ...]

    def is_ended(self, settings: BeamSettings) -> bool:
        return self.token_ids[-1] in settings.eos_ids
