"""`gxpo explain --json`: a step's groups as data, with each rollout's reward and its advantage by each method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.explain.group_figures import figures
from gxpo.explain.outlook import Outlook
from gxpo.explain.rollout_source import Source


def as_data(source: Source, looks: Sequence[Outlook]) -> dict[str, Any]:
    """A JSON object: `methods` (formula, zero-signal groups, what is missing) and `groups` with their rollouts.

    A rollout's advantage is the mean over its trained tokens, with the smallest and the largest where they differ. What
    is unknown is null.
    """
    forest = source.forest
    found = figures(forest, looks, source.recorded)
    own = forest.ids("group", axis="R").tolist()
    groups: list[dict[str, Any]] = [
        {"group": name, "reward_mean": _known(found.mean[g]), "reward_min": _known(found.low[g]),
         "reward_max": _known(found.high[g]), "zero_signal": {m: bool(x[g]) for m, x in found.zero_signal.items()},
         "rollouts": []}
        for g, name in enumerate(found.names)
    ]  # fmt: skip
    credits = {x.name: _of_rollouts(x, source) for x in looks if x.credit is not None}
    lengths = forest.lengths().tolist()
    for r, g in enumerate(own):
        groups[g]["rollouts"].append(
            {
                "id": forest.id[r],
                "reward": _known(float(forest.outcome[r])),
                "success": _known(float(forest.success[r])),
                "tokens": lengths[r],
                "recorded_advantage": _known(source.recorded[r]),
                "advantage": {name: rows[r] for name, rows in credits.items()},
            }
        )
    return {
        "title": source.title,
        "facts": source.facts,
        "not_in_the_file": source.lacks,
        "notes": source.notes,
        "methods": [
            {"name": x.name, "formula": x.formula, "missing": x.missing or None, "notes": x.notes,
             "zero_signal_groups": None if x.zero_signal is None else float(x.zero_signal.double().mean())}
            for x in looks
        ],
        "groups": groups,
    }  # fmt: skip


def _of_rollouts(x: Outlook, source: Source) -> list[dict[str, float | None]]:
    assert x.credit is not None
    forest, out = source.forest, []
    for r in range(forest.n_trajectories):
        at = forest.path_of(r)
        trained: Tensor = x.credit[at][forest.path_trainable[at]].to(torch.float64)
        if not len(trained):
            out.append({"mean": None})
            continue
        low, high = float(trained.min()), float(trained.max())
        out.append({"mean": float(trained.mean())} | ({} if low == high else {"min": low, "max": high}))
    return out


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
