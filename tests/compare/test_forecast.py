"""What a comparison is said to cost, and that finding it out costs little beside the comparison."""

import json
import math

import pytest

from gxpo.compare.arms import make_arms
from gxpo.compare.command import SeedSpread, plan_as_data, plan_lines
from gxpo.compare.experiment import Plan, make_setting
from gxpo.compare.forecast import forecast
from gxpo.compare.results import Budget

FIGURES = {"time_run_s": 9.0, "steps": 5, "generated_tokens_per_step": 40}
STEP = {"tasks.per_step": 2, "rollout.group_size": 5, "sampling.max_new_tokens": 10}  # 100 tokens at most


class Probed:
    """Stands in for the processes: notes which methods are measured."""

    workers = 2

    def __init__(self):
        self.asked = []

    def probe(self, keys):
        self.asked += [run_keys["method"] for run_keys in keys]
        return [dict(FIGURES) for _ in keys]


def plan(out, amount, arms=("rloo",), unit="tokens", seeds=2):
    setting = make_setting("sums", budget=Budget(unit, amount), sets=[f"{k}={v}" for k, v in STEP.items()])
    all_arms = make_arms(arms, setting.keys, base="grpo", controls=False)
    return Plan(setting, all_arms, range(seeds), out)


def foreseen(plan):
    runner, lines = Probed(), []
    return forecast(plan, runner, lines.append), runner.asked, lines


def test_every_arm_is_measured_for_a_tenth_of_the_runs_or_less(tmp_path):
    # 2 arms x 2 steps x 100 tokens = 400; 2 arms x 2 seeds x 1,000 = 4,000
    cost, requests, lines = foreseen(plan(tmp_path, 1000))
    assert requests == ["grpo", "rloo"] and cost.unmeasured == ""
    assert lines == ["two steps of grpo, rloo, to see what they cost"]
    assert (cost.runs, cost.missing, cost.seconds, cost.tokens) == (4, 4, 4 * 10.0 / 2, 4 * 200)
    assert foreseen(plan(tmp_path, 1000))[1] == []  # kept in costs.json
    assert len(json.loads((tmp_path / "costs.json").read_text())) == 2


def test_the_base_alone_is_measured_where_all_would_be_more(tmp_path):
    # 400 of 2 x 2 x 600 = 2,400 is a sixth; 200 of them a twelfth
    cost, requests, lines = foreseen(plan(tmp_path, 600))
    assert requests == ["grpo"] and lines == [
        "two steps of grpo, to see what they cost; the others are taken to cost as much"
    ]
    assert cost.per_run == {"grpo": 10.0, "rloo": 10.0} and list(cost.costs) == ["grpo"]
    assert (cost.seconds, cost.tokens) == (20.0, 800)


@pytest.mark.parametrize(
    ("unit", "amount", "tokens", "share"),
    [("tokens", 200, 800, "50%"), ("updates", 2, None, "50%"), ("seconds", 5, None, "100%")],
)
def test_nothing_is_measured_where_that_is_much_of_the_runs(tmp_path, unit, amount, tokens, share):
    run_plan = plan(tmp_path, amount, unit=unit)
    cost, requests, lines = foreseen(run_plan)
    assert requests == [] and lines == [] and not (tmp_path / "costs.json").exists()
    assert math.isnan(cost.seconds) and math.isnan(cost.tokens) == (tokens is None)
    spread = SeedSpread(0.05, 0.0, "assumed")
    line = plan_lines(run_plan, cost, spread, Probed())[1]
    assert line.endswith(f"the time is not measured: two steps of each arm are up to {share} of the runs")
    data = plan_as_data(run_plan, cost, spread)
    assert (data["time_s"], data["generated_tokens"]) == (None, tokens)
    json.dumps(data, allow_nan=False)


def test_arm_that_reads_the_number_of_steps_is_always_measured(tmp_path):
    cost, requests, _ = foreseen(plan(tmp_path, 200, ["rloo:optim.schedule=cosine"]))
    assert requests == ["rloo"] and cost.seconds == 20.0 and "rloo:optim.schedule=cosine" in cost.costs
