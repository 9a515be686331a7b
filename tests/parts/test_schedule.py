"""Numbers that are functions of the step: shapes, how they are stated, that parts follow them, and resume."""

from __future__ import annotations

import math

import pytest
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.adapters.verl_asks import why_not
from gxpo.base.errors import ConfigError
from gxpo.parts.definition import is_schedule
from gxpo.parts.schedule import Schedule
from gxpo.training import config

LENGTH = {"reward.add.length": "length"}


def scheduled(key, **words):
    return gxpo.method("grpo", {**LENGTH, key: words}).fill(horizon=8.0, max_length=8, total_steps=10)


# ---------------------------------------------------------------- the function of the step
def test_the_budgets_of_the_length_curriculum():
    # 256 .7^k: 256, 179.2, 125.44, 87.808, each for 150 steps
    budget = Schedule("geometric", 256.0, 87.808, over=450, every=150)
    actual = [budget.at(step, 600) for step in (1, 150, 151, 300, 301, 450, 451, 600)]
    assert actual == pytest.approx([256, 256, 179.2, 179.2, 125.44, 125.44, 87.808, 87.808])


@pytest.mark.parametrize(
    ("shape", "middle", "fifth"),
    [
        ("linear", 3.0, 1.8),  # 1 + 4 / 2, 1 + 4 / 5
        ("cosine", 3.0, 1 + 2 * (1 - math.cos(math.pi / 5))),
        ("exponential", math.sqrt(5), 5**0.2),
        ("dip", 1 + 4 * (0.5 - 0.3) / 0.7, 1 + 4 * (1 - 0.2 / 0.3) / 2),  # up again since .3; still going down
    ],
)
def test_shapes_between_their_ends(shape, middle, fifth):
    schedule = Schedule(shape, 1.0, 5.0)
    first = 3.0 if shape == "dip" else 1.0  # it begins in the middle of its ends
    assert [schedule.at(step, 10) for step in (1, 3, 6, 11, 99)] == pytest.approx([first, fifth, middle, 5, 5])


def test_integers_stay_integers():
    assert scheduled("reward.add.length.max_length", schedule="linear", **{"from": 10, "to": 13, "over": 4}).at(2) == {
        "scheduled_reward.add.length.max_length": 11  # 10.75
    }


# ---------------------------------------------------------------- in a method
def test_a_part_follows_and_the_value_is_a_figure():
    m = scheduled("reward.add.length.coef", schedule="linear", **{"from": 0, "to": 1})
    for step, value in ((1, 0.0), (2, 0.1), (11, 1.0), (30, 1.0), (6, 0.5)):
        assert m.at(step) == {"scheduled_reward.add.length.coef": pytest.approx(value)}
        assert m.rewards["length"].coef == pytest.approx(value)


def test_options_of_functions_surrogates_and_sums():
    keys = {
        "reward.shape.signed": "shape",
        "reward.shape.signed.wrong": {"schedule": "linear", "from": -1, "to": 0, "over": 2},
        "objective.clip_high": {"schedule": "linear", "from": 0.2, "to": 0.4, "over": 2},
        "credit.add.bonus": "bonus",
        "credit.add.bonus.value": "certainty",
        "credit.add.bonus.factor": {"schedule": "linear", "from": 1, "to": 3, "over": 2},
    }
    m = gxpo.method("grpo", keys).fill(horizon=8.0, max_length=8)
    m.at(2)
    assert m.shapes["signed"].options["wrong"] == pytest.approx(-0.5)
    assert m.terms["policy"].surrogate.clip_high == pytest.approx(0.3)
    assert [part.factor for part in m.credit.parts if hasattr(part, "factor")] == [2.0]


def test_a_term_that_starts_at_nothing_is_there():
    m = scheduled("objective.kl.coef", schedule="cosine", **{"from": 0, "to": 0.04})
    assert m.terms["kl"].current_coef == 0.0 and "reference_logprob" in m.needs
    m.at(11)
    assert m.terms["kl"].current_coef == 0.04


