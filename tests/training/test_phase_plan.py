"""Plans of phases: parsing, repetitions, conditions on metrics, shares of the steps."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.training.phase_plan import Phase, Until, expand, may_change, shares


def test_a_repetition_is_written_out_in_order():
    plan = expand([{"repeat": 2, "phases": [{"method": "dpo", "steps": 3}, {"method": "grpo"}]}, {"method": "gspo"}])
    assert [p.keys["method"].value for p in plan] == ["dpo", "grpo", "dpo", "grpo", "gspo"]
    assert [p.steps for p in plan] == [3, None, 3, None, None]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"phases: write a list of mappings"),
        ([{"method": "dpo", "steps": 0}], r"phases\[1\].steps is 0: a whole number, 1 or more"),
        ([{"repeat": 2, "method": "dpo"}], r"phases\[1\]: a repetition has repeat and phases, and nothing else"),
        ([{"method": "dpo"}, {"seed": 1}], r"phases\[2\]: seed holds for the whole run"),
        ([{"repeat": 1001, "phases": [{}]}], r"phases\[1\]: 1001 phases, at most 1000"),
    ],
)
def test_an_error_names_the_entry(value, message):
    with pytest.raises(ConfigError, match=message):
        expand(value)


def test_a_condition_reads_the_mean_of_its_last_readings():
    until = Until.parse("success_rate >= 0.8 over 2")
    assert until == Until("success_rate", ">=", 0.8, 2) and str(until) == "success_rate >= 0.8 over 2"
    assert [until.is_met(x) for x in ([], [1.0], [0.2, 0.9], [0.0, 0.7, 0.9])] == [False, False, False, True]
    assert Until.parse("kl <= 0.5").is_met([9.0, 0.5]) and not Until.parse("kl <= 0.5").is_met([0.6])
    with pytest.raises(ConfigError, match="write METRIC >= NUMBER"):
        Until.parse("success_rate > 0.8")


def test_phases_without_steps_share_what_is_left():
    assert shares([Phase(), Phase(steps=5), Phase()], 11) == [3, 5, 3]
    assert shares([Phase(), Phase(steps=5)], 2) == [1, 5]  # at least one step each


def test_a_phase_may_change_parts_and_some_settings_only():
    changes = [may_change(key) for key in ("objective.kl.coef", "optim.lr", "task", "seed", "trainer.steps")]
    assert changes == [True, True, True, False, False]
