"""Evaluations that a trainer writes for each data source, as one figure."""

from __future__ import annotations

import re
from collections.abc import Mapping

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

Columns = Mapping[str, tuple[list[float], list[float]]]


def _read(key: str, trainer: str) -> tuple[str, str, int, bool] | None:
    """Name, source, samples, and whether it is the reward itself."""
    if trainer == "verl" and (found := _MEAN.match(key)):
        variable = found["variable"] or "reward"
        name = "eval/accuracy" if variable == "acc" else "eval/reward"
        return name, found["source"] or found["old"], int(found["n"] or 0), variable == "reward"
    if trainer == "openrlhf" and (found := _PASS.match(key)):
        return "eval/reward", found["source"], 1, True
    if trainer in ("trl", "unsloth") and (found := _DATASET.match(key)):
        return "eval/reward", found["source"], 1, True
    if trainer == "prime-rl" and (found := _EVALUATED.match(key)):
        return "eval/reward", found["source"], int(found["n"] or 0), True
    return None


def evaluations(columns: Columns, trainer: str) -> tuple[dict[str, tuple[list[float], list[float], str]], list[str]]:
    """eval/accuracy and eval/reward as the mean over the data sources: name -> (steps, values, key), and notes.

    A step counts only where every source was measured: a mean over fewer would move with the set of them.
    """
    chosen: dict[str, dict[str, tuple[int, int, str]]] = {}
    for key in columns:
        found = _read(key, trainer)
        if found is None:
            continue
        name, source, samples, itself = found
        rank = (samples, itself, key)  # most samples; the reward before the raw score
        chosen.setdefault(name, {})[source] = max(rank, chosen.get(name, {}).get(source, (-1, 0, "")))
    out, notes = {}, []
    for name, sources in chosen.items():
        names = sorted(key for _, _, key in sources.values())
        if len(names) == 1:
            out[name] = (*columns[names[0]], names[0])
            continue
        tables = [dict(zip(*columns[key], strict=True)) for key in names]
        steps = [s for s in sorted(tables[0]) if all(s in t for t in tables)]
        if steps:
            out[name] = (steps, [sum(t[s] for t in tables) / len(tables) for s in steps], f"mean of {', '.join(names)}")
            notes.append(f"{name} is the mean of {len(names)} data sources: {', '.join(sorted(sources))}")
    return out, notes