def test_a_method_without_a_schedule_has_none_to_tell():
    assert gxpo.method("dapo").at(3) == {}


# ---------------------------------------------------------------- how it is stated
def test_files_settings_and_config_yaml_say_the_same(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: tiny:cold\ntask: arithmetic\nreward:\n  add:\n    length:\n      part: length\n"
        "      coef: {schedule: cosine, from: 0.1, to: 0.5, over: 7}\n"
    )
    first = config.load(file)
    again = tmp_path / "config.yaml"
    again.write_text(first.to_yaml())
    second = config.load(again)
    stated_text = "{schedule: cosine, from: 0.1, to: 0.5, over: 7}"
    third = config.load(None, ["reward.add.length=length", f"reward.add.length.coef={stated_text}"])
    for resolved in (first, second, third):
        actual = resolved.method.at(4)["scheduled_reward.add.length.coef"]
        assert actual == pytest.approx(0.255496, abs=1e-6)  # .1 + .2 (1 - cos(3 pi / 7))
    assert is_schedule(first.keys["reward.add.length.coef"].value)


@pytest.mark.parametrize(
    ("key", "words", "said"),
    [
        (
            "rollout.group_size",
            {"schedule": "linear", "from": 4, "to": 8},
            "rollout.group_size: a schedule moves numbers",
        ),
        ("reward.add.length.coef", {"schedule": "linear", "from": 0, "to": -1}, "coef must be 0 or more, not -1"),
        ("reward.add.length.coef", {"schedule": "linaer", "from": 0, "to": 1}, "schedule is 'linaer'"),
        ("reward.add.length.coef", {"schedule": "linear", "from": 0, "until": 1}, "a schedule has no 'until'"),
        ("reward.add.length.coef", {"schedule": "linear", "to": 1}, "needs its two ends"),
        ("reward.add.length.coef", {"schedule": "linear", "from": 0, "to": 1, "over": 0}, "over is 0"),
        ("reward.add.length.coef", {"schedule": "geometric", "from": 0, "to": 1}, "take schedule: cosine"),
        ("reward.add.length.answers", {"schedule": "linear", "from": 0, "to": 1}, "reward.add.length.answers=0"),
        ("objective.clip_high", {"schedule": "linear", "from": 0.2, "to": -0.1}, "objective.clip_high"),
    ],
)
def test_what_cant_be_is_refused_in_a_line(key, words, said):
    with pytest.raises(ConfigError, match=said) as refused:
        gxpo.method("grpo", {**LENGTH, key: words})
    assert "\n" not in str(refused.value)


def test_settings_of_the_whole_run_are_refused():
    for key, message in (("optim.lr", "set optim.schedule"), ("sampling.temperature", "setting of the whole run")):
        with pytest.raises(ConfigError, match=message):
            config.load(None, ["model=tiny:cold", f"{key}={{schedule: linear, from: 1, to: 0.5}}"])
    with pytest.raises(ConfigError, match=r"set objective\.kl\.place=loss"):
        gxpo.method("grpo", {"objective.kl.place": "reward",
                             "objective.kl.coef": {"schedule": "linear", "from": 0, "to": 1}})  # fmt: skip


def test_a_run_of_unknown_length_and_verl_are_refused():
    keys = {**LENGTH, "reward.add.length.coef": {"schedule": "linear", "from": 0, "to": 1}}
    with pytest.raises(ConfigError, match="the run's length is not known"):
        gxpo.method("grpo", keys).at(2)
    assert "verl does not say which step it is" in (why_not("grpo", overrides=keys) or "")


# ---------------------------------------------------------------- a run
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_follows_and_is_resumed_exactly(tmp_path):
    coef = {"schedule": "linear", "from": 0.0, "to": 0.4, "over": 4}
    rows = check_resumed("grpo", tmp_path, "", **LENGTH, **{"reward.add.length.coef": coef})
    assert [row["scheduled_reward.add.length.coef"] for row in rows] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
