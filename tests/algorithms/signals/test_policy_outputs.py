"""Signals from the policy's log-probs: inner layers, means over the vocabulary, prompts."""

from __future__ import annotations

import itertools
import math
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import VOCABULARY, clean_llama, random_forest

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.baselines import unfinished_by_rank
from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.algorithms.signals.policy_outputs import (
    dominance_rank,
    layer_logprob,
    mean_logprob,
    prompt_confidence,
    prompts_of,
    structural_entropy,
)
from gxpo.base.errors import ConfigError, GxpoError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

LayerLogprob = kind_of(layer_logprob)


class Counting(TorchLearner):
    calls = 0

    def outputs(self, *args, **settings):
        Counting.calls += 1
        return super().outputs(*args, **settings)


def test_it_is_the_layers_own_as_long_as_it_is_asked_for():
    forest, learner = random_forest(1), Counting(clean_llama(num_hidden_layers=4), lr=0.0)
    target = learner.outputs(forest, ("logprob@2",))["logprob@2"]
    Counting.calls = 0
    for part in (LayerLogprob(layer=2, steps=3), LayerLogprob(layer=0.5, steps=3)):
        (name,) = part.provides
        for step, is_known in ((1, True), (3, True), (4, False)):
            tools = SignalTools(learner, lambda ids: "", 2, step, 0)
            actual = part.compute(forest, Signals.of(forest), tools)[name]
            assert torch.equal(actual, target) if is_known else bool(actual.isnan().all())
    assert Counting.calls == 4  # nothing is computed once it is over
    assert LayerLogprob(layer=2).provides == ("logprob@2",) and LayerLogprob(layer=0.5).provides == ("logprob@0.5",)
    tools = SignalTools(learner, lambda ids: "", 2, 10**6, 0)
    assert torch.equal(LayerLogprob(layer=2).compute(forest, Signals.of(forest), tools)["logprob@2"], target)


def test_layers_that_are_not_there():
    for wrong in ({"layer": 0}, {"layer": 1.5}, {"layer": 0.0}, {"steps": -1}):
        with pytest.raises(ConfigError, match="layer"):
            LayerLogprob(**wrong)  # type: ignore[arg-type]
    forest, learner = random_forest(1), TorchLearner(clean_llama(), lr=0.0)
    with pytest.raises(ModelError, match="has layers 1 to 2"):
        LayerLogprob(layer=3).compute(forest, Signals.of(forest), SignalTools(learner, lambda ids: "", 2, 1, 0))


@pytest.mark.parametrize("normed", [True, False])
def test_the_objective_reads_what_the_signal_gives(normed, tmp_path):
    keys = {"objective.final_norm": normed, "signal.layer_logprob.final_norm": normed, "signal.layer_logprob.steps": 1}
    m = gxpo.method("bupo", keys)
    assert m.signals["layer_logprob"].provides == m.terms["policy"].needs
    run = gxpo.train("tiny:cold", "arithmetic", m, 1, lambda tokens: float(len(tokens)), out=tmp_path / "run",
                     set={"tasks.per_step": 2, "sampling.max_new_tokens": 4, "eval.tasks": 2})  # fmt: skip
    assert [row["inner_layer"] for row in run.metrics] == [1.0]


MeanLogprob = kind_of(mean_logprob)


