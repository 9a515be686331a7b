"""Healthy and mild runs: a healthy one deserves no finding above a note, a mild one a warning at most."""

from __future__ import annotations

from typing import Any

ACCURACY = ("accuracy", {})
EVAL = {"prompts": 64, "steps": 10}

HEALTHY: list[dict[str, Any]] = [
    {"name": "plain", "leave": "state+parquet", "config": True, "steps": 50},
    {"name": "plain-eval", "leave": "state", "eval": EVAL, "steps": 50},
    {"name": "sums-no-eval", "leave": "console", "warm": "add_sure", "steps": 60, "cfg": {"learning_rate": 5e-4}},
    {"name": "saturating", "leave": "state+parquet", "warm": "rev_half", "steps": 110, "cfg": {"learning_rate": 3e-4}},
    {
        "name": "saturating-console",
        "leave": "console+parquet",
        "warm": "chat",
        "data": {"chat": True},
        "steps": 80,
        "tqdm": True,
        "cfg": {"learning_rate": 5e-4},
    },
    {"name": "slow", "leave": "state", "config": True, "steps": 80, "cfg": {"learning_rate": 2e-4}},
    {
        "name": "noisy",
        "leave": "state+parquet",
        "warm": "rev_half",
        "steps": 100,
        "cfg": {"per_device_train_batch_size": 16, "learning_rate": 5e-4},
    },
    {
        "name": "several-rewards",
        "leave": "state+parquet",
        "warm": "words",
        "rewards": [ACCURACY, ("partial", {}), ("format", {})],
        "cfg": {"max_completion_length": 24, "learning_rate": 5e-4},
        "steps": 60,
    },
    {
        "name": "several-rewards-console",
        "leave": "console",
        "config": True,
        "warm": "rev_faint",
        "rewards": [ACCURACY, ("partial", {})],
        "cfg": {"learning_rate": 5e-4, "reward_weights": [1.0, 0.5]},
    },
    {
        "name": "chat",
        "leave": "state+parquet",
        "warm": "chat",
        "data": {"chat": True},
        "eval": EVAL,
        "steps": 50,
        "cfg": {"learning_rate": 5e-4},
    },
    {"name": "kl-and-reuse", "leave": "state", "config": True, "cfg": {"beta": 0.04, "num_iterations": 2}, "steps": 60},
    {
        "name": "kl-and-reuse-console",
        "leave": "console+parquet",
        "warm": "rev_half",
        "cfg": {"beta": 0.04, "num_iterations": 2, "learning_rate": 7e-4},
        "steps": 60,
    },
    {
        "name": "greedy-falls-a-little",
        "leave": "state+parquet",
        "warm": "rev_half",
        "eval": {**EVAL, "greedy": True},
        "steps": 50,
    },
    {
        "name": "format-first",
        "leave": "state+parquet",
        "warm": "unmarked",
        "rewards": [("accuracy", {"marked": True}), ("format", {})],
        "cfg": {"learning_rate": 5e-4, "max_completion_length": 20},
        "steps": 60,
    },
    {
        "name": "long-tail",
        "leave": "state+parquet",
        "config": True,
        "warm": "words",
        "cfg": {"learning_rate": 5e-4, "max_completion_length": 20},
        "steps": 60,
    },
    {"name": "fifteen-steps", "kind": "mild", "leave": "state+parquet", "steps": 15, "cfg": {"learning_rate": 3e-4}},
    {
        "name": "fifteen-steps-console",
        "kind": "mild",
        "leave": "console",
        "warm": "add_sure",
        "steps": 12,
        "cfg": {"learning_rate": 1e-4},
    },
    {"name": "group-of-four", "leave": "state", "config": True, "cfg": {"num_generations": 4}, "steps": 60},
    {
        "name": "dr-grpo",
        "leave": "console",
        "config": True,
        "cfg": {"loss_type": "dr_grpo", "scale_rewards": "none", "learning_rate": 1e-3},
        "steps": 50,
    },
    {"name": "scaled-by-batch", "leave": "state+parquet", "cfg": {"scale_rewards": "batch"}, "steps": 50},
    {
        "name": "penalty-seldom",
        "kind": "mild",
        "leave": "state",
        "warm": "rev_half",
        "rewards": [ACCURACY, ("format", {"pattern": ".{9,}", "name": "overlong_penalty", "scale": -1.0})],
        "steps": 50,
    },
]
for _i, _recipe in enumerate(HEALTHY):
    _recipe.setdefault("kind", "healthy")
    _recipe.setdefault("expect", [])
    _recipe.setdefault("warm", "rev")
    _recipe.setdefault("rewards", [ACCURACY])
    _recipe.setdefault("steps", 40)
    _recipe.setdefault("seed", 300 + _i)
