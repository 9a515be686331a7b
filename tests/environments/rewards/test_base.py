"""Rewards of the whole step inside `RewardSet`: by name, as objects, as functions of files, as `rate` of a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.environments.rewards.scored_tasks import Source, forest_of, tasks_of

from gxpo.base.errors import ConfigError, TaskError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.built_in import well_formed
from gxpo.environments.rewards.functions import from_callable, from_file

pytestmark = pytest.mark.filterwarnings("ignore:reward")  # lambdas run in process, on purpose
TEXTS = ["4", "44", "444", "5"]


def verdict(text, task):
    return {"correct": float(text == task.answer), "digits": float(len(text))}


def shortest(forest, texts, tasks):
    """1 for the shortest text of the step."""
    least = min(map(len, texts))
    return torch.tensor([float(len(t) == least) for t in texts])


class Named:
    gives = ("rank", "mean")
    reports = ("mean",)

    def __call__(self, forest, texts, tasks):
        length = torch.tensor([float(len(t)) for t in texts])
        return {"rank": -length, "mean": length.mean().expand(len(texts))}


def scored(spec, source=None, texts=TEXTS, **more):
    with RewardSet.make(spec, source=source or Source(verdict, trusted=True), **more) as rewards:
        forest = rewards.score(forest_of(texts), texts, tasks_of(texts))
        return forest, rewards


def column(forest, name):
    return forest.components[:, forest.component_names.index(name)].tolist()


def test_function_of_forest_texts_and_tasks_sees_the_whole_step():
    forest, rewards = scored(shortest)
    assert forest.outcome.tolist() == [1, 0, 0, 1]  # two of one character
    assert forest.success.tolist() == [1, 0, 0, 0]  # the task's own scorer still says what is right
    assert column(forest, "digits") == [1, 2, 3, 1] and sum(rewards.counts.values()) == 0


def test_reported_components_count_only_when_named():
    # rank = -length, mean length = (1 + 2 + 3 + 1) / 4 = 1.75
    assert scored(Named())[0].outcome.tolist() == [-1, -2, -3, -1]
    both, _ = scored({Named(): 1.0, "mean": 2.0})
    assert both.outcome.tolist() == [-1 + 3.5, -2 + 3.5, -3 + 3.5, -1 + 3.5]


def test_it_is_added_to_the_others_by_name():
    forest, _ = scored({"correct": 2.0, shortest: 0.5})
    assert forest.outcome.tolist() == [2.5, 0, 0, 0.5]


def test_a_source_that_rates_needs_no_scorer():
    class Rated(Source):
        def rate(self, forest, texts, tasks):
            return {"inside": torch.arange(float(forest.n_trajectories)), "correct": torch.ones(len(tasks))}

    rated, _ = scored(None, Rated(None, "inside"))
    assert rated.outcome.tolist() == [0, 1, 2, 3] and rated.success.tolist() == [1, 1, 1, 1]
    usual, _ = scored(None, Rated(None, "correct"))
    assert usual.outcome.tolist() == [1, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"'insider' has a weight.*did you mean 'inside'"):
        scored({"insider": 1.0}, Rated(None, "inside"))


def test_components_of_the_user_replace_those_of_the_source():
    class Rated(Source):
        def rate(self, forest, texts, tasks):
            return {"correct": torch.zeros(len(tasks)), "inside": torch.ones(len(tasks))}

    forest, _ = scored(lambda completion: {"correct": float(completion == "4")}, Rated(None, "inside"))
    assert forest.outcome.tolist() == [1, 0, 0, 0] and column(forest, "inside") == [1, 1, 1, 1]


def test_two_rewards_of_one_component_are_refused():
    with pytest.raises(ConfigError, match="computes 'rank', as another reward does"):
        scored({Named(): 1.0, (lambda completion: {"rank": 1.0}): 1.0})


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda forest, texts, tasks: 1 / 0, "raised", "division by zero"),
        (lambda forest, texts, tasks: torch.zeros(3), "nonsense", r"shape \(3,\) for 4 rollouts"),
        (lambda forest, texts, tasks: {}, "nonsense", "no values"),
    ],
)
def test_a_failure_leaves_everything_unscored_and_is_counted(wrong, kind, said):
    forest, rewards = scored(wrong)
    assert forest.outcome.isnan().all() and forest.success.tolist() == [1, 0, 0, 0]
    assert rewards.counts[kind] == 4 == sum(rewards.counts.values())
    assert re.search(said, rewards.messages[kind])


def test_a_number_that_is_missing_is_never_zero():
    def some(forest, texts, tasks):
        return torch.tensor([1.0, float("nan"), float("inf"), 0.0])

    forest, rewards = scored(some)
    assert forest.outcome.isnan().tolist() == [False, True, True, False]
    assert rewards.counts["nonsense"] == 2


def test_what_is_wrong_with_the_set_up_ends_the_run():
    def broken(forest, texts, tasks):
        raise TaskError("no server there")

    with pytest.raises(TaskError, match="no server there"):
        scored(broken)


def test_components_that_change_their_names_are_nonsense():
    calls = []

    def moody(forest, texts, tasks):
        calls.append(0)
        return {"a" if len(calls) == 1 else "b": torch.ones(len(texts))}

    with RewardSet.make(moody, source=Source(verdict, trusted=True)) as rewards:
        first = rewards.score(forest_of(TEXTS), TEXTS, tasks_of(TEXTS))
        second = rewards.score(forest_of(TEXTS), TEXTS, tasks_of(TEXTS))
    assert first.outcome.tolist() == [1, 1, 1, 1] and second.outcome.isnan().all()
    assert rewards.counts["nonsense"] == 4 and "'b'" not in rewards.messages["nonsense"]
    assert "returned b where it usually returns a" in rewards.messages["nonsense"]


def test_a_function_of_a_file_is_group_level_by_its_parameters(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def longest(forest, texts, tasks):\n"
        "    return torch.tensor([float(len(t) == max(map(len, texts))) for t in texts])\n"
        "def exact(completion, answer):\n"
        "    return completion == answer\n"
    )
    assert scored(f"{file}:longest")[0].outcome.tolist() == [0, 0, 1, 0]
    assert not from_file(f"{file}:exact").grouped and not from_file(f"{file}:nothing").grouped
    assert from_file(f"{file}:longest").grouped and not from_callable(well_formed).grouped
    with pytest.raises(ConfigError, match="there is no file"):
        from_file(f"{tmp_path}/none.py:longest")
    with pytest.raises(ConfigError, match="there is no file"):
        scored(f"{tmp_path}/none.py:longest")


def test_options_go_to_the_reward_that_is_asked_for():
    with pytest.raises(ConfigError, match=r"scoring.options.code: no reward of this run takes it"):
        scored(None, options={"code": {}})
    with pytest.raises(ConfigError, match=r"scoring.options.majority_vote has no 'patern'; did you mean 'pattern'"):
        scored("majority_vote", options={"majority_vote": {"patern": "x"}})
