"""Sessions of rollouts in another trainer: scores of a step, and rollouts as rows of one prompt and one completion."""

import math

import pytest
import torch

from gxpo.adapters.sessions import TrainerSession, action_tokens, rows_of, scores_of, with_scores
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey, Task


class Counting(TrainerSession):
    """Session whose rewards are the numbers of tokens; notes what was judged."""

    def __init__(self):
        super().__init__(step=2, seed=0, sampling=Sampling(), chat=None)
        self.asked = []

    def tasks_of(self, begin, n):
        return [Task(f"task{i}", "?", info={"solution": "7"} if i else {}) for i in range(begin, begin + n)]

    def complete(self, prompts, keys, sampling):
        return [Completion([len(p), k.attempt], [0.0, 0.0], "stop") for p, k in zip(prompts, keys, strict=True)]

    def judge(self, forest, texts, tasks):
        self.asked.append((list(forest.id), texts, [t.id for t in tasks]))
        lengths = torch.tensor([float(len(x)) for x in action_tokens(forest)], dtype=torch.float64)
        return forest.with_rewards(lengths, components={"length": lengths})


def forest_of(*, tasks=("task0", "task0"), **columns):
    return Forest.from_completions([[3]], [[[5, 6, 7], [9]]], tasks=[tasks[0]], ids=["a", "b"], **columns)


def test_a_rollout_is_judged_once_in_a_step():
    session = Counting()
    session.draw(1)
    scored = session.score(forest_of())
    assert scored.outcome.tolist() == [3.0, 1.0] and session.judged == [3.0, 1.0]
    assert session.score(forest_of()).outcome.tolist() == [3.0, 1.0]
    assert session.recall(forest_of().select([1])).outcome.tolist() == [1.0]
    assert session.asked == [(["a", "b"], None, ["task0", "task0"])]


def test_other_actions_under_the_same_id_are_judged_anew():
    session = Counting()
    session.draw(1)
    session.score(forest_of())
    longer = Forest.from_completions([[3]], [[[5, 6, 7, 8]]], tasks=["task0"], ids=["a"])
    assert session.score(longer, ["a text"]).outcome.tolist() == [4.0]
    assert session.asked[1] == (["a"], ["a text"], ["task0"])


def test_a_known_outcome_stays_and_one_that_failed_has_none():
    session = Counting()
    session.draw(1)
    known_rewards = forest_of().with_rewards(torch.tensor([0.25, math.nan]))
    assert session.score(known_rewards).outcome.tolist() == [0.25, 1.0]
    broken = forest_of().replace(info=[{"failure": "it broke"}, {}], id=["c", "d"])
    outcome = session.score(broken).outcome
    assert math.isnan(outcome[0]) and outcome[1] == 1.0
    assert math.isnan(session.score(broken).outcome[0])


def test_draws_go_on_and_samples_are_counted():
    session = Counting()
    assert [t.id for t in session.draw(2) + session.draw(1)] == ["task0", "task1", "task2"]
    assert session.solution(Task("a", "?")) is None and session.solution(session.tasks_of(1, 1)[0]) == "7"
    keys = tuple(StreamKey(0, 2, "task0", i, ()) for i in range(2))
    (first, second) = session.sample([Request((3, 4), keys), Request((5,), keys[:1])])
    assert [c.tokens for c in first] == [[2, 0], [2, 1]] and [c.tokens for c in second] == [[1, 0]]
    assert (session.budget.rollouts, session.budget.generated_tokens) == (3, 6)


def test_another_policy_is_refused():
    with pytest.raises(ConfigError, match="policy reference"):
        Counting().sample([Request((3,), (StreamKey(0, 1, "a", 0, ()),), policy="reference")])


def test_scores_go_to_their_rows_alone():
    forest = forest_of().with_rewards(torch.tensor([1.0, math.nan]), components={"old": torch.tensor([2.0, math.nan])})
    judged = scores_of(Counting().judge(forest.select([1]), None, []))
    scored = with_scores(forest, {1: judged[0]})
    assert scored.outcome.tolist() == [1.0, 1.0] and scored.component_names == ("old", "length")
    assert scored.components[0, 0] == 2.0 and scored.components[1, 1] == 1.0
    assert bool(scored.components[0, 1].isnan()) and with_scores(forest, {}) is forest


# ---------------------------------------------------------------- rows
def turns(second):
    """A rollout of two turns; `second`: columns of the second turn."""
    return Forest.from_records([{
        "schema": "gxpo.rollouts/1", "task": "a", "group": "g", "id": "g/0", "reward": 1.0, "prompt": [3, 4],
        "turns": [{"action": [5, 6]}, {"action": [9], **second}],
    }])  # fmt: skip


def test_what_stands_between_actions_is_masked():
    prompts, completions, masks = rows_of(turns({"observation": [7, 8]}))
    assert prompts == [[3, 4]] and completions == [[5, 6, 7, 8, 9]] and masks == [[1, 1, 0, 0, 1]]


def test_branches_are_rows_of_their_own():
    base = {"schema": "gxpo.rollouts/1", "task": "a", "group": "g", "reward": 1.0}
    forest = Forest.from_records([
        {**base, "id": "g/0", "prompt": [3], "turns": [{"action": [5, 6, 7]}]},
        {**base, "id": "g/1", "fork": {"of": "g/0", "turn": 0, "token": 2}, "turns": [{"action": [8]}]},
    ])  # fmt: skip
    assert rows_of(forest) == ([[3], [3]], [[5, 6, 7], [5, 6, 8]], [[1, 1, 1], [1, 1, 1]])


def test_actions_in_several_contexts_are_refused():
    with pytest.raises(ConfigError, match="g/0 acts in several contexts"):
        rows_of(turns({"context": [3, 9]}))
