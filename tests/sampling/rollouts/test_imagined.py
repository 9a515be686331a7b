"""Episodes in a model of a world: what the table learns, what it can't hold, how the two agree; rehearsed actions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.sampling.rollouts.acting_session import STEPS, acting, seeded

from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.parts.protocols import EpisodeRules, Sampling
from gxpo.sampling.rollouts.between import CountedModel, Prediction, Rules
from gxpo.sampling.rollouts.imagined import Imagined

RULES, SHORT = EpisodeRules(6), Sampling(max_new_tokens=8)


@pytest.fixture(scope="module")
def steps() -> Any:
    with EnvPool(source(STEPS, {"start": 2}), workers=0) as pool:
        yield pool


def seen(forest: Any) -> list[str]:
    """What the first episode's policy read before each of its actions."""
    return [turn["observation_text"] for turn in forest.to_records(share=False)[0]["turns"]]


def grow(
    rollout: Any, envs: Any, say: Any = lambda context, key: "a", step: int = 1, seeds: tuple[int, ...] = (4,)
) -> Any:
    session = acting(envs, say, step=step, rules=RULES, sampling=SHORT)
    return rollout.grow(seeded(session, *seeds), session)


def agreement(forest: Any) -> list[float]:
    return forest.components[:, forest.component_names.index("agreement")].tolist()


# ---------------------------------------------------------------- the table
def test_the_most_frequent_answer_counts() -> None:
    model = CountedModel(2)
    for text in ("b", "c", "c"):
        model.add("a", "left", Prediction(text, True, True, 1.0))
    assert model("a", "left") == Prediction("c", True, True, 1.0) and model("a", "right") is None


def test_a_table_holds_no_more_than_its_bound() -> None:
    model = CountedModel(2)
    for action in "xyz":
        model.add("a", action, Prediction("b"))
    assert len(model.table) == 2 and model.refused_count == 1


def test_a_judge_at_its_threshold_decides_the_success() -> None:
    rules = Rules(lambda first, observation: {"near": 0.82, "far": 0.81}[observation])
    assert rules.check("", Prediction("near"), "a") == Prediction("near", True, True)
    assert rules.check("", Prediction("far", False, True), "a") == Prediction("far", False, False)


# ---------------------------------------------------------------- in the model's world
def test_a_model_that_is_the_world_agrees_with_it(steps: EnvPool) -> None:
    rollout = Imagined(2, exploration_steps=1, checks=2)
    first = grow(rollout, steps)
    assert first.success.tolist() == [1.0, 1.0] and all(map(math.isnan, agreement(first)))
    imagined = grow(rollout, steps, step=2)
    assert imagined.success.tolist() == [1.0, 1.0] and agreement(imagined) == [1.0, 1.0]
    assert seen(imagined) == seen(first)


def test_a_model_that_errs_agrees_less(steps: EnvPool) -> None:
    # the world goes 2, 1, 0; the model says 2, 1, then "won": one answer of two is the world's
    model = {"2 left\n>": Prediction("1 left\n>"), "1 left\n>": Prediction("won", True, True)}
    forest = grow(Imagined(1, model=lambda observation, action: model[observation]), steps)
    assert forest.success.tolist() == [1.0] and agreement(forest) == [0.5]


def test_an_unknown_answer_costs_that_rollout_alone(steps: EnvPool) -> None:
    rollout, before = Imagined(2, exploration_steps=1), steps.counts["nonsense"]
    grow(rollout, steps)
    forest = grow(rollout, steps, lambda context, key: "ab"[key.attempt], step=2)
    assert forest.success.tolist()[0] == 1.0 and math.isnan(forest.success[1])
    assert forest.info[1]["failure"] == "the model knows no answer to 'b' here"
    assert steps.counts["nonsense"] == before + 1


def test_leaving_what_the_model_knows_can_be_a_failed_episode(steps: EnvPool) -> None:
    rollout, before = Imagined(2, exploration_steps=1, on_unknown="failed"), steps.counts["nonsense"]
    grow(rollout, steps)
    forest = grow(rollout, steps, lambda context, key: "ab"[key.attempt], step=2)
    assert forest.success.tolist() == [1.0, 0.0] and steps.counts["nonsense"] == before + 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Prediction("x" * 99), "state has 99 characters, rollout.max_state is 50"),
        ("b", "gave a str, not a Prediction"),
        (ZeroDivisionError("by\nzero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_state_that_a_model_cannot_hold_is_a_failure(steps: EnvPool, answer: Any, message: str) -> None:
    def model(observation: str, action: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    forest = grow(Imagined(1, model=model, max_state=50), steps)
    assert message in forest.info[0]["failure"] and "\n" not in forest.info[0]["failure"]


def test_the_table_is_part_of_the_checkpoint(steps: EnvPool) -> None:
    rollout, again = Imagined(1, exploration_steps=1), Imagined(1, exploration_steps=1)
    grow(rollout, steps)
    again.load_state_dict(rollout.state_dict())
    assert again.table.table == rollout.table.table and grow(again, steps, step=2).success.tolist() == [1.0]


def test_a_table_that_nothing_fills_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.exploration_steps=0 leaves the table empty"):
        Imagined(exploration_steps=0).check_sampling(SHORT)
    with pytest.raises(ConfigError, match=r"rollout\.model is 'oracle'; it must be FILE\.py:NAME"):
        Imagined(model="oracle").check_sampling(SHORT)


# ---------------------------------------------------------------- rehearsed
def test_the_second_of_two_actions_is_carried_out(steps: EnvPool) -> None:
    # "?" moves nothing in the world: only what follows a proposal is carried out
    rollout = Imagined(1, place="turn", template="{observation}if:{predicted}", exploration_steps=0)
    forest = grow(rollout, steps, lambda context, key: "a")
    assert seen(forest) == ["2 left\n>", "2 left\n>if:unknown", "1 left\n>", "1 left\n>if:unknown"]
    assert forest.success.tolist() == [1.0]
    known_value = grow(rollout, steps, lambda context, key: "a", step=2)
    assert seen(known_value)[1] == "2 left\n>if:1 left\n>"


def test_held_out_rehearsals_teach_the_table_nothing(steps: EnvPool) -> None:
    rollout = Imagined(1, place="turn", template="{predicted}")
    forest = grow(rollout.evaluation(2), steps)
    assert forest.n_trajectories == 2 and not rollout.table.table
    assert not hasattr(Imagined(), "evaluation")  # episodes of the world itself
