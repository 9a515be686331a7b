"""TRL's padded batches as forests: tokens, groups, rewards, verdicts, and subsets of scored rows."""

import math

import pytest
import torch

from gxpo.adapters.trl_rollouts import Rewards, ScoredBatch, Window, own_tokens, rollouts, task_name
from gxpo.algorithms.signals import Signals

# two prompts of two completions each, padded as TRL does: prompts on the left, completions on the right
COLUMNS = {
    "prompt_ids": torch.tensor([[0, 3, 4], [0, 3, 4], [5, 6, 7], [5, 6, 7]]),
    "prompt_mask": torch.tensor([[0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]),
    "completion_ids": torch.tensor([[8, 9, 0], [8, 0, 0], [1, 2, 3], [2, 2, 0]]),
    "completion_mask": torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]]),
}
TABLE = torch.tensor([[1.0, 0.0], [0.0, 2.0], [math.nan, 1.0], [math.nan, math.nan]], dtype=torch.float64)


def rewards(success_at=None):
    return Rewards(TABLE, torch.tensor([1.0, 0.5]), ["correct", "brief"], success_at)


def made(**options):
    own_mask = COLUMNS["completion_mask"].bool()
    return rollouts(COLUMNS, own_mask, None, rewards(options.pop("success_at", None)), 2, **options)


def test_padding_is_dropped_and_groups_are_runs_of_rows():
    forest = made()
    assert forest.group == ["0", "0", "1", "1"] and forest.n_trajectories == 4
    assert forest.token[forest.path_token].tolist() == [8, 9, 8, 1, 2, 3, 2, 2]
    assert forest.path_trajectory.tolist() == [0, 0, 1, 2, 2, 2, 3, 3]


def test_an_outcome_is_the_weighted_sum_of_known_rewards():
    forest = made()
    assert forest.outcome[:3].tolist() == [1.0, 1.0, 0.5] and math.isnan(forest.outcome[3])
    assert forest.scored.tolist() == [True, True, True, False]


def test_verdicts_come_from_the_threshold():
    success = made(success_at=1.0).success
    assert success[:3].tolist() == [1.0, 1.0, 0.0] and math.isnan(success[3])
    assert bool(made().success.isnan().all())


def test_a_temperature_other_than_1_is_noted_with_the_sampling():
    assert made(temperature=0.7).sampling == [{"temperature": 0.7}] * 4


def test_tokens_of_tools_are_not_the_policys():
    batch = {"completion_mask": torch.tensor([[1, 1, 1, 0]]), "tool_mask": torch.tensor([[1, 0, 1, 1]])}
    assert own_tokens(batch).tolist() == [[True, False, True, False]]
    assert own_tokens({"completion_mask": batch["completion_mask"]}).tolist() == [[True, True, True, False]]


def test_a_tools_output_is_context_of_the_tokens_after_it():
    own_mask = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]]).bool()
    forest = rollouts(COLUMNS, own_mask, None, rewards(), 2)
    assert forest.token[forest.path_token].tolist() == [8, 8, 1, 3, 2, 2]
    assert forest.path_trajectory.tolist() == [0, 1, 2, 2, 3, 3]


def scored():
    forest = made()
    columns = torch.arange(8, dtype=torch.float64)
    return ScoredBatch(forest, columns, columns + 10, Signals({"entropy": columns + 20}), columns + 30, 1)


def test_a_subset_of_rows_brings_its_columns():
    two = scored().select(torch.tensor([1, 3]))
    assert two.credit.tolist() == [2.0, 6.0, 7.0] and two.weight.tolist() == [12.0, 16.0, 17.0]
    assert two.signals["entropy"].tolist() == [22.0, 26.0, 27.0]
    assert two.proximal is not None and two.proximal.tolist() == [32.0, 36.0, 37.0]


def test_unknown_samplers_log_probs_are_the_proximal_policys():
    logprob = -torch.arange(8, dtype=torch.float64)
    policy = scored().policy({"logprob": logprob})
    assert policy.behaviour_logprob.tolist() == pytest.approx([30.0 + i for i in range(8)])
    assert policy.logprob is logprob


def test_rows_of_a_generation_batch_have_places_in_their_step():
    window = Window(scored(), torch.tensor([2, 5, 7]))
    assert window.places(torch.tensor([7, 2])).tolist() == [2, 0]


def test_a_prompts_name_is_its_roles_and_texts():
    question = [{"role": "user", "content": "2 + 2"}]
    assert task_name("2 + 2") == task_name("2 + 2") != task_name("2 + 3")
    assert task_name(question) == task_name([dict(question[0], name="anybody")])
    assert task_name(question) != task_name([{"role": "system", "content": "2 + 2"}])
