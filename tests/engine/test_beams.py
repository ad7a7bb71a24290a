"""Beam search against transformers' own: the same sequences, scores and order, with ends within reach and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GenerationMixin, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from kvcluster.engine.beams import BeamSearch, BeamSettings, Chosen, Hypothesis
from tests.examples import examples

EarlyStopping = bool | Literal["never"]
Following = Callable[[list[tuple[int, ...]]], torch.Tensor]  # the logits after each of these new tokens

PAD = 1
PROMPT = [3, 2, 4]
VOCABULARY = 24
LIKELY = range(2, 6)  # ends are drawn among these
STEPS = 12


class TableModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """What follows depends on the position and the last token, by a table: small vocabularies end often."""

    config_class = LlamaConfig
    main_input_name = "input_ids"

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(LlamaConfig(vocab_size=VOCABULARY))
        self.table = table
        self.head = torch.nn.Linear(1, 1)  # transformers asks for a device
        self.generation_config = GenerationConfig(pad_token_id=PAD)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.table[input_ids.shape[1], input_ids[:, -1]].unsqueeze(1))


@cache
def table_model(seed: int) -> TableModel:
    generator = torch.Generator().manual_seed(seed)
    table = 1.5 * torch.randn(len(PROMPT) + STEPS + 1, VOCABULARY, VOCABULARY, generator=generator)
    table[:, :, LIKELY.start : LIKELY.stop] += 1.5
    return TableModel(table)


def wanted(model: Any, prompt: list[int], beams: BeamSettings) -> list[tuple[list[int], float]]:
    """New tokens and scores of generate(), the best first."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=GenerationConfig(
            do_sample=False,
            num_beams=beams.width,
            num_return_sequences=beams.width,
            max_new_tokens=beams.max_tokens,
            length_penalty=beams.length_penalty,
            early_stopping=beams.early_stopping,
            eos_token_id=sorted(beams.eos_ids) or None,
            pad_token_id=PAD,
            use_cache=not isinstance(model, TableModel),
            return_dict_in_generate=True,
            output_scores=True,
        ),
    )
    scores = output.sequences_scores.tolist() if beams.width > 1 else [0.0]
    return [(row[len(prompt) :].tolist(), score) for row, score in zip(output.sequences, scores, strict=True)]


def found(following: Following, beams: BeamSettings) -> list[Hypothesis]:
    search = BeamSearch(beams)
    while not search.is_over:
        search.advance(following(list(search.beams)).log_softmax(-1))
    return search.best()


def of_table(seed: int) -> Following:
    table = table_model(seed).table

    def following(sequences: list[tuple[int, ...]]) -> torch.Tensor:
        rows = [[*PROMPT, *new] for new in sequences]
        return torch.stack([table[len(row), row[-1]] for row in rows])

    return following


def assert_equal(got: list[Hypothesis], want: list[tuple[list[int], float]], width: int) -> None:
    for one, (tokens, score) in zip(got, want, strict=True):
        assert tokens[: len(one.token_ids)] == list(one.token_ids)
        assert set(tokens[len(one.token_ids) :]) <= {PAD}  # transformers fills up to the longest
        if width > 1:
            assert one.score == pytest.approx(score, abs=1e-6)


@given(
    seed=st.integers(0, 30),
    width=st.integers(1, 5),
    max_tokens=st.integers(1, STEPS),
    eos_ids=st.frozensets(st.sampled_from(LIKELY), max_size=3),
    length_penalty=st.sampled_from([-1.0, -0.3, 0.0, 0.6, 1.0, 2.0, 5.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
)
@example(1, 5, STEPS, frozenset({2}), -0.3, "never")  # a better one comes, which at its longest would be worse
@settings(max_examples=examples(250), deadline=None)
def test_sequences_scores_and_order_are_those_of_generate(
    seed: int,
    width: int,
    max_tokens: int,
    eos_ids: frozenset[int],
    length_penalty: float,
    early_stopping: EarlyStopping,
) -> None:
    beams = BeamSettings(width, max_tokens, eos_ids, length_penalty, early_stopping)
    want = wanted(table_model(seed), PROMPT, beams)
    assert_equal(found(of_table(seed), beams), want, width)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize(("width", "length_penalty"), [(1, 1.0), (2, 0.0), (3, 1.0), (4, 2.0), (5, 0.7)])
@pytest.mark.parametrize("ends", [0, 2])
def test_a_models_beams_are_those_of_generate(
    ends: int,
    width: int,
    length_penalty: float,
    early_stopping: EarlyStopping,
    reference: Callable[[str], Any],
) -> None:
    model = reference("llama")
    prompt = [5, 6, 7, 8]
    open_ended = BeamSettings(3, 12)
    likely = sorted({token for tokens, _ in wanted(model, prompt, open_ended) for token in tokens[4:9]})[:ends]
    beams = BeamSettings(width, 12, frozenset(likely), length_penalty, early_stopping)

    @torch.inference_mode()
    def following(sequences: list[tuple[int, ...]]) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=torch.tensor([[*prompt, *new] for new in sequences])).logits
        return logits[:, -1]

    want = wanted(model, prompt, beams)
    got = found(following, beams)
    assert [one.token_ids for one in got] == [tuple(t[: len(g.token_ids)]) for (t, _), g in zip(want, got, strict=True)]
    if width > 1:
        assert [one.score for one in got] == pytest.approx([score for _, score in want], abs=1e-4)


def test_what_ended_by_itself_is_told_from_what_was_cut() -> None:
    eos_ids = frozenset({2})
    best = found(of_table(0), BeamSettings(4, STEPS, eos_ids))
    assert {one.is_ended for one in best} == {False, True}
    for one in best:
        assert one.is_ended == (one.token_ids[-1] in eos_ids)
        assert one.is_ended or len(one.token_ids) == STEPS


def test_beams_are_the_tokens_that_were_chosen_for_them() -> None:
    search, following = BeamSearch(BeamSettings(3, STEPS)), of_table(1)
    before = search.beams
    while True:
        chosen = search.advance(following(list(search.beams)).log_softmax(-1))
        if search.is_over:
            break
        assert search.beams == tuple(
            (*before[parent], token) for parent, token in zip(chosen.parents, chosen.token_ids, strict=True)
        )
        before = search.beams
    assert chosen == Chosen()
    assert search.beams == ()


def test_misuse_is_refused_and_changes_nothing() -> None:
    search, rows = BeamSearch(BeamSettings(2, 3, frozenset({1, 2}))), torch.randn(2, VOCABULARY)
    for wrong in (rows, rows[:1, :5], rows[0]):
        with pytest.raises(ValueError, match="beams"):
            search.advance(wrong)
    with pytest.raises(ValueError, match="not over"):
        search.best()
    assert search.beams == ((),)
    while not search.is_over:
        search.advance(rows[: len(search.beams)].log_softmax(-1))
    with pytest.raises(ValueError, match="0 beams"):
        search.advance(rows)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"max_tokens": 0}, {"early_stopping": "always"}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        BeamSettings(**{"width": 2, "max_tokens": 4, **wrong})
