"""Translate trainers' metric keys to the names of `gxpo.doctor.runlog.NAMES`, and tell the trainer by its keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from gxpo.doctor.readers.key_tables import COMMON, GXPO, OPENRLHF, PRIME, TRL, VERL

_PLAIN = re.compile(r"[^a-z0-9]+")


def _trl(key: str) -> str | None:
    """Name of a key of TRL: its table, reward functions, and the same under `eval_`."""
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
    """Name of a key of verl: its table, and components of GDPO."""
    if key in VERL:
        return VERL[key]
    if key.startswith("gdpo/") and key.endswith(("/mean", "/std")):
        name, statistic = key.removeprefix("gdpo/").rsplit("/", 1)
        return ("component/" if statistic == "mean" else "component_std/") + name
    return None


def _gxpo(key: str) -> str | None:
    """Name of a key of gxpo: its table, and rewards by name."""
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
    """Name of a key of any other loop, whatever its case and separators; else as TRL would call it."""
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
    "gxpo": re.compile(r"(success_rate|zero_signal_groups|weights_crc|tokens_forward|eval_low|eval_high)$"),
    "openrlhf": re.compile(r"(policy_loss|actor_lr|act_lr|actor_grad_norm|ppo_clip_ratio|vllm_kl|response_length)$"),
    "prime-rl": re.compile(
        r"(Mismatch KL|Grad\. Norm|Seq\. Length|Max\.? Off-Policy|Truncation|MFU|Throughput|LR|Reward)$"
        r"|(optim/|mismatch_kl/|batch/solve_|off_policy/|train/agg/)"
    ),
}

_LEAST_KEYS = {"gxpo": 2, "openrlhf": 2}  # a single key may be of another trainer, which calls it the same

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
def is_metric(key: str) -> bool:
    """True if a key is a metric of some trainer; a row without one is not of a training log."""
    key = trainer_key(key)
    return key not in ("epoch", "Time") and (
        any(name_of(key) is not None for name_of in _NAMED.values())
        or key.startswith(("val-core/", "val-aux/", "val/test"))
    )


def source(keys: Iterable[str]) -> str:
    """Name the trainer that writes these keys, or "unknown"."""
    keys = list(keys)
    counts = {name: sum(bool(p.match(k)) for k in keys) for name, p in SIGNATURES.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= _LEAST_KEYS.get(best, 1) else "unknown"


_HF_TABLE = {"Training Loss": "loss", "Validation Loss": "eval_loss"}  # transformers' table in a notebook


@lru_cache(100_000)
def trainer_key(key: str) -> str:
    """Undo what trackers do to a trainer's key: "run - train/reward" of a wandb table, "train/reward" and "eval/reward"
    as transformers' trackers rewrite "reward" and "eval_reward"."""
    key = key.rsplit(" - ", 1)[-1].strip().replace(" / ", "/")
    if key.startswith("train/") and not key.startswith(("train/global_step", "train/agg/")):
        return key.removeprefix("train/")
    if (key.startswith("eval/") and key.count("/") < 2) or key.startswith(("eval/rewards/", "eval/completions/")):
        return "eval_" + key.removeprefix("eval/")
    return _HF_TABLE.get(key, key)


def names(keys: Iterable[str], trainer: str) -> dict[str, str]:
    """Name the keys; of several keys with one name, the first of the trainer's table counts.

    Keys that the trainer does not write itself are named by common names: a loop on top of TRL adds its own.
    """
    order = {key: i for i, key in enumerate(_TABLES.get(trainer, COMMON))}
    ordered = sorted(keys, key=lambda k: (order.get(k, len(order)), -len(k), k))
    out: dict[str, str] = {}
    used_names: set[str] = set()
    for name_of in (_NAMED[trainer], *(() if trainer in ("gxpo", "verl") else (_common,))):
        for key in ordered:
            name = name_of(key)
            if name is not None and name not in used_names and key not in out:
                used_names.add(name)
                out[key] = name
    return out


# verl/trainer/ppo/ray_trainer.py `_val_metrics_update`: val-core/SOURCE/VARIABLE/mean@N, the variable being `acc` where
# the reward gives it, else `reward`; then the reward stands under val-aux. 0.2 wrote val/test_score/SOURCE.
_MEAN = re.compile(
    r"val-(core|aux)/(?P<source>.*)/(?P<variable>acc|reward|score)/mean@(?P<n>\d+)$|val/test_score/(?P<old>.*)$"
)

# OpenRLHF trainer/ppo_trainer.py `compute_eval_metrics`: eval_SOURCE_pass1 is the mean reward.
_PASS = re.compile(r"eval[_/](?:eval_)?(?P<source>.*)_pass1$")
# transformers with several data sets of evaluation: eval_NAME_reward.
_DATASET = re.compile(r"eval_(?P<source>[^/]+)_reward$")
# prime-rl: "Evaluated NAME (Step 3) | ... | Reward 0.5" and, at wandb, eval/NAME/effective/reward/mean or .../avg@N.
_EVALUATED = re.compile(r"eval/(?P<source>.*?)/(?:effective/(?:[^/]+/)?)?(?:Reward|reward/mean|avg@(?P<n>\d+))$")


def _evaluation(key: str, trainer: str) -> tuple[str, str, int, bool] | None:
    """Parse an evaluation's key: name, data source, samples, and True if it is the reward itself; else None."""
    if trainer == "verl" and (match := _MEAN.match(key)):
        variable = match["variable"] or "reward"
        name = "eval/accuracy" if variable == "acc" else "eval/reward"
        return name, match["source"] or match["old"], int(match["n"] or 0), variable == "reward"
    if trainer == "openrlhf" and (match := _PASS.match(key)):
        return "eval/reward", match["source"], 1, True
    if trainer in ("trl", "unsloth") and (match := _DATASET.match(key)):
        return "eval/reward", match["source"], 1, True
    if trainer == "prime-rl" and (match := _EVALUATED.match(key)):
        return "eval/reward", match["source"], int(match["n"] or 0), True
    return None


def evaluations(
    columns: Mapping[str, tuple[list[float], list[float]]], trainer: str
) -> tuple[dict[str, tuple[list[float], list[float], str]], list[str]]:
    """Average evaluations over their data sources: name -> (steps, values, key), and notes.

    A step counts only where every source was measured: a mean over fewer would move with the set of them.
    """
    # one key for each data source, since a source is logged with several numbers of samples
    chosen: dict[str, dict[str, tuple[int, int, str]]] = {}
    for key in columns:
        parts = _evaluation(key, trainer)
        if parts is None:
            continue
        name, source, samples, is_reward = parts
        rank = (samples, is_reward, key)  # most samples; the reward before the raw score
        chosen.setdefault(name, {})[source] = max(rank, chosen.get(name, {}).get(source, (-1, 0, "")))
    out, notes = {}, []
    for name, sources in chosen.items():
        names = sorted(key for _, _, key in sources.values())
        if len(names) == 1:
            out[name] = (*columns[names[0]], names[0])
            continue
        tables = [dict(zip(*columns[key], strict=True)) for key in names]
        # a mean over fewer sources would move with the set of them
        steps = [s for s in sorted(tables[0]) if all(s in t for t in tables)]
        if steps:
            out[name] = (steps, [sum(t[s] for t in tables) / len(tables) for s in steps], f"mean of {', '.join(names)}")
            notes.append(f"{name} is the mean of {len(names)} data sources: {', '.join(sorted(sources))}")
    return out, notes
