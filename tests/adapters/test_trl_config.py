"""Settings that were given to a configuration are told from those that stayed at their defaults."""

import copy
import dataclasses
import pickle
import sys
from dataclasses import dataclass

import pytest

from gxpo.adapters import trl_config


@dataclass
class Config:
    scale_rewards: str = "group"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    world: int = dataclasses.field(init=False, default=1)


@dataclass
class Wider(Config):
    delta: float | None = None


trl_config.note_arguments(Config)
trl_config.note_arguments(Config)  # a second time changes nothing


@pytest.fixture(autouse=True)
def no_options(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])


def test_default_values_count_as_stated_where_they_were_given():
    cases = [
        (Config(), set()),
        (Config(scale_rewards="group"), {"scale_rewards"}),
        (Config("group", 0.2), {"scale_rewards", "epsilon"}),
        (Config("group", epsilon=0.3), {"scale_rewards", "epsilon"}),
        (Config(epsilon_high=None), set()),  # None leaves it out
        (Config(epsilon_high=0.28), {"epsilon_high"}),
        (Wider(epsilon=0.2), {"epsilon"}),
        (Wider(delta=None, epsilon=0.2), {"epsilon"}),
        (copy.copy(Config(epsilon=0.2)), {"epsilon"}),
        (copy.deepcopy(Config(epsilon=0.2)), {"epsilon"}),
        (pickle.loads(pickle.dumps(Wider(epsilon=0.2))), {"epsilon"}),
    ]
    wrong = [
        (config, trl_config.stated_names(config)) for config, names in cases if trl_config.stated_names(config) != names
    ]
    assert not wrong
    later = Config()
    later.epsilon = 0.3
    assert trl_config.stated_names(later) == {"epsilon"}


def test_a_call_with_every_field_states_the_command_line(monkeypatch):
    values = {"scale_rewards": "group", "epsilon": 0.2, "epsilon_high": None}
    assert trl_config.stated_names(Config(**values)) == set()
    assert trl_config.stated_names(Config(**{**values, "epsilon": 0.1})) == {"epsilon"}
    assert trl_config.stated_names(dataclasses.replace(Config(epsilon=0.2), scale_rewards="none")) == {"scale_rewards"}
    for words in (["--scale_rewards", "group"], ["--scale-rewards=group"], ["--x", "1", "--scale_rewards=group", "-v"]):
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        assert trl_config.stated_names(Config(**values)) == {"scale_rewards"}


def test_a_note_is_no_field_and_changes_no_comparison():
    trl_config = Config(epsilon=0.2)
    assert (
        trl_config == Config()
        and repr(trl_config) == repr(Config())
        and dataclasses.asdict(trl_config) == dataclasses.asdict(Config())
    )
