"""Hints, drafts, baselines and group sizes of a team: its roles read what one agent would."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.sampling.rollouts.retry_parts import BestDraft, GrowingHint, OversampleForVote, RetryUntilSolved
from tests.sampling.rollouts.team_session import TeamSession, decoded
from tests.sampling.rollouts.test_team import ADD, PAIR, SUB, scripted, texts

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.baseline import BaselineRollouts
from gxpo.sampling.rollouts.dynamic_sampling import DynamicSampling

TEAM: Any = PAIR  # a graph in Python; in a configuration a name
YES = (r"\?$", "yes")


class Known(TeamSession):
    """A score that is known is kept, as the trainer's session keeps it."""

    def score(self, forest: Forest, texts: Any = None) -> Forest:
        return forest if bool(forest.scored.all()) else super().score(forest, texts)


def test_a_hint_is_read_by_every_role_and_trained_by_none() -> None:
    task = dataclasses.replace(ADD, info={"hints": ["=2"]})
    session = Known(scripted(YES, (r"=2", "2"), ("", "3")))
    forest = GrowingHint(2, template="{prompt}{hint}", team=TEAM).grow(session.asked(task), session)
    assert forest.id == ["s3/add/hint1/0", "s3/add/hint1/1"] and forest.success.tolist() == [1.0, 1.0]
    assert texts(forest, 0) == [("solver", "1+1=", "2"), ("verifier", "1+1=2?", "yes")]
    sampled = forest.in_context("sampled")
    read = [decoded(sampled.context(int(sampled.parent[sampled.step_nodes(s)[0]]))) for s in (0, 1)]
    assert read == ["1+1==2", "1+1==22?"] and forest.origin == ["hint"] * 2


def test_the_best_answer_of_a_team_is_shown_to_it() -> None:
    session = Known(scripted(YES, ("draft", "2"), ("", "{k}")))
    forest = BestDraft(1, n_drafts=3, template="{prompt} draft:{draft} ", team=TEAM).grow(session.asked(ADD), session)
    assert texts(forest, 0)[0] == ("solver", "1+1= draft:2 ", "2") and forest.info[0]["draft_outcome"] == 1.0
    assert forest.info[0]["answer"] == "2" and session.budget.discarded == 3


def test_a_greedy_team_stands_beside_the_group() -> None:
    session = Known(scripted(YES, ("", "{k}")))
    forest = BaselineRollouts(2, temperature=0.0, team=TEAM).grow(session.asked(ADD), session)
    assert forest.id == ["s3/add/0", "s3/add/1", "s3/add/baseline/0"] and forest.outcome.tolist() == [0, 0, 1]
    assert forest.compared.tolist() == [True, True, False]
    assert [bool(forest.path_trainable[forest.path_of(r)].any()) for r in range(3)] == [True, True, False]


def test_filters_votes_and_stages_of_teams() -> None:
    session = Known(scripted(YES, (r"5-1", "4"), ("", "{k}")))
    forest = DynamicSampling(3, max_batches=1, team=TEAM).grow(session.asked(ADD, SUB), session)
    assert set(forest.task) == {"add"} and session.budget.discarded == 3
    session = Known(scripted(YES, ("", "{k}")))
    assert OversampleForVote(2, 3, team=TEAM).grow(session.asked(ADD), session).n_trajectories == 2
    session = Known(scripted(YES, (r"5-1", "4"), ("", "no")))
    forest = RetryUntilSolved(4, stage_size=2, reuse=False, team=TEAM).grow(session.asked(ADD, SUB), session)
    assert forest.task == ["add"] * 4 + ["sub"] * 2


def test_what_a_team_can_not_do_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.team"):
        gxpo.method("search_r2", {"rollout.team": "solver_verifier"})
    assert gxpo.method("dapo", {"rollout.team": "solver_verifier"}).rollout.max_turns > 1
    with pytest.raises(ConfigError, match=r"rollout\.policy=current"):
        gxpo.method("remax", {"rollout.policy": "reference", "rollout.team": "solver_verifier"})
