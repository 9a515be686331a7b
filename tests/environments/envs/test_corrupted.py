"""Corruption of observations: what changes, what stays, and that a replay is the same."""

from __future__ import annotations

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments import envs, worlds
from gxpo.environments.envs.corrupted import Corruption
from gxpo.environments.envs.pool import EnvPool
from gxpo.parts.protocols import Reply, TimeStep

TEXT = " ".join(f"word{i}" for i in range(1000))


def test_the_share_of_words_that_change() -> None:
    dropped = Corruption(0.2).text(TEXT).split()
    assert 750 < len(dropped) < 850 and set(dropped) <= set(TEXT.split())
    assert Corruption(0.2).text(TEXT) == Corruption(0.2).text(TEXT) and Corruption(0.0).text(TEXT) == TEXT
    swapped = Corruption(1.0, "swap").text("abc a")
    assert swapped in ("bac a", "acb a") and Corruption(1.0, "mask").text("a\n bc") == "_\n __"


def test_state_reward_and_roles_stay() -> None:
    messages = ({"role": "tool", "content": "one two"}, {"role": "user", "content": [{"type": "text", "text": "x"}]})
    step = Corruption(1.0, "mask")(TimeStep(messages, "s", 1.0, True, True))
    assert (step.state, step.reward, step.done, step.success) == ("s", 1.0, True, True)
    assert step.observation == (
        {"role": "tool", "content": "___ ___"},
        {"role": "user", "content": [{"type": "text", "text": "_"}]},
    )
    for bad in ((1.5, "drop"), (0.1, "shout")):
        with pytest.raises(ConfigError, match=r"env\.corrupt"):
            Corruption(*bad)  # type: ignore[arg-type]


def test_an_environment_sees_none_of_it() -> None:
    source = envs.source("frozenlake", {})
    assert source is not None
    plain, corrupt = (EnvPool(source, workers=0, corruption=c) for c in (None, Corruption(1.0, "mask")))
    (a, b), actions = ((p.reset({"x": 3})["x"] for p in (plain, corrupt)), {"x": Reply("<action>Right</action>")})
    assert isinstance(a, TimeStep) and isinstance(b, TimeStep)
    assert a.observation != b.observation and a.state == b.state
    after = [p.step(actions)["x"] for p in (plain, corrupt)]
    assert after[0].state == after[1].state and after[0].done == after[1].done  # type: ignore[union-attr]


def test_only_worlds_of_one_agent_can_be_corrupted() -> None:
    with pytest.raises(ConfigError, match="'arithmetic' is none"):
        worlds.make("arithmetic", seed=0, corruption=Corruption(0.1))
    with pytest.raises(ConfigError, match="has several agents"):
        worlds.make("hallway", seed=0, corruption=Corruption(0.1))
