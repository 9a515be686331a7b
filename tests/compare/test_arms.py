"""Arms as people type them."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.arms import folder, make_arms, parse_arm, with_origin
from gxpo.training.config import resolve

SETTING = {"model": "tiny", "task": "arithmetic", "optim.lr": 1e-4}


def test_a_method_alone():
    arm = parse_arm("dr_grpo+gspo", SETTING)
    assert (arm.label, dict(arm.keys)) == ("dr_grpo+gspo", {"method": "dr_grpo+gspo"})


def test_keys_after_a_colon_with_lists_and_numbers():
    arm = parse_arm("grpo:credit.scale=none,optim.lr=1e-3,optim.betas=[0.9, 0.95]", SETTING)
    assert dict(arm.keys) == {
        "method": "grpo",
        "credit.scale": "none",
        "optim.lr": 1e-3,
        "optim.betas": [0.9, 0.95],
    }
    assert arm.label == "grpo:credit.scale=none,optim.lr=1e-3,optim.betas=[0.9, 0.95]"


def test_a_name_of_its_own():
    arm = parse_arm("no scale=grpo:credit.scale=none", SETTING)
    assert arm.label == "no scale"
    assert dict(arm.keys) == {"method": "grpo", "credit.scale": "none"}


def test_presets_of_other_trainers():
    assert parse_arm("grpo@trl", SETTING).keys["method"] == "grpo@trl"


def test_a_file_states_what_the_setting_says_or_its_own(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: tiny\ntask: arithmetic\nmethod: rloo\nrollout: {group_size: 16}\noptim: {lr: 1.0e-4}\n")
    arm = parse_arm(str(file), SETTING)
    assert arm.label == "mine"
    assert dict(arm.keys) == {"method": "rloo", "rollout.group_size": 16}
    assert parse_arm(f"big={file}", SETTING).label == "big"


def test_misspelt_key_is_refused_although_its_value_is_a_method():
    for text, key in (("rloo:objectiv=gspo", "objectiv"), ("mine=rloo:credit.scal=dr_grpo", "credit.scal")):
        arm = parse_arm(text, SETTING)
        with pytest.raises(ConfigError, match=f"unknown key '{key}'; did you mean"):
            resolve(with_origin(arm.keys, "arm"))


def test_an_arm_with_another_task_is_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("task: countdown\nmethod: rloo\n")
    with pytest.raises(ConfigError, match=r"arm mine: task=countdown is not the comparison's \(arithmetic\)"):
        parse_arm(str(file), SETTING)
    with pytest.raises(ConfigError, match="arms share seed"):
        parse_arm("grpo:seed=3", {**SETTING, "seed": 0})


def test_base_first_and_the_control_last():
    arms = make_arms(["dr_grpo", "grpo", "rloo"], SETTING)
    assert [(a.label, a.kind) for a in arms] == [
        ("grpo", "base"),
        ("dr_grpo", "arm"),
        ("rloo", "arm"),
        ("shuffled", "control"),
    ]
    assert dict(arms[-1].keys) == {"method": "grpo", "scoring.shuffle": True}


def test_grpo_is_added_where_it_was_not_asked_for():
    assert [a.label for a in make_arms(["rloo"], SETTING)] == ["grpo", "rloo", "shuffled"]
    assert [(a.label, a.kind) for a in make_arms(["rloo", "opo"], SETTING, controls=False)] == [
        ("rloo", "base"),
        ("opo", "arm"),
    ]
    assert [a.label for a in make_arms(["rloo"], SETTING, base="dapo")] == ["dapo", "rloo", "shuffled"]


def test_equal_arms_and_equal_names_are_refused():
    with pytest.raises(ConfigError, match="are the same"):
        make_arms(["a=rloo", "b=rloo"], SETTING)
    with pytest.raises(ConfigError, match="two arms are called a"):
        make_arms(["a=rloo", "a=opo"], SETTING)


def test_one_arm_alone_is_refused():
    with pytest.raises(ConfigError, match="rloo alone is nothing to compare"):
        make_arms(["rloo"], SETTING, controls=False)
    assert [a.label for a in make_arms(["grpo"], SETTING)] == ["grpo", "shuffled"]


def test_folders_are_plain_names():
    assert folder("../x y:z=1") == "x_y_z=1"
