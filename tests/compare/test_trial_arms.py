"""Arms of a trial: settings as typed, commands of other trainers, and remedies that are settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.trial_arms import (
    arms_of,
    check_template,
    command_of,
    notes_on_sampling,
    parse_arm,
    refuse_meaning,
    remedies_of,
    remedy_arm,
    templates,
)
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series

FIELDS = ["learning_rate", "beta", "warmup_steps", "num_generations", "reward_weights", "max_completion_length"]


def test_values_are_typed_and_commas_part_keys() -> None:
    arm = parse_arm("learning_rate=1e-6, reward_weights=[1.0, 0.5],beta=/10", FIELDS)
    assert dict(arm.keys) == {"learning_rate": 1e-6, "reward_weights": [1.0, 0.5], "beta": "/10"}
    # another trainer's are left as they were typed
    assert parse_arm("optim.lr=1e-6", None).keys == {"optim.lr": "1e-6"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rat=1", "TRL has no setting 'learning_rat'; did you mean 'learning_rate'?"),
        ("beta", "write KEY=VALUE"),
        ("beta=0,beta=1", "beta is set twice"),
        ("seed=3", "seed is set by the trial itself"),
        ("method=grpoo", "grpoo"),
        ("method=hicra_missing", "hicra"),
    ],
)
def test_arm_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        parse_arm(text, FIELDS)


def test_same_arms_and_other_rewards_are_refused() -> None:
    with pytest.raises(ConfigError, match="arms beta=0 and beta= 0 are the same"):
        arms_of(["beta=0", "beta= 0"], FIELDS)
    with pytest.raises(ConfigError, match="changes what reward is: compare by another figure"):
        refuse_meaning(arms_of(["reward_weights=[1, 0]"], FIELDS), "reward")
    refuse_meaning(arms_of(["reward_weights=[1, 0]"], FIELDS), "rewards/right/mean")


def test_arms_that_sample_in_another_way_have_a_note() -> None:
    arms = arms_of(["temperature=1.2", "beta=0", "actor_rollout_ref.rollout.top_p=0.9"], None)
    [note] = notes_on_sampling(arms, "reward")
    assert note.startswith("temperature=1.2, actor_rollout_ref.rollout.top_p=0.9: reward is of answers")
    assert notes_on_sampling(arms, "eval_reward") == notes_on_sampling(arms[:1], "reward") == []


def test_every_template_has_its_places_and_says_what_ran() -> None:
    for name, template in templates().items():
        check_template(template["command"])
        words = command_of(
            template["command"].replace("{script}", "run.sh"), {"a.b": "1"}, override=template["override"], steps=9,
            seed=4, out=Path("o"),
        )  # fmt: skip
        assert words[:2] == ["bash", "run.sh"] and "4" in " ".join(words) and "{" not in " ".join(words), name
        assert "stand-in" in template["ran"] and " at " in template["read"]
    assert command_of("x {overrides}", {"k": 1}, override="--{key} {value}", steps=1, seed=1, out=Path()) == [
        "x",
        "--k",
        "1",
    ]


def test_command_without_its_places_is_refused() -> None:
    for template, message in (("run {seed}", "no {overrides}"), ("run {overrides}", "no {seed}")):
        with pytest.raises(ConfigError, match=message):
            check_template(template)


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("learning_rate / 10 with warmup_steps=10, from a checkpoint before the collapse",
         {"learning_rate": "/10", "warmup_steps": 10}),
        ("beta=0.0, or beta=0.001", {"beta": 0.0}),
        ("double max_completion_length", {"max_completion_length": "*2"}),
        ("gxpo.adapters.trl.GRPOTrainer(..., method='ngrpo') learns from groups that are all wrong",
         {"method": "ngrpo"}),
        ("method=grpo+tis weights tokens by truncated importance sampling", {"method": "grpo+tis"}),
        # the value is another setting of the script: nothing that could be typed
        ("num_iterations=1, steps_per_generation=gradient_accumulation_steps", None),
        ("score the argument `completions`, one number for each", None),
        ("lower its entry of reward_weights", None),
    ],
)  # fmt: skip
def test_remedy_is_a_setting_or_work_for_a_person(line: str, keys: dict[str, object] | None) -> None:
    arm = remedy_arm(line)
    assert (None if arm is None else dict(arm.keys)) == keys


def test_remedies_of_a_collapse_are_settings_first() -> None:
    steps = np.arange(1.0, 61.0)
    reward = np.where(steps < 20, 0.6, 0.0) + 0.01 * np.sin(steps)
    entropy = np.where(steps < 20, 1.0, 0.01)
    columns = {"reward": reward, "entropy": entropy, "grad_norm": np.where(steps < 20, 0.5, 50.0)}
    log = RunLog(series={k: Series(steps, v, k) for k, v in columns.items()}, source="trl", read=["log"])
    remedies = remedies_of(log, FIELDS)
    assert remedies.arms and len(remedies.arms) <= 4
    assert all(arm.keys.keys() <= {*FIELDS, "method"} for arm in remedies.arms)
    # changes of method come last, and there is one at most
    assert [("method" in a.keys) for a in remedies.arms] == sorted("method" in a.keys for a in remedies.arms)
    assert sum("method" in a.keys for a in remedies.arms) <= 1
