"""Suites: what their files state, what is refused, and that the study which validates them runs these very settings."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gxpo.base import yamltext
from gxpo.base.errors import GxpoError
from gxpo.compare import suites
from gxpo.compare.arms import make_arms
from gxpo.compare.results import Arm, Budget
from gxpo.parts.definition import SettingValue
from gxpo.training.config import resolve

STUDY = Path(__file__).parents[2] / "studies" / "suites.yaml"
PROMISED = ["agents", "length", "off-policy", "reasoning", "stalled", "teams", "transfer"]
MINE = """
idea: sums
settings: [{name: mine, keys: {task: arithmetic}, budget: {tokens: 500}}]
arms: [rloo]
"""


@cache
def study() -> dict[str, Any]:
    return yamltext.plain(yamltext.load(STUDY.read_text(encoding="utf-8"), "study"), "study")


def arms_of(name: str, setting: suites.Setting) -> list[Arm]:
    return make_arms(suites.suite(name).arms, setting.keys)


def resolved(keys: Mapping[str, Any]) -> None:
    resolve({k: SettingValue(v, "suite") for k, v in keys.items()})


def test_the_suites_that_are_promised_are_there():
    assert suites.names() == PROMISED


@pytest.mark.parametrize("name", PROMISED)
def test_every_arm_on_every_setting_is_a_valid_run(name: str):
    actual = suites.suite(name)
    for setting in actual.settings:
        for arm in arms_of(name, setting):
            resolved({**setting.keys, **arm.keys, "seed": 1})


def test_a_setting_is_found_by_its_name():
    sums = suites.setting("sums")
    assert (sums.keys["task"], sums.budget, sums.measure, sums.better) == (
        "arithmetic",
        Budget("tokens", 60000.0),
        "eval_accuracy",
        "more",
    )
    assert suites.setting("lake").keys["tasks.options"] == {"style": "bare"}


def test_the_study_runs_the_settings_of_the_suites():
    stated_settings = study()["settings"]
    assert stated_settings.keys() == suites.settings().keys()
    for name, setting in suites.settings().items():
        assert stated_settings[name].get("better", "more") == setting.better
        assert (stated_settings[name]["keys"], stated_settings[name]["measure"]) == (setting.keys, setting.measure)
        assert stated_settings[name]["budget"] == {setting.budget.unit: setting.budget.amount}


def test_the_study_runs_arms_and_a_control_with_ten_seeds():
    for name in suites.names():
        for setting in suites.suite(name).settings:
            [of] = [e for e in study()["experiments"] if e["id"] == f"suite_{name}_{setting.name}".replace("-", "_")]
            listed = [Arm(a["label"], a["keys"], "control" if a.get("control") else "arm") for a in of["arms"]]
            assert [Arm(**of["base"], kind="base"), *listed] == arms_of(name, setting)
            assert of["setting"] == setting.name
            assert of["seeds"] >= (3 if name == "transfer" else 10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: suites.suite("stall"), "no suite 'stall'; did you mean 'stalled'?; there are agents, length"),
        (lambda: suites.setting("sum"), "no setting 'sum'; did you mean 'sums"),
        (lambda: suites.parse("x", "- a"), "a suite is a mapping with idea, settings and arms"),
        (lambda: suites.parse("x", "a: ["), "suite x:1: not YAML"),
        (lambda: suites.parse("x", MINE.replace("idea: sums", "")), "suite x: idea: Field required"),
        (lambda: suites.parse("x", MINE + "arm: 3"), "suite x: arm: Extra inputs are not permitted"),
        (lambda: suites.parse("x", MINE.replace("tokens", "token")), "a budget is of tokens, seconds, updates, not of"),
        (lambda: suites.parse("x", MINE.replace("500", "0")), "a budget is above 0, not 0"),
        (lambda: suites.parse("x", MINE.replace("500", "true")), "a budget is above 0, not True"),
        (lambda: suites.parse("x", MINE.replace("task:", "method:")), "setting mine: method is an arm's or a run's"),
        (lambda: suites.parse("x", MINE.replace("[rloo]", "[1]")), "suite x: arms.0: Input should be a valid string"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(call: Any, said: str):
    with pytest.raises(GxpoError) as error:
        call()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_one_name_for_two_settings_is_refused(monkeypatch: pytest.MonkeyPatch):
    texts = {"a": MINE, "b": MINE.replace("500", "600")}
    monkeypatch.setattr(suites, "names", lambda: ["a", "b"])
    monkeypatch.setattr(suites, "suite", lambda name: suites.parse(name, texts[name]))
    with pytest.raises(GxpoError, match="suite b: setting 'mine' is another one in another suite"):
        suites.settings()


def test_a_measured_difference_keeps_its_place():
    row = "{setting: mine, method: rloo, difference: 0.05, low: 0.01, high: 0.09, seeds: 10, commit: abc1234}"
    actual = suites.parse("x", MINE + f"validated: [{row}]").validated[0]
    assert (actual.difference, actual.low, actual.high, actual.seeds) == (0.05, 0.01, 0.09, 10)
