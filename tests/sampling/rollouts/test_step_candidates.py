"""Candidates of a step: one prefix, a score each, one of them taken; each is trained once, under what it was read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from tests.sampling.rollouts.branching_session import kinds, pool, session, tasks_of, tokens_of

import gxpo
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Reply
from gxpo.sampling.rollouts.step_candidates import StepCandidates, pick
from gxpo.training.models import tiny_model

SCORES = str(Path(__file__).with_name("candidate_scores.py"))


def length(candidates):
    return [float(len(x.action)) for x in candidates]


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def steps():
    with pool() as envs:
        yield envs


# ---------------------------------------------------------------- which one is taken
def test_the_card():
    # A = [.999999, 0, -.999999]; softmax(A / .7) = .770960, .184762, .044278
    edges = [0.0, 0.770959, 0.770962, 0.955721, 0.955724, 0.999999]
    assert [pick([1.0, 0.0, -1.0], 0.7, u) for u in edges] == [0, 0, 1, 1, 2, 2]


def test_scores_that_are_equal_or_unknown():
    assert [pick([0.3, 0.3], 0.7, u) for u in (0.49, 0.51)] == [0, 1]
    assert [pick([None, 2.0, None, 2.0], 0.7, u) for u in (0.49, 0.51)] == [1, 3]
    assert pick([None, None], 0.7, 0.1) is None and pick([None, 5.0], 0.7, 0.9) == 1
    assert pick([0.0, 3.0, 3.0], 0.0, 0.9) == 1 and pick([1.0, 2.0], 0.7, math.nextafter(1.0, 0.0)) == 1


# ---------------------------------------------------------------- what is grown
@pytest.mark.parametrize("context", ["full", "window"])
def test_candidates_are_turns_under_the_prefix_that_was_taken(model, steps, context):
    s = session(model, steps, rules=EpisodeRules(5, context, 1))
    forest = s.score(StepCandidates(3, chains=2, score=length).grow(tasks_of(s), s))
    assert forest.n_steps == forest.n_trajectories and len(set(forest.id)) == forest.n_trajectories
    assert Counter(forest.group) == dict.fromkeys(set(forest.group), 3)
    actual = TorchLearner(model, lr=0.0).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    assert int(forest.n_entries) == s.budget.generated_tokens == int(forest.trainable.sum())
    assert forest.outcome.tolist() == [float(len(s.decode(forest.action(r)))) for r in range(forest.n_steps)]
    rows = defaultdict(list)
    for r, info in enumerate(forest.info):
        rows[forest.task[r], info["chain"], info["turn"]].append(r)
    for (task, chain, turn), own_value in rows.items():
        assert {int(forest.prompt_node[r]) for r in own_value} == {int(forest.prompt_node[own_value[0]])}  # stored once
        following = rows.get((task, chain, turn + 1))
        if following is None or context == "window":
            continue
        prefix = forest.context(int(forest.prompt_node[own_value[0]]))
        longer = forest.context(int(forest.prompt_node[following[0]]))
        assert longer[: len(prefix)] == prefix
        behind = [r for r in own_value if longer[len(prefix) :][: len(tokens_of(forest, r))] == tokens_of(forest, r)]
        assert behind and all(forest.info[r]["end"] is None for r in behind[:1])


def test_environments_stand_where_the_taken_steps_lead(model, steps):
    s = session(model, steps)
    forest = StepCandidates(3, temperature=0.0, score=length).grow(tasks_of(s), s)
    for task in set(forest.task):
        text = steps.reset({"again": int(task.split("/")[1])})["again"]
        turn = 0
        while own_values := [
            r for r in range(forest.n_steps) if forest.task[r] == task and forest.info[r]["turn"] == turn
        ]:
            assert {forest.state_names[int(forest.step_state[r])] for r in own_values} == {text.state}
            best = max(own_values, key=lambda r: float(forest.outcome[r]))  # the first of the best
            assert not text.done
            text = steps.step({"again": Reply(s.decode(forest.action(best)))})["again"]
            assert text.state == forest.final_state[best] and text.reward == float(forest.step_reward[best])
            assert forest.info[best]["end"] == ("done" if text.done else "turns" if turn == 5 else None)
            turn += 1
        steps.finish(["again"])


def test_it_depends_on_nothing_else_in_the_batch(model, steps):
    part = StepCandidates(3, chains=2, score=length)
    together = session(model, steps)
    both = kinds(part.grow(tasks_of(together), together))
    for seed in (0, 1, 2):
        single_session = session(model, steps)
        own_kinds = kinds(part.grow(tasks_of(single_session, (seed,)), single_session))
        assert own_kinds == {name: kind for name, kind in both.items() if f"steps/{seed}/" in name}
    assert len(set(together.streams)) == len(together.streams)


def test_group_relative_credit_is_that_of_the_step(model, steps):
    s = session(model, steps)
    forest = s.score(StepCandidates(4, score=f"{SCORES}:vowels").grow(tasks_of(s), s))
    credit = gxpo.method("slate", {"rollout.score": length}).advantages(forest)
    for group in set(forest.group):
        own_forests = [r for r, g in enumerate(forest.group) if g == group]
        scores = [float(forest.outcome[r]) for r in own_forests]
        mean = sum(scores) / 4
        std = math.sqrt(sum((x - mean) ** 2 for x in scores) / 3)
        for r, score in zip(own_forests, scores, strict=True):
            expected = (score - mean) / (std + 1e-6) if max(scores) > min(scores) else 0.0
            assert credit[forest.path_of(r)].tolist() == pytest.approx([expected] * len(tokens_of(forest, r)))


# ---------------------------------------------------------------- scores
def test_the_environment_scores_what_it_pays_for(model):
    with pool(start=1) as envs:  # one letter is all that is asked for
        s = session(model, envs)
        forest = s.score(StepCandidates(4, chains=3).grow(tasks_of(s, (0,)), s))
    assert set(forest.outcome.tolist()) == {0.0, 1.0} and torch.equal(forest.outcome, forest.step_reward)
    ended = torch.tensor([info["end"] is not None for info in forest.info])
    assert torch.equal(forest.success.isfinite(), ended)
    assert torch.equal(forest.outcome[ended], forest.success[ended])


def test_candidates_without_step_rewards_get_the_final_verdict(model):
    with pool(start=1, pays=False) as envs:
        s = session(model, envs)
        forest = s.score(StepCandidates(4).grow(tasks_of(s, (0,)), s))
    done = [info["end"] == "done" for info in forest.info]
    assert any(done) and forest.outcome.tolist() == [float(d) for d in done]


def test_candidate_without_a_score_is_neither_trained_nor_taken(model, steps):
    def seldom(candidates):
        return [None if x.action < "n" else 1.0 for x in candidates]

    s = session(model, steps)
    forest = s.score(StepCandidates(3, score=seldom).grow(tasks_of(s), s))
    unknown = [s.decode(forest.action(r)) < "n" for r in range(forest.n_steps)]
    assert any(unknown) and forest.scored.tolist() == [not u for u in unknown]
    nobody = session(model, steps)
    none = StepCandidates(3, score=lambda candidates: [None] * len(candidates)).grow(tasks_of(nobody), nobody)
    assert none.n_trajectories == 9  # nothing to go on from


def test_what_is_scored_is_what_was_read_written_and_answered(model, steps):
    seen_candidates = []

    def note(candidates):
        seen_candidates.extend(candidates)
        return [0.0] * len(candidates)

    s = session(model, steps)
    forest = StepCandidates(2, score=note).grow(tasks_of(s, (0,)), s)
    assert len(seen_candidates) == forest.n_trajectories
    for r, x in enumerate(seen_candidates):
        assert x.read == s.decode(forest.context(int(forest.prompt_node[r]))) and x.turn == forest.info[r]["turn"]
        assert x.action == s.decode(forest.action(r)) and x.answer.state == forest.final_state[r]
        assert x.task.id == "steps/0"


def test_candidates_whose_environment_breaks_are_unscored(model):
    with pool(crash=1, start=3) as envs:  # seed 0 raises at the second action
        s = session(model, envs)
        forest = s.score(StepCandidates(3, score=length).grow(tasks_of(s, (0, 1)), s))
    broken = [info["end"] == "raised" for info in forest.info]
    assert sum(broken) == 3 and forest.scored.tolist() == [not b for b in broken]
    assert {forest.task[r] for r, b in enumerate(broken) if b} == {"steps/0"}


# ---------------------------------------------------------------- refusals
def test_refusals(model, steps):
    for options, message in [
        ({"candidates": 0}, "rollout.candidates is 0; it is 1 or more"),
        ({"chains": 0}, "rollout.chains is 0; it is 1 or more"),
        ({"score": "judge"}, r"rollout.score is 'judge'; it must be 'reward' or FILE.py:NAME"),
        ({"score": 3}, r"rollout.score is 3; it must be 'reward', FILE.py:NAME or a function"),
    ]:
        with pytest.raises(ConfigError, match=message):
            StepCandidates(**options)
    s = session(model, steps)
    with pytest.raises(GxpoError, match=r"rollout.score gave 1 scores of 15 candidates: one of each is needed"):
        StepCandidates(score=f"{SCORES}:too_few").grow(tasks_of(s), s)
    with pytest.raises(ConfigError, match=r"rollout.score=.*candidate_scores.py:nobody: .* has no 'nobody'"):
        StepCandidates(score=f"{SCORES}:nobody").grow(tasks_of(s), s)


# ---------------------------------------------------------------- errata
def test_candidates_that_are_not_taken_are_trained(model, steps):
    """SLATE's released trainer never reads the candidates' advantages: it trains the episode that was taken. Here all
    of a step's candidates have credit and gradient: the best and the worst of three, whichever is taken."""
    s = session(model, steps)
    forest = s.score(StepCandidates(3, score=f"{SCORES}:vowels").grow(tasks_of(s), s))
    credit = gxpo.method("slate").advantages(forest)
    for group in set(forest.group):
        own_forests = [r for r, g in enumerate(forest.group) if g == group]
        differs = len({float(forest.outcome[r]) for r in own_forests}) > 1
        signs = {
            bool(credit[forest.path_of(r)][0] > 0) for r in own_forests if credit[forest.path_of(r)].abs().max() > 0
        }
        assert signs == ({True, False} if differs else set())
