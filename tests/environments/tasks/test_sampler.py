"""Task samplers: the weights that functions give to measured success rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.environments.tasks.sampled_sources import RIGHT, Listed, answers, chances, sampled_source, tensor

import gxpo
from gxpo.base.errors import ConfigError, TaskError
from gxpo.environments.tasks import sampler
from gxpo.environments.tasks.sampler import mix_uniform
from gxpo.parts.registry import SAMPLERS
from gxpo.parts.task_memory import TaskMemory


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Beta means .1 .2 .5 .8 .9: p (1 - p) = .09 .16 .25 .16 .09, sum .75; half of each and a tenth
        ("variance", [0.16, 0.206667, 0.266667, 0.206667, 0.16]),
        ("hardest", [0.28, 0.26, 0.2, 0.14, 0.12]),  # .9 .8 .5 .2 .1, sum 2.5
    ],
)
def test_counts_0_1_4_7_and_8_of_8_half_uniform(kind: str, expected: list[float]) -> None:
    source = sampled_source(kind, uniform_share=0.5)
    source.observe(answers(RIGHT))
    assert chances(source) == pytest.approx(expected, abs=1e-6)


def test_history_resampling_keeps_what_is_mixed_or_all_wrong() -> None:
    """SRPO's card: pass rates 1, 1, .5, 0 keep .5 and 0; of a: 1 1, b: 1 0, c: 0 0 they are b and c."""
    source = sampled_source("drop_solved", Listed("abcd"), epochs=True)
    source.observe(answers({"a": 8, "b": 8, "c": 4, "d": 0}))
    assert chances(source) == [0.0, 0.0, 0.5, 0.5]
    source = sampled_source("drop_solved", Listed("abc"), epochs=True)
    source.observe(answers({"a": 2, "b": 1, "c": 0}, 2))
    assert chances(source) == [0.0, 0.5, 0.5]


def test_the_hardest_half_of_four_rates() -> None:
    """DRIVE's card: rates .9 .2 .5 0 keep 0 and .2, once all were drawn; then the harder of these."""
    rate = tensor(0.9, 0.2, 0.5, 0.0)
    keep = sampler.keep_hardest
    assert keep(rate, tensor(1, 1, 1, 1), phases=1).tolist() == [0, 1, 0, 1]
    assert keep(rate, tensor(1, 2, 1, 2)).tolist() == [0, 0, 0, 1]
    assert keep(rate, tensor(9, 9, 9, 9)).tolist() == [0, 0, 0, 1]
    assert keep(rate, tensor(0, 9, 9, 9)).tolist() == [1, 1, 1, 1]


def test_three_rates_with_a_mean_of_seven_tenths_are_mastery() -> None:
    """CRAFT-GUI's card: .6 .7 .8, whose sum is 2.0999999999999996."""
    memory = TaskMemory(window=3, rows={"x": [0.6, 0.7, 0.8]})
    recent = tensor(*memory.predict(["x"]), 0.5)
    assert sum([0.6, 0.7, 0.8]) < 2.1
    assert sampler.first_unmastered(recent, mastery_rate=0.7).tolist() == [0, 1]
    assert sampler.first_unmastered(tensor(0.69999, 0.5), mastery_rate=0.7).tolist() == [1, 0]
    assert sampler.first_unmastered(tensor(0.9, 0.9)).tolist() == [0, 1]  # all mastered: the last


def test_the_softmax_of_the_std_and_the_gaussian() -> None:
    """CurES's card: temperature .1, rates .1 .5 .9; a Gaussian of width .2 and .1."""
    actual = mix_uniform(sampler.std(tensor(0.1, 0.5, 0.9), temperature=0.1), 0.0)
    assert actual.tolist() == pytest.approx([0.106507, 0.786986, 0.106507], abs=1e-6)
    assert sampler.std(tensor(0.25, 0.5)).tolist() == pytest.approx([0.433013, 0.5], abs=1e-6)
    rates = tensor(0.0, 0.25, 0.5, 0.75, 1.0)
    target = [0.043937, 0.457833, 1, 0.457833, 0.043937]
    assert sampler.gaussian(rates, width=0.2).tolist() == pytest.approx(target, abs=1e-6)
    assert float(sampler.gaussian(rates, width=0.1)[0]) == pytest.approx(3.73e-6, abs=1e-8)


def test_groups_whose_outcomes_and_likelihoods_differ() -> None:
    """Variance .25 of half-right groups; of log-probs -1 and -2, half each, .25: a product of stds of .25."""
    source = sampled_source("disagreement", Listed("abc"))
    forest = answers({"a": 4, "b": 8}, 8)
    token = torch.arange(forest.n_tokens)
    messages = forest.replace(behaviour_logprob=-1.0 - (token % 2).double())
    source.observe(messages)
    actual = source.rates.column("outcome_variance", ["a", "b", "c"]).tolist()
    assert actual[:2] == [0.25, 0.0] and actual[2] != actual[2]
    spread = source.rates.column("logprob_variance", ["a"]).item()
    assert spread == pytest.approx(0.25, abs=1e-12)
    assert chances(source) == pytest.approx([0.5, 0.0, 0.5], abs=1e-12)  # what is not known counts as the most


@pytest.mark.parametrize("kind", sorted(SAMPLERS))
def test_chances_of_every_score_add_up_to_one_or_zero(kind: str) -> None:
    empty = {"disagreement", "drop_solved"}  # of equal log-probs, and of tasks that are all solved, nothing is left
    for uniform in (0.0, 0.1):
        source = sampled_source(kind, Listed("abcdef"), uniform_share=uniform)
        for right in ({}, RIGHT, dict.fromkeys("abcdef", 8), dict.fromkeys("abcdef", 0)):
            if right:
                source.observe(answers(right))
            actual = source.chances()
            total = 0.0 if kind in empty and not uniform and not actual.any() else 1.0
            assert bool((actual >= 0).all()) and float(actual.sum()) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"tasks.sampler": "varaince"}, "did you mean 'variance'"),
        ({"tasks.sampler": "variance", "tasks.sampler.uniform_share": 2.0}, r"tasks\.sampler\.uniform_share"),
        (
            {"tasks.sampler": "variance", "tasks.sampler.epochs": True, "tasks.sampler.uniform_share": 0.1},
            "epochs=true",
        ),
        ({"tasks.sampler": "band", "tasks.sampler.low": 0.9, "tasks.sampler.high": 0.1}, "above high=0.1"),
        ({"tasks.sampler": lambda speed: speed}, "reads 'speed'"),
        ({"tasks.sampler.uniform_share": 0.5}, r"unknown key 'tasks\.sampler\.uniform_share'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        gxpo.method("grpo", keys)


def test_a_score_of_the_users_must_give_weights() -> None:
    for wrong, message in ((lambda rate: rate[:1], "a weight for each of 5"), (lambda rate: -rate, "negative")):
        with pytest.raises(TaskError, match=message):
            sampled_source(wrong).draw(1, 1)
