"""GymEnv: gymnasium's environments in text, held against gymnasium itself."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import gymnasium.utils.env_checker
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, EnvSource, source
from gxpo.environments.envs.gym import GymEnv, state_id
from gxpo.parts.protocols import Reply, TimeStep

MOVES = ("left", "down", "right", "up")


class Lake(GymEnv):
    id = "FrozenLake-v1"
    actions = MOVES

    def describe(self, observation: int) -> str:
        return f"row {observation // 4}, column {observation % 4}"


class Answers(gymnasium.Env):
    """Text in, text out: right where the text is as long as the seed says."""

    def __init__(self, start: int = 0) -> None:
        self.action_space = gymnasium.spaces.Text(8) if start == 0 else gymnasium.spaces.Discrete(3, start=start)
        self.observation_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.seed = seed
        return f"{seed} letters", {"action_mask": np.array([0, 1, 1], dtype=np.int8)}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self.seed if isinstance(action, int) else len(action) == self.seed
        return "thanks", float(right), True, False, {}


@pytest.fixture(autouse=True, scope="module")
def answers() -> None:
    gymnasium.register("gxpo-answers-v0", entry_point=lambda **options: Answers(**options))


@pytest.mark.parametrize("slippery", [False, True])
def test_episodes_are_gymnasiums_own(slippery: bool) -> None:
    own_gymnasium = gymnasium.make("FrozenLake-v1", is_slippery=slippery)
    env = Lake(kwargs={"is_slippery": slippery})
    assert env.max_turns == 100
    for seed in range(12):
        chance = random.Random(seed)
        observation, _ = own_gymnasium.reset(seed=seed)
        step = env.reset(seed)
        assert step == TimeStep(f"row {observation // 4}, column {observation % 4}", str(observation))
        total, over = 0.0, False
        while not over:
            action = chance.randrange(4)
            observation, reward, terminated, truncated, _ = own_gymnasium.step(action)
            step = env.step(f"I think <action>{MOVES[action]}</action>")
            total, over = total + float(reward), terminated or truncated
            assert (step.state, step.reward, step.done) == (str(observation), float(reward), over)
            assert step.truncated is (truncated and not terminated)
            assert step.success is ((terminated and total > 0) if over else None)


def test_unreadable_actions_take_a_turn_unseen_by_gymnasium() -> None:
    env = Lake(kwargs={"is_slippery": False})
    env.reset(0)
    for _ in range(150):  # more than gymnasium's limit
        step = env.step("I go left")
    assert (step.action_error, step.reward, step.done, step.state) == ("malformed", 0.0, False, "0")
    assert isinstance(step.observation, str) and "left, down, right, up" in step.observation
    assert step.observation.endswith("row 0, column 0")
    assert env.step("down").state == "4"


def test_by_name_with_numbers_for_actions() -> None:
    actual = source("gymnasium:CartPole-v1", {"max_turns": 7})
    assert actual is not None
    with EnvPool(actual, workers=0) as envs:
        assert envs.max_turns == 7
        assert envs.instructions == "Answer with <action>...</action>. The actions are: 0, 1."
        assert envs.provides == ("states", "legal", "step_rewards")
        first = envs.reset({"a": 3})["a"]
        observation, _ = gymnasium.make("CartPole-v1").reset(seed=3)
        assert getattr(first, "observation", None) == "[" + ", ".join(f"{x:.3g}" for x in observation) + "]"
        assert envs.legal(["a"]) == {"a": ["0", "1"]}
        step = envs.step({"a": Reply("<action>1</action>")})["a"]
        assert getattr(step, "reward", None) == 1.0


def test_masks_say_what_is_legal_and_actions_may_begin_above_0() -> None:
    env = GymEnv("gxpo-answers-v0", {"start": 5}, ("five", "six", "seven"))
    env.reset(6)
    assert env.legal() == ["six", "seven"]
    assert env.step("six").success is True


def test_texts_are_actions_where_the_space_says_so() -> None:
    env = GymEnv("gxpo-answers-v0")
    assert env.reset(3).observation == "3 letters"
    assert env.legal() == []
    assert env.step("<action>" + "a" * 9 + "</action>").action_error == "malformed"
    assert env.step(" <action> abc </action>") == TimeStep("thanks", '"thanks"', 1.0, True, True)


def test_what_a_subclass_may_say() -> None:
    class Fast(Lake):
        instructions = "Go."
        max_turns = 9

        def success(self, total: float, terminated: bool) -> bool | None:
            return not terminated

        def state(self, observation: int) -> str | None:
            return None

    env = Fast()
    assert (env.instructions, env.max_turns, env.reset(0).state) == ("Go.", 9, None)
    assert Fast(instructions="Run.").instructions == "Run."
    env = Fast(kwargs={"is_slippery": False})
    env.reset(0)
    env.step("right")
    assert env.step("down").success is False  # a hole


def test_what_cannot_be_played_is_refused() -> None:
    for options, match in (
        ({}, "no id; name one"),
        ({"id": "FrozenLaek-v1"}, "gymnasium can't make 'FrozenLaek-v1'"),
        ({"id": "Pendulum-v1"}, "acts in Box.*needs Discrete or Text"),
        ({"id": "FrozenLake-v1", "actions": ["left"]}, "has 4 actions, not 1: left"),
        ({"id": "FrozenLake-v1", "slippery": True}, "GymEnv has no option 'slippery'"),
    ):
        with pytest.raises(ConfigError, match=match) as caught:
            EnvPool(EnvSource.of_module("gxpo.environments.envs.gym:GymEnv", options), workers=0)
        assert "\n" not in str(caught.value)


numbers = st.integers(0, 2)
boxes = st.lists(numbers, min_size=30, max_size=30).map(lambda x: np.array(x, dtype=np.int16))
few = st.lists(numbers, min_size=2, max_size=2).map(np.array)
spaces = st.sampled_from([numbers, st.text(max_size=2), few, boxes, st.tuples(numbers, few), st.tuples(boxes, boxes),
                          st.fixed_dictionaries({"a": few, "b": st.text(max_size=1)})])  # fmt: skip


@given(spaces.flatmap(lambda space: st.tuples(space, space)))
def test_state_ids_are_equal_exactly_for_equal_observations(pair: tuple[Any, Any]) -> None:
    one, other = pair
    same = gymnasium.utils.env_checker.data_equivalence(one, other)
    assert (state_id(one) == state_id(other)) is same


def test_ids_of_arrays_tell_shape_and_type_apart() -> None:
    big = np.arange(64, dtype=np.int32)
    ids = {state_id(x) for x in (big, big.reshape(8, 8), big.astype(np.int64), big + 1)}
    assert len(ids) == 4 and all(len(x) < 100 for x in ids)
    assert state_id((np.int64(3), True)) == state_id((3, True)) == "[3, true]"
    assert state_id({"b": 1, "a": 2}) == state_id({"a": 2, "b": 1})
