"""Actions that a check refuses: nothing happens, the policy reads why, and refusals are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sampling.rollouts.acting_session import STEPS, acting, seeded
from tests.sampling.rollouts.guard import fails

from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.parts.protocols import EpisodeRules, Sampling
from gxpo.sampling.rollouts.guarded import Guarded

RULES, SHORT = EpisodeRules(6), Sampling(max_new_tokens=8)
FILE = str(Path(__file__).with_name("guard.py"))


@pytest.fixture(scope="module")
def steps() -> Any:
    with EnvPool(source(STEPS, {"start": 2}), workers=0) as pool:
        yield pool


def seen(forest: Any) -> list[str]:
    """What the first episode's policy read before each of its actions."""
    return [turn["observation_text"] for turn in forest.to_records(share=False)[0]["turns"]]


def grow(rollout: Any, envs: Any, say: Any) -> Any:
    session = acting(envs, say, rules=RULES, sampling=SHORT)
    return rollout.grow(seeded(session, 4), session)


def no_b(observation: str, action: str) -> str | None:
    assert observation.endswith(" left\n>") and not observation.startswith("Refused")
    return "b is dear" if action == "b" else None


def test_a_refused_action_changes_nothing(steps: EnvPool) -> None:
    forest = grow(Guarded(1, no_b), steps, lambda context, key: "b" if key.turn < 2 else "a")
    refused = "Refused: b is dear\n2 left\n>"
    assert seen(forest) == ["2 left\n>", refused, refused, "1 left\n>"] and forest.success.tolist() == [1.0]
    assert forest.components[:, forest.component_names.index("refused")].tolist() == [2.0]


def test_a_refusal_can_end_the_episode(steps: EnvPool) -> None:
    forest = grow(Guarded(1, no_b, on_refusal="end"), steps, lambda context, key: "b")
    assert forest.success.tolist() == [0.0] and forest.n_steps == 1


def test_a_check_that_raises_costs_that_rollout_alone(steps: EnvPool) -> None:
    def check(observation: str, action: str) -> str | None:
        return fails(observation, action) if action == "b" else None

    forest = grow(Guarded(2, check), steps, lambda context, key: "ab"[key.attempt])
    assert forest.success.tolist()[0] == 1.0 and forest.info[1]["failure"] == "RuntimeError: no rule for this"


def test_a_check_is_tried_on_its_cases_before_the_run() -> None:
    Guarded(check=f"{FILE}:no_up", cases=f"{FILE}:CASES").check_sampling(SHORT)
    with pytest.raises(ConfigError, match=r"rollout\.check allows 'R', against case 3 of .*guard\.py:WRONG"):
        Guarded(check=f"{FILE}:no_up", cases=f"{FILE}:WRONG").check_sampling(SHORT)
    with pytest.raises(ConfigError, match=r"rollout\.check is ''; it must be FILE\.py:NAME"):
        Guarded().check_sampling(SHORT)
