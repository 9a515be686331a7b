"""Both sides of the update rows process the tokens that the row says; no clock is looked at."""

import pytest

from gxpo.bench import update
from gxpo.sampling.rollouts.graph import graph

SHAPE = {"prompts": 2, "group": 3, "new": 4}


def test_the_forest_stores_each_prompt_once():
    forest = update.forest_of(31, 5, **SHAPE)
    assert (forest.n_trajectories, forest.n_tokens, forest.n_entries) == (6, 2 * 5 + 6 * 4, 6 * 4)
    assert forest.outcome.tolist() == [0.0, 1.0, 2.0] * 2


@pytest.mark.parametrize("two_pass", [False, True])
def test_the_learner_and_the_bare_model_process_the_same_tokens(folder, two_pass):
    ours = update.learner_update("tiny", 5, str(folder), **SHAPE, two_pass=two_pass)
    assert ours()["tokens"] == update.bare_update("tiny", 5, str(folder), **SHAPE)()["tokens"] == 2 * (5 + 3 * 4)


def test_silent_groups_are_left_out_unless_told():
    rows = {case.name: case for case in update.cases("folder", quick=True)}
    skip = rows["skip/tiny/16"]
    assert skip.candidate.arguments["silent"] == skip.baseline.arguments["silent"] == 4
    assert "skip" not in skip.candidate.arguments and skip.baseline.arguments["skip"] is False


@pytest.mark.parametrize("cases", [update.cases, update.step_cases])
def test_rows_have_names_of_their_own(cases):
    for quick in (False, True):
        names = [case.name for case in cases("folder", quick)]
        assert len(set(names)) == len(names) > 0


def test_a_team_is_measured_against_as_many_steps_as_it_has_roles():
    rows = {case.name: case for case in update.step_cases("folder", quick=True)}
    team = rows["team/tiny/16"]
    assert len(graph(team.candidate.arguments["settings"]["rollout.graph"]).roles) == 3
    assert team.baseline.arguments["steps"] == 3 and "settings" not in team.baseline.arguments
