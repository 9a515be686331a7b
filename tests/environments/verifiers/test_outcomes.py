"""Outcomes of the library's episodes, from stand-ins of what it returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.environments.verifiers.episodes import EpisodeError, outcome_of
from gxpo.environments.verifiers.world import LoadedEnv, Spec


def trace(seat: str = "agent", ok: bool = True, trainable: bool = True, **rewards: Any) -> SimpleNamespace:
    """A trace with rewards as (score, weight); `length` is a metric of 3."""
    scored = {name: x and SimpleNamespace(score=x[0], value=x[0] * x[1]) for name, x in rewards.items()}
    return SimpleNamespace(
        agent=SimpleNamespace(name=seat, trainable=trainable),
        ok=ok,
        rewards=scored,
        metrics={"length": 3.0, "unknown": None},
        reward=sum(r.value for r in scored.values() if r),
        last_error=SimpleNamespace(type="ToolError", message="no\nanswer"),
        stop_condition="done",
        num_turns=2,
        is_timeout=False,
    )


def outcome(*traces: Any, errors: tuple[Any, ...] = (), seats: tuple[str, ...] = ("agent",), **spec: Any) -> Any:
    world = LoadedEnv(Spec("x", **spec), None, [], seats)
    return outcome_of(SimpleNamespace(errors=list(errors), traces=list(traces)), world)


def test_the_reward_is_weighted_and_its_parts_are_not() -> None:
    result = outcome(trace(right=(1.0, 2.0), brief=(0.5, 0.5)), success_at=2.0)
    assert (result["reward"], result["success"]) == (2.25, True)
    assert result["rewards"] == {"length": 3.0, "right": 1.0, "brief": 0.5}
    assert result["info"]["verifiers"]["stop"] == ["done"] and result["info"]["verifiers"]["turns"] == [2]
    # "agent" is the name of the outcome itself
    assert outcome(trace(agent=(1.0, 1.0)))["rewards"] == {"length": 3.0, "agent.agent": 1.0}


def test_a_team_is_paid_the_mean_and_others_are_not_counted() -> None:
    team = [trace("a", x=(1.0, 1.0)), trace("b", x=(3.0, 1.0)), trace("judge", x=(9.0, 1.0))]
    result = outcome(*team, seats=("a", "b"), team_reward="mean")
    assert result["reward"] == 2.0 and result["rewards"]["a.x"] == 1.0 and result["rewards"]["b.x"] == 3.0
    with pytest.raises(EpisodeError, match=r"2 traces of the policy.*team_reward=mean"):
        outcome(*team, seats=("a", "b"))


@pytest.mark.parametrize(
    ("traces", "errors", "message"),
    [
        ([trace(x=(1.0, 1.0))], (SimpleNamespace(type="EnvError", message="it\nbroke"),), "EnvError: it broke"),
        ([trace(ok=False, x=(1.0, 1.0))], (), "ToolError: no answer"),
        ([trace(x=None)], (), "scoring did not finish: reward x"),
        ([trace()], (), "it has no reward"),
        ([trace(trainable=False, x=(1.0, 1.0))], (), "seat agent is not trained"),
    ],
)
def test_what_is_unscored_says_why(traces: list[Any], errors: tuple[Any, ...], message: str) -> None:
    with pytest.raises(EpisodeError, match=message):
        outcome(*traces, errors=errors)
