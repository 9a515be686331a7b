"""MiniGrid against a stand-in of the library, and the real one where it is installed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.environments.envs.fake_libraries import REASON, play, the_expert_succeeds_twice, using

from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters.minigrid import MiniGrid, describe

NAMES = (
    dict(enumerate(["unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent"])),
    {0: "red", 1: "green"},
    {0: "open", 1: "closed", 2: "locked"},
)


def test_minigrid_view_in_words() -> None:
    """Five columns, five rows; the agent stands at column 2 of row 4 and looks towards row 0."""
    view = np.ones((5, 5, 3), np.uint8)
    view[2][4] = (5, 0, 0)  # carried: a red key
    view[2][1] = (2, 0, 0)  # a wall three ahead
    view[0][4] = (2, 0, 0)  # and one two to the left
    view[3][3] = (4, 1, 2)  # a locked green door, one ahead and one to the right
    view[2][3] = (9, 0, 0)  # lava straight ahead
    view[4][0] = (0, 0, 0)  # unseen
    assert describe(view, NAMES).splitlines() == [
        "You carry a red key.",
        "Walls, in steps: ahead 3, left 2.",
        "You see, in steps:",
        "- lava: 1 ahead",
        "- locked green door: 1 ahead, 1 to the right",
    ]
    assert describe(np.ones((3, 3, 3)), NAMES) == "You carry nothing.\nYou see nothing else."


@using("minigrid")
def test_minigrid_walks_to_the_goal(library: str) -> None:
    """From cell 0, three steps: the reward is 1 - 0.9 * 4 / 10 because one action could not be read."""
    env = MiniGrid("MiniGrid-Corridor-v0", max_turns=10)
    steps = play(env, 0, ["go forward", "hop", "<action>go forward</action>", "Go forward."])
    assert steps[0].observation == "Mission: walk to the end\nYou carry nothing.\nYou see nothing else."
    assert str(steps[1].observation).endswith("- green goal: 2 ahead")
    assert [s.action_error for s in steps] == [None, None, "malformed", None, None]
    assert steps[1].state == steps[2].state != steps[3].state
    assert steps[-1].reward == pytest.approx(0.64) and steps[-1].done and steps[-1].success is True
    assert not callable(env.expert)  # a level without instructions has none


@using("minigrid")
def test_minigrid_ends_and_is_truncated_at_max_turns(library: str) -> None:
    env = MiniGrid("MiniGrid-Corridor-v0", max_turns=2)
    for actions in (["done", "done"], ["done", "?"]):
        last = play(env, 0, actions)[-1]
        assert (last.done, last.truncated, last.success, last.reward) == (True, True, False, 0.0)


@using("minigrid")
def test_minigrid_content_leaves_the_episode_alone(library: str) -> None:
    env = MiniGrid("MiniGrid-Corridor-v0")
    env.reset(0)
    local_state = env.step("go forward").state
    assert env.content(0) == env.content(2) != env.content(1)
    assert env.step("drop").state == local_state


@using("minigrid")
def test_minigrid_by_pixels_has_the_states_of_the_text(library: str) -> None:
    view, read = MiniGrid("MiniGrid-Corridor-v0", pixels=True), MiniGrid("MiniGrid-Corridor-v0")
    actions = ["go forward", "hop", "go forward", "go forward"]
    steps, words = play(view, 0, actions), play(read, 0, actions)
    blind = [dataclasses.replace(s, observation="") for s in steps]
    assert blind == [dataclasses.replace(s, observation="") for s in words] and view.content(0) == read.content(0)
    parts = [step.observation[0]["content"] for step in steps]
    assert [image["image"][:, :, 0].tolist() for image, _ in parts] == [[[n] * 64] * 64 for n in (0, 1, 1, 2, 3)]
    texts = [text["text"] for _, text in parts]
    assert texts[0] == texts[1] == "Mission: walk to the end"
    assert texts[2].startswith("'hop' is not an action.") and texts[2].endswith("\nMission: walk to the end")
    with pytest.raises(AdapterError, match="pixels must be true or false, not 'yes'"):
        MiniGrid("MiniGrid-Corridor-v0", pixels="yes")  # type: ignore[arg-type]


@using("minigrid")
def test_minigrid_refuses(library: str) -> None:
    with pytest.raises(AdapterError, match="did you mean 'MiniGrid-Corridor-v0'"):
        MiniGrid("MiniGrid-Coridor-v0")
    with pytest.raises(AdapterError, match="options"):
        MiniGrid("MiniGrid-Corridor-v0", options={"wide": 1})


@pytest.mark.parametrize("level", ["BabyAI-GoToLocal-v0", "BabyAI-PutNextLocal-v0"])
def test_real_minigrid(level: str) -> None:
    pytest.importorskip("minigrid", reason=REASON)
    the_expert_succeeds_twice(MiniGrid(level), MiniGrid(level))
