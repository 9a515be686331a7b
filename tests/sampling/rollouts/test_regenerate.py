"""Failing steps written anew: a second group of single actions, judged by whether they work."""

from __future__ import annotations

import json

import pytest
import torch
from tests.sampling.rollouts.acting_session import STEPS, acting, read, seeded, turns_of

from gxpo.algorithms.credit import GroupRelative
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Sampling
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.regenerate import Regenerate
from gxpo.training.models import tiny_model

FULL, WINDOW = EpisodeRules(20), EpisodeRules(20, "window", 1)


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def count():
    """Two actions with an x in them reach the end; others are malformed."""
    with EnvPool(source(STEPS, {"start": 2, "good": "x", "max_turns": 4}), workers=0) as pool:
        yield pool


def says(*of_attempt, anew=lambda j: "x"):
    """Attempt i says of_attempt[i][t] in turn t; written anew, a step is anew(j)."""

    def say(context, key):
        if key.path:
            return anew(key.path[-1])
        own_of_attempt = of_attempt[key.attempt % len(of_attempt)]
        return own_of_attempt[min(key.turn, len(own_of_attempt) - 1)]

    return say


def grown(envs, say, part, seeds=(0,), rules=FULL, tokens=24):
    s = acting(envs, say, rules=rules, sampling=Sampling(max_new_tokens=tokens))
    return s, part.grow(seeded(s, *seeds), s)


@pytest.mark.parametrize("rules", [FULL, WINDOW], ids=["full", "window"])
def test_the_first_failing_step_is_a_group_of_its_own(count, rules):
    say = says(["x"], ["x", "1", "2", "x"], anew=lambda j: "x" if j % 2 else "1")
    s, forest = grown(count, say, Regenerate(group_size=2, samples=4), rules=rules)
    assert forest.group == ["s1/steps/0"] * 2 + ["s1/steps/0/1/t1"] * 4
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    failing = turns_of(forest, 1)[1]
    for r in range(2, 6):
        (step,) = turns_of(forest, r)
        assert step["context"] == failing["context"] and step["trained"] == [True] and step["state"] == "1"
        assert not set(step["tokens"]) & set(failing["tokens"])
        assert forest.info[r]["regenerated"] == "s1/steps/0/1" and forest.info[r]["turn"] == 1
    assert not bool(forest.success[2:].isfinite().any()) and forest.success[:2].tolist() == [1.0, 1.0]
    # [0, 1, 0, 1] about .5 with standard deviation .57735
    credit = GroupRelative()(forest, {}, 0)
    per_row = [credit[forest.path_of(r)].tolist() for r in range(6)]
    assert [x[0] for x in per_row[2:]] == pytest.approx([-0.866024, 0.866024] * 2, abs=1e-6)
    assert per_row[0][0] == per_row[1][0] == 0.0
    assert s.budget.generated_tokens == forest.n_entries and s.budget.rollouts == 2 + 4


def test_the_reasoning_before_the_call_is_kept(count):
    """Five tokens of "thinking 1" and its end are taken off: "thin" stands in the prompt of what is written anew."""
    say = says(["thinking 1", "x"], anew=lambda j: "gs" if j else "x")
    s, forest = grown(count, say, Regenerate(group_size=1, samples=2, cut_tokens=7), tokens=12)
    assert forest.group[1:] == ["s1/steps/0/0/t0"] * 2 and forest.outcome[1:].tolist() == [1.0, 0.0]
    for r, text in ((1, "x"), (2, "gs")):
        (step,) = turns_of(forest, r)
        assert step["context"] == turns_of(forest, 0)[0]["context"] + "thin" and step["said"] == text
        assert forest.info[r]["kept"] == 4
    requests, sampling = s.engine.calls[-1]
    assert sampling.max_new_tokens == 12 - 4 and read(requests[0].prompt).endswith("thin") and len(requests) == 1


def test_no_failing_step_is_grpo(count):
    s, forest = grown(count, says(["x"]), Regenerate(group_size=2))
    other, plain = grown(count, says(["x"]), Independent(2))
    assert forest.to_records() == other.score(plain).to_records() and s.engine.streams == other.engine.streams
    assert grown(count, says(["1"]), Regenerate(group_size=1, samples=0))[1].n_trajectories == 1


def test_as_many_prompts_as_tasks_and_no_more(count):
    part = Regenerate(group_size=3, samples=2)
    _, forest = grown(count, says(["1"], ["2"], ["3"]), part, seeds=(0, 2))
    assert forest.n_trajectories == 6 + 2 * 2 and len(set(forest.group)) == 2 + 2
    _, more = grown(count, says(["1"], ["2"], ["3"]), Regenerate(group_size=3, samples=2, prompts=9), seeds=(0, 2))
    assert len(set(more.group)) == 2 + 6
    _, again = grown(count, says(["1"], ["2"], ["3"]), part, seeds=(0, 2))
    assert again.to_records() == forest.to_records()


def test_streams_differ_and_the_episodes_are_not_touched(count):
    s, forest = grown(count, says(["1", "x"], ["1"]), Regenerate(group_size=2, samples=3, prompts=4))
    assert len(set(s.engine.streams)) == len(s.engine.streams)
    _, plain = grown(count, says(["1", "x"], ["1"]), Independent(2))
    assert [t["said"] for r in (0, 1) for t in turns_of(forest, r)] == [
        t["said"] for r in (0, 1) for t in turns_of(plain, r)
    ]


@pytest.mark.parametrize("rules", [EpisodeRules(4), EpisodeRules(4, "window", 0)], ids=["full", "window"])
def test_the_learner_reads_what_was_sampled(model, rules):
    with EnvPool(source("keydoor", {"style": "bare", "size": 4, "max_turns": 4}), workers=0) as pool:
        s = acting(pool, model=model, rules=rules, sampling=Sampling(max_new_tokens=3))
        forest = Regenerate(group_size=2, samples=3, cut_tokens=2).grow(seeded(s, 1, 2), s)
    assert forest.n_trajectories == 4 + 6 and all(info["kept"] == 1 for info in forest.info[4:])
    actual = TorchLearner(model, lr=1e-3).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    assert bool(forest.path_trainable.all())
    plain = [json.dumps(list(f.to_records()), default=str) for f in (forest, Forest.from_records(forest.to_records()))]
    assert plain[0] == plain[1]


def test_what_breaks_is_unscored():
    """Seed 0 breaks at every second action: what is written anew after the first can't be judged."""
    with EnvPool(source(STEPS, {"start": 2, "good": "x", "crash": 1}), workers=0) as pool:
        _, forest = grown(pool, says(["1", "x"]), Regenerate(group_size=1, samples=2))
    assert not bool(forest.scored.any()) and forest.n_trajectories == 1


@pytest.mark.parametrize("fields", [{"group_size": 0}, {"samples": -1}, {"cut_tokens": 0}, {"prompts": -1}])
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(fields))}"):
        Regenerate(**fields)


# ---------------------------------------------------------------- errata
def test_a_cut_prefix_keeps_the_ids_that_were_sampled(count):
    """The reference tokenises the text of a cut prefix again, which can give other ids. Here the ids stay: a policy
    that spelt a word letter by letter is asked to go on after those letters."""
    s, forest = grown(count, says(["letters1"]), Regenerate(group_size=1, samples=2, cut_tokens=3))
    sampled = forest.action(0)
    requests, _ = s.engine.calls[-1]
    assert list(requests[0].prompt[-len(sampled) + 3 :]) == sampled[:-3]
