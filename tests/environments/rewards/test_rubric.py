"""Rubrics of verifiers as rewards."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math

import pytest
from tests.environments.rewards.scored_tasks import Source, forest_of

from gxpo.environments.rewards import RewardSet
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

NO_SCORER = Source(default=None)
NO_SCORER.held_out = lambda n: [Task("held", "?", "0", {"level": 1, "kind": "math"})][:n]


def tasks(texts, *, chat=False, **columns):
    prompt = ({"role": "user", "content": "2+2="},) if chat else "2+2="
    return [Task(f"t{i}", prompt, "4", {k: v[i] for k, v in columns.items()}) for i in range(len(texts))]


def scored(spec, texts, *, source=NO_SCORER, chat=False, step=0, **columns):
    """(outcomes, components, counts of failures) of these texts."""
    columns = {"level": [0] * len(texts), "kind": ["math"] * len(texts)} | columns
    with RewardSet.make(spec, source=source) as rewards:
        rewards.at(step, 10)
        out = rewards.score(forest_of(texts), texts, tasks(texts, chat=chat, **columns))
        listed_components = {k: out.components[:, i].tolist() for i, k in enumerate(out.component_names)}
        return out.outcome.tolist(), listed_components, rewards


# ---------------------------------------------------------------- rubrics
class StandIn:
    """What we use of `verifiers.Rubric`: it calls functions by the names of their parameters, logs what they raise and
    goes on with 0."""

    def __init__(self, *funcs, group=False):
        self.funcs, self.has_group_rewards = funcs, group

    def add_reward_func(self, *_): ...

    def _get_reward_func_names(self):
        return [f.__name__ for f in self.funcs]

    async def score_rollout(self, state):
        await self.score_group([state])

    async def score_group(self, states):
        for state in states:
            values = {}
            for f in self.funcs:
                try:
                    arguments = {k: v for k, v in state.items() if k in inspect.signature(f).parameters}
                    values[f.__name__] = f(**arguments, **({"group": len(states)} if self.has_group_rewards else {}))
                except Exception as error:
                    logging.getLogger("verifiers.rubrics").error(f"Error calling {f.__name__}: {error}")
                    values[f.__name__] = 0.0
            state["reward"], state["metrics"] = sum(values.values()), values


def exact(completion, answer):
    if completion[0]["content"] == "raise":
        raise ValueError("no")
    return float(completion[0]["content"] == answer)


def level(info, prompt):
    assert prompt == [{"role": "user", "content": "2+2="}]
    return info["level"] / 10


def test_rubric_sums_its_functions_and_an_error_costs_a_rollout():
    outcome, components, rewards = scored(StandIn(exact, level), ["4", "5", "raise"], level=[1, 2, 3])
    assert outcome[:2] == [1.1, 0.2] and math.isnan(outcome[2])
    assert (
        components["rubric"][:2] == [1.1, 0.2]
        and components["exact"][:2] == [1.0, 0.0]
        and components["level"][:2] == [0.1, 0.2]
    )
    assert rewards.counts["raised"] == 1 and "Error calling exact: no" in rewards.messages["raised"]


def switch_off(logger):
    logger.disabled = True


@pytest.mark.parametrize(
    "quiet",
    [
        switch_off,
        lambda logger: logger.setLevel(logging.CRITICAL),
        lambda logger: logging.getLogger("verifiers").setLevel(logging.CRITICAL),
        lambda logger: logging.disable(logging.CRITICAL),
    ],
)
def test_errors_are_seen_though_logs_are_switched_off(quiet):
    logger, parent = logging.getLogger("verifiers.rubrics"), logging.getLogger("verifiers")
    before = logger.disabled, logger.level, parent.level, logger.manager.disable
    quiet(logger)
    quiet_settings = logger.disabled, logger.level, parent.level, logger.manager.disable
    try:
        outcome, _, rewards = scored(StandIn(exact, level), ["4", "raise"], level=[1, 2])
        assert outcome[0] == 1.1 and math.isnan(outcome[1]) and rewards.counts["raised"] == 1
        assert (logger.disabled, logger.level, parent.level, logger.manager.disable) == quiet_settings
    finally:
        logger.disabled, logger.manager.disable = before[0], before[3]
        logger.setLevel(before[1])
        parent.setLevel(before[2])


def test_functions_of_a_group_see_their_group():
    def size(group):
        return float(group)

    forest = Forest.from_completions([[1], [2]], [[[97], [98]], [[99]]])
    with RewardSet.make(StandIn(size, group=True), source=NO_SCORER) as rewards:
        out = rewards.score(forest, ["a", "b", "c"], tasks(["a", "b", "c"], level=[0, 0, 0]))
    assert out.outcome.tolist() == [2.0, 2.0, 1.0]


def test_a_file_may_hold_a_rubric(tmp_path):
    path = tmp_path / "my_rubric.py"
    path.write_text(
        "from tests.environments.rewards.test_batch import StandIn as Rubric, exact\nrubric = Rubric(exact)\n"
    )
    outcome, _, _ = scored(f"{path}:rubric", ["4", "5"])
    assert outcome == [1.0, 0.0]


def test_rubrics_of_the_library():
    vf = pytest.importorskip("verifiers.rubrics.rubric", reason="verifiers 0.1.14 to 0.3")

    async def later(completion, answer, **kwargs):
        await asyncio.sleep(0)
        return exact(completion, answer)

    outcome, _, rewards = scored(vf.Rubric(funcs=[later], weights=[2.0]), ["4", "5", "raise"])
    assert outcome[:2] == [2.0, 0.0] and math.isnan(outcome[2]) and rewards.counts["raised"] == 1
    from verifiers.rubrics.rubric_group import RubricGroup

    both = RubricGroup([vf.Rubric(funcs=[later]), vf.Rubric(funcs=[level], weights=[10.0])])
    assert scored(both, ["4", "5"], level=[1, 2])[0] == [2.0, 2.0]
