"""Configurations that gxpo 0.1.0 saved, every key stated, give the method that they gave then.

`saved/configurations-0.1.0.json.gz` holds what 0.1.0 wrote for each of its methods, and for each with the paper's
settings: {method: text of config.yaml}.
"""

import gzip
import json
import warnings
from pathlib import Path

import pytest
import torch
from tests.battery import battery, made_up
from tests.thorough import ALL

import gxpo
from gxpo import config

SAVED = json.loads(gzip.decompress((Path(__file__).parent / "saved" / "configurations-0.1.0.json.gz").read_bytes()))
# Methods whose defaults are nearer to their sources than those of 0.1.0: the keys that give the former ones.
FORMER = {
    "fg_expo": {
        "objective.kl.coef": 0.0,
        "weight.gaussian_rate": "group_weight",
        "weight.gaussian_rate.curve": "gaussian_rate",
    },
    "fiberpo": {"objective.surrogate": "nested_clip"},
    "grpo_vps": {"credit.scale": "std", "credit.add.progress.factor": 1.0},
    "pta_grpo": {"rollout.plans": 3, "reward.add.plan_success.function": "plan_success", "credit.ddof": 1},
    "srpo_routing@paper": {"credit.scale": "std"},
    "t_ppo": {"credit.cut": "extend", "objective.add.value.aggregate": "token_mean"},
}
FORMER["grpo_vps@paper"] = FORMER["grpo_vps"]
FORMER["t_ppo@paper"] = FORMER["t_ppo"] | {"objective.clip_high": 0.2}
BOX = r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>(.*?)</answer>|#\s*(-?\d+(?:[.,/]\d+)*)"  # braces two deep
for name in ("copo", "copo@paper", "seed_grpo", "seed_grpo@paper"):
    FORMER[name] = {"signal.answer_clusters.pattern": BOX}
STAGES = ("weights", "terms", "rollout", "shapes", "step_rewards", "rewards", "signals", "update", "kl_reward")
TOYS = {  # steps of the built-in arithmetic, which end with a comma, were the default
    **{n: {"rollout.delimiter": ","} for n in ("himac", "rose", "search_r2", "tree_grpo", "tree_po", "tree_rl")},
    "pta_grpo": FORMER["pta_grpo"] | {"rollout.delimiter": ","},
    "vsrm": {"rollout.answer_cue": "#", "rollout.answer_tokens": 0},
}
FORMER |= {name: {**TOYS[base], **FORMER.get(name, {})} for name in SAVED if (base := name.partition("@")[0]) in TOYS}


def shown(parts):
    """Parts with their options; those of a mapping in any order."""
    return repr(sorted(parts.items())) if isinstance(parts, dict) else repr(parts)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[ALL] * ("@" in n)) for n in SAVED])
def test_a_saved_configuration_gives_the_method_that_it_was(name, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(SAVED[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # former names say the new ones
        saved, now = config.load(path, []).method, gxpo.method(name, FORMER.get(name, {}))
    for stage in STAGES:
        assert shown(getattr(saved, stage)) == shown(getattr(now, stage)), stage
    saved, now = (m.fill(horizon=12.0, max_length=12, total_steps=4) for m in (saved, now))
    forest = battery(1)
    signals = made_up(now, forest, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advantages of the task's rewards alone
        assert torch.equal(saved.advantages(forest, signals), now.advantages(forest, signals))


def test_each_former_name_is_said_once(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(SAVED["gigpo"])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config.load(path, [])
    lines = [str(w.message) for w in said if issubclass(w.category, FutureWarning)]
    assert len(lines) == len(set(lines)) and any("anchor_state" in line for line in lines)
    assert all("\n" not in line for line in lines)
