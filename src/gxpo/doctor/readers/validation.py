"""verl's validation figures: one for each data source, variable and statistic."""

from __future__ import annotations

import re
from collections.abc import Mapping

# verl/trainer/ppo/ray_trainer.py `_val_metrics_update`: val-core/SOURCE/VARIABLE/mean@N, the variable being `acc` where
# the reward gives it, else `reward`; then the reward stands under val-aux. 0.2 wrote val/test_score/SOURCE.
_MEAN = re.compile(
    r"val-(core|aux)/(?P<source>.*)/(?P<variable>acc|reward|score)/mean@(?P<n>\d+)$|val/test_score/(?P<old>.*)$"
)

Columns = Mapping[str, tuple[list[float], list[float]]]


def evaluations(columns: Columns) -> tuple[dict[str, tuple[list[float], list[float], str]], list[str]]:
    """eval/accuracy and eval/reward as the mean over the data sources: name -> (steps, values, key), and notes.

    A step counts only where every source was measured: a mean over fewer would move with the set of them.
    """
    chosen: dict[str, dict[str, tuple[int, int, str]]] = {}
    for key in columns:
        found = _MEAN.match(key)
        if found is None:
            continue
        variable, source = found["variable"] or "reward", found["source"] or found["old"]
        name = "eval/accuracy" if variable == "acc" else "eval/reward"
        rank = (int(found["n"] or 0), variable == "reward", key)  # most samples; the reward before the raw score
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
