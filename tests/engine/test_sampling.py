from __future__ import annotations

from collections import Counter

import pytest
import torch

from kvcluster.engine.sampling import DrawKey, SamplingParams, next_tokens, without_tokens


def rows_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def draws(logits: torch.Tensor, count: int, **settings: float) -> Counter[int]:
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    return Counter(next_tokens(logits, [params], [DrawKey(0, at)])[0] for at in range(count))


def test_temperature_zero_takes_the_most_likely_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0], [5.0, 3.0, 2.0]])
    assert next_tokens(logits, [SamplingParams()] * 2, [DrawKey(0, 0)] * 2) == [1, 0]


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(3))
    params = [SamplingParams(temperature=1.0 + row / 4, top_p=(1, 0.9)[row % 2], seed=row) for row in range(6)]
    keys = [DrawKey(row % 2, 10 * row) for row in range(6)]
    alone = [next_tokens(logits[row : row + 1], [params[row]], [keys[row]])[0] for row in range(6)]
    assert next_tokens(logits, params, keys) == alone
    assert next_tokens(logits.flip(0), params[::-1], keys[::-1]) == alone[::-1]


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["seed", "sample", "position"])
def test_seed_sample_and_position_each_change_the_draws(other: tuple[int, int, int]) -> None:
    logits = torch.zeros(1, 100_000)

    def draw(seed: int, sample: int, position: int) -> int:
        return next_tokens(logits, [SamplingParams(temperature=1, seed=seed)], [DrawKey(sample, position)])[0]

    assert draw(0, 0, 0) == draw(0, 0, 0)
    assert draw(0, 0, 0) != draw(*other)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    counts = draws(rows_of(0.1, 0.6, 0.3), 2000, temperature=1)
    assert [round(counts[token] / 2000, 1) for token in range(3)] == [0.1, 0.6, 0.3]


def test_a_low_temperature_sharpens() -> None:
    assert draws(rows_of(0.1, 0.6, 0.3), 200, temperature=0.05) == {1: 200}


def test_top_p_keeps_the_fewest_tokens_whose_mass_reaches_it() -> None:
    logits = rows_of(0.1, 0.5, 0.15, 0.25)
    assert set(draws(logits, 300, temperature=1, top_p=0.7)) == {1, 3}
    assert set(draws(logits, 300, temperature=1, top_p=0.8)) == {1, 2, 3}
    assert set(draws(logits, 300, temperature=1, top_p=1)) == {0, 1, 2, 3}


def test_top_p_keeps_at_least_one_token() -> None:
    assert set(draws(rows_of(0.3, 0.4, 0.3), 50, temperature=1, top_p=1e-9)) == {1}


def test_a_nucleus_larger_than_the_first_guess_is_whole() -> None:
    logits = torch.zeros(1, 4000)
    logits[0, 3000:] = -50  # 3,000 equal tokens hold all the mass
    drawn = draws(logits, 400, temperature=1, top_p=0.999)
    assert max(drawn) < 3000
    assert len(drawn) > 350


def test_a_row_without_some_tokens_chooses_another_and_the_logits_stay_as_they_are() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0], [0.0, 3.0, 2.0]])
    before = logits.clone()
    masked = without_tokens(logits, {1: frozenset({1, 99})})
    assert next_tokens(masked, [SamplingParams()] * 2, [DrawKey(0, 0)] * 2) == [1, 2]
    assert torch.equal(logits, before)


def test_where_nothing_is_forbidden_nothing_is_copied() -> None:
    logits = torch.zeros(2, 3)
    assert without_tokens(logits, {}) is logits
    assert without_tokens(logits, {0: frozenset()}) is logits


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"temperature|top_p"):
        SamplingParams(**wrong)  # type: ignore[arg-type]
