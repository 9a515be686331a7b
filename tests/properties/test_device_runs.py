"""Two steps of each kind of run on a device: tensors of two devices never meet, and the weights move.

On the device that GXPO_TEST_DEVICE names, such as cuda, else on the strict one (`tests.strict_device`).
"""

from pathlib import Path

import pytest
from tests.methods.test_training_steps import FLOWS, JUDGED, LAKE, NAMES, SMOKE, UNTRAINED, parity
from tests.strict_device import NAME, counting, device
from tests.thorough import ALL

import gxpo

__all__ = ["device"]
SMALL = {"tasks.per_step": 2, "rollout.group_size": 4, "sampling.max_new_tokens": 6, "eval.tasks": 2, "eval.every": 0}
PAIRS = str(Path(__file__).parents[1] / "pairs.jsonl")
PHASES = [
    {"method": "dpo", "steps": 1},
    {"method": "grpo", "steps": 1, "reference": "previous", "objective.kl.coef": 0.1},
]
KINDS = {
    "prompts": ("grpo", {}),
    "episodes": ("gigpo", LAKE),
    "teams": ("dr_mas", {"rollout.graph": "second_opinion"}),
    "trees": ("tree_grpo", {"rollout.delimiter": ","}),
    "vision": ("grpo", {"model": "tiny-vision:cold", "task": "shapes"}),
    "flow": (
        "flow_grpo",
        {"model": "flow", "task": "points", "tasks.options": {"radius": 1.0}, "sampling.max_new_tokens": 9},
    ),
    "lora": ("grpo", {"learner.lora_rank": 4, "objective.kl.coef": 0.1}),
    "value heads": ("gae", {}),
    "preferences": (
        "simpo",
        {"task": PAIRS, "rollout": "logged", "reward": "math", "tasks.options": {"held_out_fraction": 0.4}},
    ),
    "distillation": ("dgpo_distill", {"teacher.model": "tiny:cold"}),
    "asynchronous": ("grpo", {"async.max_staleness": 1, "weight.mismatch": "truncated"}),
    "phases": ("grpo", {"phases": PHASES}),
}


def trained(method, device, folder, scorer, **keys):
    """A run of two steps of a model that has learnt nothing."""
    keys = {**SMALL, "learner.device": device, **keys}
    if keys.get("rollout") == "logged" or "rollout.group_size" not in gxpo.method(method).keys:
        keys.pop("rollout.group_size", None)
    model, task = keys.pop("model", "tiny:cold"), keys.pop("task", "arithmetic")
    steps = None if "phases" in keys else 2
    return gxpo.train(model, task, method, steps, scorer, out=folder / "run", set=keys)


QUICK = ("prompts", "flow", "asynchronous")  # the other kinds run in the slow stage


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in KINDS])
@pytest.mark.filterwarnings("ignore")
def test_each_kind_of_run_trains_on_a_device(kind, device, tmp_path, hardly_warm):
    method, keys = KINDS[kind]
    own = kind in ("flow", "preferences")
    with counting() as counts:
        run = trained(method, device, tmp_path, None if own else lambda completion: parity(completion), **keys)
    rows = run.metrics
    assert [row["step"] for row in rows] == [1, 2] and rows[-1]["empty_steps"] == 0
    assert all(row["grad_norm"] > 0 for row in rows)
    parameters = list(run.trainer.learner.optimiser.parameter_by_name.values())
    assert {p.device.type for p in parameters} == {device}
    assert device != NAME or counts.calls > 100


@pytest.mark.parametrize("name", [pytest.param(name, marks=ALL) for name in NAMES])
@pytest.mark.filterwarnings("ignore")
def test_every_method_trains_on_a_device(name, device, tmp_path, hardly_warm):
    keys = {"tasks.per_step": 4, **SMOKE.get(name, {})}
    own = name in FLOWS or name in JUDGED or "reward" in keys or "scoring.weights" in keys
    run = trained(name, device, tmp_path, None if own else lambda completion: parity(completion), **keys)
    assert [row["step"] for row in run.metrics] == [1, 2]
    assert name in UNTRAINED or all(row["grad_norm"] > 0 for row in run.metrics)