def test_it_is_what_the_learner_says_under_that_name():
    forest, asked_names = random_forest(3), []
    message = torch.linspace(-9.0, -7.0, forest.n_entries, dtype=torch.float64)

    def outputs(given: Any, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        asked_names.append((given, names))
        return {"mean_logprob": message}

    tools: Any = SimpleNamespace(learner=SimpleNamespace(outputs=outputs))
    actual = MeanLogprob().compute(forest, {}, tools)
    assert set(actual) == set(MeanLogprob().provides) == {"start_mean_logprob"}
    assert torch.equal(actual["start_mean_logprob"], message)
    assert len(asked_names) == 1 and asked_names[0][0] is forest and asked_names[0][1] == ("mean_logprob",)


def test_of_a_model_it_is_below_that_of_the_uniform_distribution():
    forest = random_forest(4)
    tools: Any = SimpleNamespace(learner=TorchLearner(clean_llama(vocab_size=64), lr=0.0))
    actual = MeanLogprob().compute(forest, {}, tools)["start_mean_logprob"]
    assert actual.shape == (forest.n_entries,) and bool((actual < -math.log(64)).all())


PromptConfidence = kind_of(prompt_confidence)

LEARNER = TorchLearner(clean_llama(), lr=0.0)
TOOLS = SimpleNamespace(learner=LEARNER, decode=str, blank_id=0, step=1, seed=0)


def confidence(ids):
    """By the model itself, a token at a time."""
    if len(ids) < 2:
        return 1.0
    with torch.no_grad():
        logprob = LEARNER.model(torch.tensor([ids])).logits[0].double().log_softmax(1)
    return float(torch.stack([logprob[i, ids[i + 1]] for i in range(len(ids) - 1)]).mean().exp())


def record(i, prompt, **fields):
    turn = {"action": [3, 4], "logprob": [-1.0, -1.0]}
    own_fields = {"schema": "gxpo.rollouts/1", "group": f"g{i % 2}", "id": f"t{i}", "prompt": prompt, "turns": [turn]}
    return own_fields | {"reward": 1.0} | fields


def test_it_is_the_models_own_geometric_mean():
    prompts = [[1, 5, 6, 7], [1, 5, 6, 7], [1, 5, 9], [2], [1, 5, 6]]
    forest = Forest.from_records([record(i, p, sampling={"temperature": 0.5}) for i, p in enumerate(prompts)])
    actual = PromptConfidence().compute(forest, {}, TOOLS)["prompt_confidence"]
    assert actual.tolist() == pytest.approx([confidence(p) for p in prompts], abs=1e-9)
    assert len(prompts_of(forest)[0]) < len(prompts), "a prompt that answers share is read once"


@pytest.mark.parametrize("seed", range(6))
def test_of_any_forest_it_is_what_stands_before_the_first_action(seed):
    forest = random_forest(seed)
    actual = PromptConfidence().compute(forest, {}, TOOLS)["prompt_confidence"]
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r)
        expected = 1.0
        if len(entries):
            node = int(forest.token_node[forest.path_token[entries[0]]])
            expected = confidence(forest.context(int(forest.parent[node])))
        assert float(actual[r]) == pytest.approx(expected, abs=1e-9)


def test_order_does_not_matter_and_nothing_gives_nothing():
    forest = Forest.from_records([record(i, [1, 2 + i % 3, i % VOCABULARY]) for i in range(6)])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    actual = PromptConfidence().compute(forest, {}, TOOLS)["prompt_confidence"]
    again = PromptConfidence().compute(forest.select(order), {}, TOOLS)["prompt_confidence"]
    assert torch.allclose(again, actual[order], atol=1e-12)
    assert PromptConfidence().compute(Forest.from_records([]), {}, TOOLS)["prompt_confidence"].shape == (0,)


def test_text_without_ids_is_refused():
    turn = {"action_text": "yes"}
    text = {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt_text": "how many?", "turns": [turn]}
    with pytest.raises(GxpoError, match="needs token ids"):
        PromptConfidence().compute(Forest.from_records([text | {"reward": 1.0}]), {}, TOOLS)


CARD = [(2.0, 0.5), (1.5, 0.6), (2.2, 0.7), (1.0, 0.4)]


def ranks(pairs: list[tuple[float, float]], group: list[int] | None = None, where: list[bool] | None = None) -> list:
    peak, mean = (torch.tensor([p[i] for p in pairs], dtype=torch.float64) for i in (0, 1))
    ids = torch.tensor(group or [0] * len(pairs))
    counts = torch.ones_like(ids).bool() if where is None else torch.tensor(where)
    return dominance_rank(peak, mean, ids, counts).tolist()


def test_the_cards_numbers_with_mid_ranks() -> None:
    # the first dominates the second alone: 1, 0, 0, 0. By sort order 1, .666667, .333333, 0: the three of 0 share 1/3
    assert ranks(CARD) == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3])


