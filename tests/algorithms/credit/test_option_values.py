"""Values of options: the card's numbers, what each setting reads and leaves, refusals."""

import math

import pytest
import torch

from gxpo.algorithms.credit.option_values import OptionValues, imitation_weight, option_targets
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS

F64 = torch.float64


def column(*values):
    return torch.tensor(values, dtype=F64)


def settled(n, length, cost, discount):
    """Values of a path of so many rows to success, from their own targets until nothing changes."""
    value = torch.zeros(length, dtype=F64)
    following = torch.tensor([*range(1, length), -1])
    for _ in range(length):
        value = option_targets(torch.zeros(length), value, following, n, discount) + cost
    return value


@pytest.mark.parametrize(("n", "expected"), [(1, -9.561792), (5, -1.99)])
def test_an_option_costs_one_reward_and_one_discount(n, expected):
    """Ten rows, discount .99, reward -1: -(1 - .99^10) / .01, and for options of five -1 - .99."""
    assert float(settled(n, 10, -1.0, 0.99)[0]) == pytest.approx(expected, abs=1e-6)


def test_weights_of_advantages():
    """e^1.5, e^-1.5, and e^6 = 403 cut."""
    actual = imitation_weight(column(0.5, -0.5, 2.0), 1 / 3, 100.0).tolist()
    assert actual == pytest.approx([4.481689, 0.22313, 100.0], abs=1e-6)


def forest():
    """A success of two turns (2 and 1 tokens) and a failure of one turn (2 tokens)."""
    turns = [{"observation": [5], "action": [1, 2]}, {"observation": [6], "action": [3]}]
    lines = [
        {"id": "a", "turns": turns, "reward": 1.0, "success": True},
        {"id": "b", "turns": [{"observation": [5], "action": [4, 4]}], "reward": 0.0, "success": False},
    ]
    return Forest.from_records([{"schema": "gxpo.rollouts/1", "group": "g", **line} for line in lines])


def signals(**values):
    return Signals({name.replace("__", "@"): column(*x) for name, x in values.items()})


VALUE = (0.1, 0.2, 0.3, 0.4, 0.5)


def test_turns_bootstrap_from_the_next_turns_first_token():
    """Discount .5: .5 * .3 = .15 and 1; the failure 0. A = target - V, of all tokens of a turn."""
    part = OptionValues(discount=0.5, policy_credit="advantage")
    target = part.targets(forest(), signals(value=VALUE), 0)["value_target"].tolist()
    assert [target[i] for i in (0, 2, 3)] == pytest.approx([0.15, 1.0, 0.0])
    assert math.isnan(target[1]) and math.isnan(target[4])
    assert part(forest(), signals(value=VALUE), 0).tolist() == pytest.approx([0.05, 0.05, 0.7, -0.4, -0.4])


def test_options_of_two_tokens():
    """Token rows, n 2, discount .5: .5 * .3, then 1 for both that reach the end; the failure 0."""
    part = OptionValues(level="token", option=2, discount=0.5)
    target = part.targets(forest(), signals(value=VALUE), 0)["value_target"].tolist()
    assert target == pytest.approx([0.15, 1.0, 1.0, 0.0, 0.0])


def test_a_cost_counts_options_to_success():
    """-1 an option, discount .5: -1 + .5 * .3 = -.85, then -1; the failure goes on for ever: -1 + .5 * -2 = -2."""
    part = OptionValues(discount=0.5, cost=-1.0)
    target = part.targets(forest(), signals(value=VALUE), 0)["value_target"].tolist()
    assert [target[i] for i in (0, 2, 3)] == pytest.approx([-0.85, -1.0, -2.0])


def test_two_heads_are_fitted_to_each_other():
    """chunk: .5 * short; short: .5 * sigmoid(chunk), chunk's head gives log-odds: sigmoid(0) = .5."""
    part = OptionValues(discount=0.5, two_heads=True, logits=True, policy_credit="none")
    given = signals(value__chunk=(0.0,) * 5, value__short=VALUE)
    target = part.targets(forest(), given, 0)
    assert set(target) == {"value_logit_target@chunk", "value_target@short"}
    chunk, short = target["value_logit_target@chunk"].tolist(), target["value_target@short"].tolist()
    assert [chunk[i] for i in (0, 2, 3)] == pytest.approx([0.15, 1.0, 0.0])
    assert [short[i] for i in (0, 2, 3)] == pytest.approx([0.25, 1.0, 0.0])
    assert part(forest(), given, 0).tolist() == [0.0] * 5


def test_what_the_policy_learns():
    assert OptionValues(policy_credit="all")(forest(), signals(value=VALUE), 0).tolist() == [1.0] * 5
    weight = OptionValues(discount=0.5, temperature=0.05, max_weight=2.0)(forest(), signals(value=VALUE), 0).tolist()
    assert weight == pytest.approx([2.0, 2.0, 2.0, math.exp(-8), math.exp(-8)])


def test_an_unscored_attempt_trains_no_value():
    line = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "turns": [{"observation": [5], "action": [1]}]}
    target = OptionValues(cost=-1.0).targets(Forest.from_records([{**line, "reward": None}]), signals(value=(0.1,)), 0)
    assert math.isnan(float(target["value_target"][0]))


def test_a_cost_without_a_discount_is_refused():
    with pytest.raises(ConfigError, match="below 1"):
        OptionValues(cost=-1.0, discount=1.0)


def test_log_odds_need_a_credit_that_reads_them():
    import gxpo

    with pytest.raises(ConfigError, match="value_logit_target"):
        gxpo.method("gae", {"objective.add.value.form": "bce"})
    assert "gae" in METHODS
