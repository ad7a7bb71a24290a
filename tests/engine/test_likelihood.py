from __future__ import annotations

import pytest
import torch

from kvcluster.engine.likelihood import Likely, likelihoods


def logits_of(*probabilities: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(probabilities).log() + 3.0  # any shift of a row says the same


def test_each_row_has_the_logarithm_of_its_token_s_probability_and_its_likeliest_tokens() -> None:
    first, second = likelihoods(logits_of((0.5, 0.3, 0.2), (0.1, 0.2, 0.7)), [1, 2], [2, 1])
    assert first.token_id == 1
    assert first.logprob == pytest.approx(torch.tensor(0.3).log().item())
    assert [token for token, _ in first.others] == [0, 1]
    assert second.others == ((2, pytest.approx(torch.tensor(0.7).log().item())),)


def test_without_others_only_the_token_s_own_is_said() -> None:
    [only] = likelihoods(logits_of((0.25, 0.75)), [0], [0])
    assert only == Likely(0, pytest.approx(torch.tensor(0.25).log().item()))


def test_more_than_the_vocabulary_holds_is_all_of_it() -> None:
    [only] = likelihoods(logits_of((0.25, 0.75)), [0], [20])
    assert [token for token, _ in only.others] == [1, 0]