def test_who_does_not_count_and_who_is_alone_has_nothing() -> None:
    assert ranks(CARD, where=[True, True, False, False]) == [1.0, 0.0, 0.0, 0.0]
    assert ranks(CARD, group=[0, 1, 2, -1]) == [0.0] * 4
    assert ranks([(1.0, 0.5), (1.0 + 1e-7, 0.5 - 1e-7)]) == [0.5, 0.5]  # equal but for rounding


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.25, 0.5, 0.75])), min_size=2, max_size=7)
)
def test_it_is_what_a_loop_says(pairs: list[tuple[float, float]]) -> None:
    n = len(pairs)
    wins = [sum(p > q and m < k for q, k in pairs) for p, m in pairs]
    below = [sum(w > v for v in wins) + (sum(w == v for v in wins) - 1) / 2 for w in wins]
    actual = ranks(pairs)
    assert actual == pytest.approx([b / (n - 1) for b in below]) and sum(actual) == pytest.approx(n / 2)
    monotone = ranks([(p**3, m**3) for p, m in pairs])
    assert monotone == pytest.approx(actual)


def answers(truncated: list[bool], success: list[float], lengths: tuple[int, ...] = (4, 4, 4, 4)) -> Forest:
    forest = Forest.from_completions([[1]], [[[2] * n for n in lengths]], rewards=[success], truncated=truncated)
    return forest.replace(success=torch.tensor(success, dtype=torch.float64))


def test_the_peak_is_the_mean_of_the_largest_share() -> None:
    forest = answers([True, True, True, False], [0.0] * 4, (5, 5, 2, 5))
    entropy = torch.tensor([0.1, 3.0, 0.1, 0.1, 0.1, 0.9, 1.0, 0.9, 0.9, 0.9, 2.0, 2.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    # peak of one token: 3.0, 1.0, 2.0; means .68, .92, 2.0: the first dominates both; two and three nobody
    assert structural_entropy(forest, entropy, share=0.2).tolist() == pytest.approx([1.0, 0.25, 0.25, 0.0])
    # half of five, two tokens: 1.55, 0.95, and of two tokens one: 2.0. The first dominates the second alone
    assert structural_entropy(forest, entropy, share=0.5).tolist() == pytest.approx([1.0, 0.25, 0.25, 0.0])
    full_structural_entropy = structural_entropy(
        forest, entropy, share=1.0
    )  # peak and mean are one: nobody dominates anybody
    assert full_structural_entropy.tolist() == pytest.approx([0.5, 0.5, 0.5, 0.0])


def test_truncated_wrong_answers_rank_below_right_ones() -> None:
    part = advantage(unfinished_by_rank, first_reward=0.1, scale="none")
    rank = torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64)
    for truncated, success, expected in (
        ([True] * 4, [0.0] * 4, [0.1, 0.1 / 3, 0.1 / 3, 0.1 / 3]),
        ([True, True, False, True], [0.0, 1.0, 0.0, 1.0], [0.1, 1.0, 0.0, 1.0]),
        ([False] * 4, [0.0] * 4, [0.0] * 4),
    ):
        forest = answers(truncated, success)
        actual = part(forest, {"structural_rank": rank}, 0)[::4].tolist()
        assert actual == pytest.approx([e - fmean(expected) for e in expected], abs=1e-12)
        assert all(a > b for (a, s), (b, t) in itertools.product(zip(actual, success, strict=True), repeat=2) if s > t)


def test_below_zero_running_on_earns_less_than_a_wrong_end() -> None:
    rank = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    forest = answers([True, True, False, False], [0.0, 0.0, 0.0, 1.0])
    for options, expected in (
        ({}, [0.1, 0.0, 0.0, 1.0]),
        ({"last_reward": -0.1, "first_reward": 0.0}, [0.0, -0.1, 0.0, 1.0]),
    ):
        actual = advantage(unfinished_by_rank, scale="none", **options)(forest, {"structural_rank": rank}, 0)[::4]
        assert actual.tolist() == pytest.approx([e - fmean(expected) for e in expected], abs=1e-12)


@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_whose_answers_are_all_cut_off_learns(tmp_path) -> None:
    keys = {"tasks.per_step": 2, "rollout.group_size": 4, "sampling.max_new_tokens": 3, "eval.tasks": 1}
    run = gxpo.train("tiny:cold", "arithmetic", "r3", 1, lambda completion: 0.0, out=tmp_path / "run", set=keys)
    assert run.metrics[0]["grad_norm"] > 0 and run.metrics[0]["truncated_rate"] > 0.5
