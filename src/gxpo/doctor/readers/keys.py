"""The trainers' own keys of metrics -> `NAMES` of `gxpo.doctor.runlog`.

Where several keys of one trainer have one name, the first in its table counts and the others stay in `RunLog.raw`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

# TRL 1.16, trl/trainer/grpo_trainer.py (`_metrics`), and transformers' Trainer.
TRL = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_signal",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "entropy": "entropy",
    "kl": "kl",
    "clip_ratio/region_mean": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
    "clip_ratio": "clip_fraction",  # before 0.18
    "clip_ratio/low_mean": "clip_low",
    "clip_ratio/high_mean": "clip_high",
    "completions/mean_length": "length",
    "completion_length": "length",  # before 0.17, and unsloth
    "mean_completion_length": "length",
    "max_completion_length": "length_max",
    "min_completion_length": "length_min",
    "mean_terminated_completion_length": "terminated_length",
    "clipped_completions_ratio": "truncated",
    "entropy/mean": "entropy",  # ms-swift, whose other keys are these
    "completions/max_length": "length_max",
    "completions/min_length": "length_min",
    "completions/mean_terminated_length": "terminated_length",
    "completions/clipped_ratio": "truncated",
    "sampling/sampling_logp_difference/mean": "gap_mean",
    "sampling/sampling_logp_difference/max": "gap_max",
    "sampling/importance_sampling_ratio/mean": "gap_ratio",
    "tools/call_frequency": "tool_calls",
    "tools/failure_frequency": "tool_failures",
    "epoch": "epoch",
    "step_time": "seconds",
}

# verl 0.9.1: trainer/ppo/metric_utils.py, core_algos.py, rollout_corr_helper.py, utils/debug/metrics.py, workers.
# `actor/pg_clipfrac_lower` is the dual clip and has no name here; `critic/rewards/mean` has the KL of the reward taken
# off and is not what was scored.
VERL = {
    "critic/score/mean": "reward",
    "critic/score/max": "reward_max",
    "critic/score/min": "reward_min",
    "critic/advantages/mean": "advantage_mean",
    "critic/advantages/max": "advantage_max",
    "critic/advantages/min": "advantage_min",
    "actor/loss": "loss",  # with the bonus of entropy and the KL; the other is the surrogate alone
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",  # the mean entropy, too, where the former is not computed
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",  # with the KL in the reward instead of the loss
    "actor/kl_coef": "kl_coef",
    "actor/reward_kl_penalty_coeff": "kl_coef",
    "actor/ppo_kl": "approx_kl",
    "actor/pg_clipfrac": "clip_fraction",
    "response_length/mean": "length",
    "response_length/max": "length_max",
    "response_length/min": "length_min",
    "response_length/clip_ratio": "truncated",
    "training/rollout_probs_diff_mean": "gap_probability",
    "training/rollout_actor_probs_pearson_corr": "gap_pearson",
    "rollout_corr/k3_kl": "gap_kl",  # never negative and of lower variance than rollout_corr/kl, same expectation
    "rollout_corr/kl": "gap_kl",
    "mismatch/mismatch_k3_kl": "gap_kl",  # 0.6
    "mismatch/mismatch_kl": "gap_kl",
    "rollout_corr/rollout_is_mean": "gap_ratio",
    "mismatch/rollout_is_mean": "gap_ratio",
    "training/off_policy/trajectory_staleness/mean": "staleness_mean",
    "training/off_policy/trajectory_staleness/max": "staleness_max",
    "num_turns/mean": "turns",
    "training/num_turns/mean": "turns",
    "tool_call_counts/mean": "tool_calls",
    "training/epoch": "epoch",
    "perf/time_per_step": "seconds",
    "timing_s/step": "seconds",
    "timing_s/gen": "seconds_sampling",
}

# gxpo: docs/metrics.md.
GXPO = {
    "reward_mean": "reward",
    "reward_std": "reward_std",
    "reward_spread": "reward_std",
    "reward_max": "reward_max",
    "reward_min": "reward_min",
    "success_rate": "success",
    "zero_signal_groups": "zero_signal",
    "zero_signal_all_right": "zero_right",
    "zero_signal_all_wrong": "zero_wrong",
    "groups": "groups",
    "trajectories": "rollouts",
    "unscored": "unscored",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "entropy_sampled": "entropy",  # in every step; the exact one is absent where nothing was trained
    "entropy": "entropy",
    "kl": "kl",
    "kl_coef": "kl_coef",
    "approx_kl": "approx_kl",
    "clip_fraction": "clip_fraction",
    "ratio_max": "ratio_max",
    "weights_moved": "weights_moved",
    "weights_crc": "weights_crc",
    "empty_steps": "empty_steps",
    "nonfinite_steps": "nonfinite_steps",
    "optimiser_steps": "optimiser_steps",
    "length_mean": "length",
    "truncated_rate": "truncated",
    "sampler_gap": "gap_max",
    "sampler_gap_mean": "gap_mean",
    "staleness_mean": "staleness_mean",
    "staleness_max": "staleness_max",
    "malformed_rate": "malformed",
    "illegal_rate": "illegal",
    "turns_mean": "turns",
    "time_step_s": "seconds",
    "time_sample_s": "seconds_sampling",
    "eval_accuracy": "eval/accuracy",
    "eval_low": "eval/low",
    "eval_high": "eval/high",
    "eval_tasks": "eval/tasks",
    "eval_pool_accuracy": "eval/pool_accuracy",
    "eval_length": "eval/length",
    "eval_turns": "eval/turns",
    "eval_unscored": "eval/unscored",
}

# OpenRLHF (2026) trainer/ray/ppo_actor.py, ppo_trainer.py. `rollout/...` is over what was sampled; the others are means
# over what was trained on, after dynamic batches have split it.
OPENRLHF = {
    "rollout/reward_mean": "reward",
    "reward": "reward",
    "rollout/reward_std": "reward_std",
    "policy_loss": "loss",
    "act_loss": "loss",
    "actor_grad_norm": "grad_norm",
    "actor_lr": "lr",
    "act_lr": "lr",
    "entropy_loss": "entropy",  # the mean entropy, whatever it is called
    "kl": "kl",
    "ppo_kl": "approx_kl",
    "ppo_clip_ratio": "clip_fraction",
    "vllm_kl": "gap_kl",
    "rollout/response_length_mean": "length",
    "response_length": "length",
    "rollout/truncated_rate": "truncated",
    "truncated": "truncated",
    "rollout/num_samples": "rollouts",
    "timing/step_total": "seconds",
    "timing/generation": "seconds_sampling",
}

# prime-rl (2026): the words of its two consoles, then what it sends to wandb. "Seq. Length" counts the prompt, too.
PRIME = {
    "Reward": "reward",
    "train/agg/effective/reward/mean": "reward",
    "reward/mean": "reward",
    "Loss": "loss",
    "loss/mean": "loss",
    "Entropy": "entropy",
    "entropy/all/mean": "entropy",
    "entropy/mean": "entropy",
    "Mismatch KL": "gap_kl",
    "mismatch_kl/all/mean": "gap_kl",
    "mismatch_kl/mean": "gap_kl",
    "Grad. Norm": "grad_norm",
    "optim/grad_norm": "grad_norm",
    "LR": "lr",
    "optim/lr": "lr",
    "train/agg/effective/num_output_tokens/mean": "length",
    "Seq. Length": "length",
    "seq_len/mean": "length",
    "Truncation": "truncated",
    "train/agg/effective/is_truncated/mean": "truncated",
    "is_truncated/mean": "truncated",
    "Turns": "turns",
    "train/agg/all/solved_none": "zero_wrong",
    "batch/solve_none": "zero_wrong",
    "train/agg/all/solved_all": "zero_right",
    "batch/solve_all": "zero_right",
    "Max Off-Policy": "staleness_max",
    "Max. Off-Policy Level": "staleness_max",
    "off_policy/max": "staleness_max",
    "off_policy/mean": "staleness_mean",
    "Time": "seconds",
    "time/step": "seconds",
    "Val. Reward": "eval/reward",
}

# What other programs call the same, in lower case and with underlines for all that is no letter or digit.
COMMON = {
    "reward": "reward",
    "mean_reward": "reward",
    "reward_mean": "reward",
    "avg_reward": "reward",
    "average_reward": "reward",
    "rewards_mean": "reward",
    "reward_std": "reward_std",
    "accuracy": "success",
    "success_rate": "success",
    "loss": "loss",
    "training_loss": "loss",
    "train_loss": "loss",
    "policy_loss": "loss",
    "pg_loss": "loss",
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "lr": "lr",
    "learning_rate": "lr",
    "entropy": "entropy",
    "kl": "kl",
    "kl_loss": "kl",
    "kl_divergence": "kl",
    "approx_kl": "approx_kl",
    "ppo_kl": "approx_kl",
    "clip_fraction": "clip_fraction",
    "clip_frac": "clip_fraction",
    "clipfrac": "clip_fraction",
    "pg_clipfrac": "clip_fraction",
    "clip_ratio": "clip_fraction",
    "response_length": "length",
    "completion_length": "length",
    "mean_length": "length",
    "length_mean": "length",
    "truncated": "truncated",
    "truncation_rate": "truncated",
    "eval_accuracy": "eval/accuracy",
    "test_accuracy": "eval/accuracy",
    "val_accuracy": "eval/accuracy",
    "eval_reward": "eval/reward",
    "val_reward": "eval/reward",
    "epoch": "epoch",
}
_PLAIN = re.compile(r"[^a-z0-9]+")


def _trl(key: str) -> str | None:
    if key in TRL:
        return TRL[key]
    if key.startswith("rewards/"):
        parts = key.split("/")
        if parts[-1] == "mean" and len(parts) > 2:
            return "component/" + "/".join(parts[1:-1])
        if parts[-1] == "std" and len(parts) > 2:
            return "component_std/" + "/".join(parts[1:-1])
        return "component/" + "/".join(parts[1:])  # before 0.17: no mean, no deviation
    if key.startswith("eval_"):
        inner = _trl(key.removeprefix("eval_"))
        return inner and f"eval/{inner}"
    return None


def _verl(key: str) -> str | None:
    if key in VERL:
        return VERL[key]
    if key.startswith("gdpo/") and key.endswith(("/mean", "/std")):
        name, statistic = key.removeprefix("gdpo/").rsplit("/", 1)
        return ("component/" if statistic == "mean" else "component_std/") + name
    return None


def _gxpo(key: str) -> str | None:
    if key in GXPO:
        return GXPO[key]
    if key.startswith("reward_"):
        return "component/" + key.removeprefix("reward_")
    if key.startswith("eval_") and not key.startswith("eval_pass_at_"):
        return "eval/component/" + key.removeprefix("eval_")
    return None


def _openrlhf(key: str) -> str | None:
    return OPENRLHF.get(key)


def _prime(key: str) -> str | None:
    return PRIME.get(key)


def _common(key: str) -> str | None:
    plain = _PLAIN.sub("_", key.lower()).strip("_").removeprefix("train_")
    return COMMON.get(plain) or _trl(key)


# Keys that only this trainer writes; a file belongs to the trainer of which it has most.
SIGNATURES: dict[str, re.Pattern[str]] = {
    "trl": re.compile(
        r"(eval_)?(rewards/|reward_std$|frac_reward_zero_std$|completions/|completion_length$|clip_ratio/)"
    ),
    "verl": re.compile(
        r"critic/(score|rewards|advantages)/|actor/(pg_|ppo_|grad_norm|lr$)|response_length/|val-core/|rollout_corr/"
    ),
    "gxpo": re.compile(r"(success_rate|zero_signal_groups|weights_crc|tokens_forward|eval_low|eval_pool_accuracy)$"),
    "openrlhf": re.compile(r"(policy_loss|actor_lr|act_lr|actor_grad_norm|ppo_clip_ratio|vllm_kl|response_length)$"),
    "prime-rl": re.compile(
        r"(Mismatch KL|Grad\. Norm|Seq\. Length|Max\.? Off-Policy|Truncation|MFU|Throughput|LR|Reward)$"
        r"|(optim/|mismatch_kl/|batch/solve_|off_policy/|train/agg/)"
    ),
}

_NAMED: dict[str, Callable[[str], str | None]] = {
    "trl": _trl,
    "unsloth": _trl,
    "verl": _verl,
    "gxpo": _gxpo,
    "openrlhf": _openrlhf,
    "prime-rl": _prime,
    "unknown": _common,
}
_TABLES = {"trl": TRL, "unsloth": TRL, "verl": VERL, "gxpo": GXPO, "openrlhf": OPENRLHF, "prime-rl": PRIME}


@lru_cache(100_000)
def known(key: str) -> bool:
    """Whether a key is a figure of some trainer: a row without any such is not of a log of training."""
    key = own(key)
    return key not in ("epoch", "Time") and (
        any(named(key) is not None for named in _NAMED.values())
        or key.startswith(("val-core/", "val-aux/", "val/test"))
    )


def source(keys: Iterable[str]) -> str:
    """The trainer that writes such keys."""
    keys = list(keys)
    counts = {name: sum(bool(p.match(k)) for k in keys) for name, p in SIGNATURES.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else "unknown"


_HF_TABLE = {"Training Loss": "loss", "Validation Loss": "eval_loss"}  # transformers' table in a notebook


@lru_cache(100_000)
def own(key: str) -> str:
    """The trainer's own key behind what trackers put before it: "run - train/reward" of a wandb table, "train/reward"
    and "eval/reward" as transformers' trackers rewrite "reward" and "eval_reward"."""
    key = key.rsplit(" - ", 1)[-1].strip().replace(" / ", "/")
    if key.startswith("train/") and not key.startswith(("train/global_step", "train/agg/")):
        return key.removeprefix("train/")
    if (key.startswith("eval/") and key.count("/") < 2) or key.startswith(("eval/rewards/", "eval/completions/")):
        return "eval_" + key.removeprefix("eval/")
    return _HF_TABLE.get(key, key)


def names(keys: Iterable[str], trainer: str) -> dict[str, str]:
    """Name of each key that has one; of several keys with one name, the first of the trainer's table.

    What the trainer does not write itself may still be called as others call it: a loop on top of TRL, an own table.
    """
    order = {key: i for i, key in enumerate(_TABLES.get(trainer, COMMON))}
    ordered = sorted(keys, key=lambda k: (order.get(k, len(order)), -len(k), k))
    out: dict[str, str] = {}
    taken: set[str] = set()
    for named in (_NAMED[trainer], *(() if trainer in ("gxpo", "verl") else (_common,))):
        for key in ordered:
            name = named(key)
            if name is not None and name not in taken and key not in out:
                taken.add(name)
                out[key] = name
    return out
