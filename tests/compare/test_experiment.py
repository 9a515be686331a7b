"""A comparison as runs: configurations, budgets, seeds, what is refused before anything runs."""

import json

import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.arms import make_arms
from gxpo.compare.experiment import (
    Plan,
    check,
    make_setting,
    parse_budget,
    refuse_other,
    run_keys,
    tuned_plan,
    with_horizons,
)
from gxpo.compare.jobs import Job
from gxpo.compare.results import Arm, Budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("60000", Budget("tokens", 60000)),
        ("60k", Budget("tokens", 60000)),
        ("1.5M", Budget("tokens", 1.5e6)),
        ("60_000 tokens", Budget("tokens", 60000)),
        ("90s", Budget("seconds", 90)),
        ("10min", Budget("seconds", 600)),
        ("2h", Budget("seconds", 7200)),
        ("200updates", Budget("updates", 200)),
    ],
)
def test_budgets(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "k", "-5", "0", "10 apples", "inf"])
def test_what_is_no_budget(text):
    with pytest.raises(ConfigError, match="write tokens"):
        parse_budget(text)


def test_a_task_takes_the_setting_that_is_known_for_it():
    listed_setting, by_task = make_setting("sums"), make_setting("arithmetic")
    assert by_task.keys["task"] == "arithmetic"
    assert listed_setting.budget == by_task.budget
    changed = make_setting("sums", sets=["optim.lr=1e-3"], budget=Budget("updates", 5), measure="eval_length")
    assert (changed.keys["optim.lr"], changed.budget, changed.measure) == (1e-3, Budget("updates", 5), "eval_length")


def test_an_unknown_task_needs_a_budget():
    with pytest.raises(ConfigError, match="has no budget of its own; did you mean 'sums'"):
        make_setting("sum")
    assert make_setting("countdown", budget=Budget("tokens", 10)).keys == {"model": "tiny", "task": "countdown"}


def test_a_file_of_keys(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: tiny\ntask: countdown\nmethod: rloo\nseed: 3\noptim: {lr: 1.0e-3}\n")
    setting = make_setting(str(file), budget=Budget("tokens", 10))
    assert setting.name == "mine"
    assert setting.keys == {"model": "tiny", "task": "countdown", "optim.lr": 1e-3}


def test_arms_of_a_seed_differ_in_their_own_keys_alone():
    setting = make_setting("sums")
    one, two = (run_keys(setting, Arm(m, {"method": m}), 3) for m in ("grpo", "rloo"))
    assert {k for k in one if one[k] != two[k]} == {"method"}
    assert (one["seed"], one["trainer.max_tokens"]) == (3, int(setting.budget.amount))


def plan(tmp_path, arms, **options):
    setting = make_setting("sums", budget=Budget("tokens", 1000))
    return Plan(setting, make_arms(arms, setting.keys), [0, 1], tmp_path, **options)


def test_runs_come_seed_by_seed(tmp_path):
    paths = [job.path.relative_to(tmp_path).as_posix() for job in plan(tmp_path, ["rloo"]).jobs()]
    assert paths == [
        "grpo/seed-0",
        "rloo/seed-0",
        "shuffled/seed-0",
        "grpo/seed-1",
        "rloo/seed-1",
        "shuffled/seed-1",
    ]


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("grop", "grop"),
        ("grpo:credit.scal=none", "credit.scal"),
        ("flow_grpo", "samples latents"),
    ],
)
def test_what_can_not_run_is_refused_before_anything_does(tmp_path, arm, message):
    with pytest.raises(ConfigError, match=message):
        check(plan(tmp_path, [arm]))
    assert not list(tmp_path.iterdir())


def test_a_directory_of_another_comparison_is_refused(tmp_path):
    job = plan(tmp_path, ["rloo"]).jobs()[0]
    job.path.mkdir(parents=True)
    (job.path / "job.json").write_text(json.dumps({**job.keys, "optim.lr": 0.5}))
    with pytest.raises(ConfigError, match=r"grpo/seed-0 was made with optim.lr=0.5, not 0.0001: give another --out"):
        check(plan(tmp_path, ["rloo"]))
    refuse_other(Job(tmp_path / "elsewhere", job.keys))
    listed = Job(tmp_path / "listed", {**job.keys, "task": "q.jsonl"})
    listed.path.mkdir()
    (listed.path / "job.json").write_text(json.dumps(dict(listed.keys)))  # begun when steps counted from 0
    with pytest.raises(ConfigError, match="was made with tasks in another order"):
        refuse_other(listed)
    (listed.path / "job.json").write_text(json.dumps({**listed.keys, "first_step": 1}))
    refuse_other(listed)


def test_tuning_tries_every_value_on_seeds_that_are_not_reported(tmp_path):
    tuned = plan(tmp_path, ["rloo"], tuning={"optim.lr": [1e-4, 1e-3], "rollout.group_size": [4, 8]}, tuning_seeds=2)
    arm = tuned.arms[1]
    assert len(tuned.candidates(arm)) == 4
    jobs = tuned.tuning_jobs(arm, {"optim.lr": 1e-3, "rollout.group_size": 4})
    assert [job.keys["seed"] for job in jobs] == [1000, 1001]
    assert {(job.keys["optim.lr"], job.keys["rollout.group_size"]) for job in jobs} == {(1e-3, 4)}
    final = tuned_plan(tuned, {"rloo": {"optim.lr": 1e-3}})
    assert {job.keys["optim.lr"] for job in final.jobs() if "rloo" in str(job.path)} == {1e-3}
    assert {job.keys["optim.lr"] for job in final.jobs() if "rloo" not in str(job.path)} == {1e-4}


def test_arms_that_read_run_progress_get_their_expected_steps(tmp_path):
    experiment_plan = plan(
        tmp_path, ["rloo", "rloo:optim.schedule=cosine", "mine=rloo:optim.schedule=linear,trainer.steps=7"]
    )
    costs = {arm.label: {"steps": 12} for arm in experiment_plan.arms}
    steps = {arm.label: arm.keys.get("trainer.steps") for arm in with_horizons(experiment_plan, costs).arms}
    assert steps == {"grpo": None, "rloo": None, "rloo:optim.schedule=cosine": 12, "mine": 7, "shuffled": None}
