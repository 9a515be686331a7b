"""Draw docs/pictures/*.svg: forests that the rollout parts themselves have grown, a group or two of each kind.

python scripts/pages/concepts.py            # all of them
python scripts/pages/concepts.py hint tree  # some
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.explain.forest_picture import picture
from gxpo.forest.forest import Forest
from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.loop import Trainer

HOME = Path(__file__).parents[2]
SMALL = {"tasks.per_step": 6, "rollout.group_size": 3, "eval.tasks": 1}


@dataclass(frozen=True)
class Case:
    """An example, what is changed in it, how many steps are trained first, and which groups are worth drawing."""

    example: str
    changes: dict[str, Any] = field(default_factory=dict)
    before: int = 0
    origin: str = "policy"  # a group that has such a row
    groups: int = 1


COLD = {"model": "tiny:cold", "env.max_turns": 3, "tasks.per_step": 1, "rollout.group_size": 2}
CASES = {
    "group": Case("arithmetic"),
    "episode": Case("frozenlake_gigpo", {**COLD, "env.context": "full"}),
    "window": Case("frozenlake_gigpo", {**COLD, "env.context": "window"}),
    "hint": Case("scaf_grpo", {"rollout.warmup_steps": 0, "rollout.template": "{prompt}{hint}"}, origin="hint"),
    "draft": Case("igrpo", {"rollout.n_drafts": 2}),
    "revision": Case("search_r2", origin="correction"),
    "replay": Case(
        "repo_replay",
        {
            "model": "tiny:cold",
            "tasks.options": {"style": "bare", "pool": 6},
            "rollout.min_stored": 3,
            "rollout.group_size": 2,
            "rollout.replays": 2,
            "env.max_turns": 2,
        },
        before=2,
        origin="replay",
        groups=2,
    ),
    "reference": Case("luffy", origin="demonstration"),
    "team": Case("dr_mas"),
    "cells": Case("at_grpo", {"tasks.per_step": 1}, groups=2),
    "tree": Case("tree_grpo"),
    "plan": Case("himac", {"rollout.blueprints": 3}),
    "window_of_tokens": Case("t_ppo", before=2),
    "flow": Case("flow_grpo"),
    "flow_tree": Case("tempflow_grpo", {"rollout.branches": 2, "rollout.seeds": 1}),
}


def grow(case: Case) -> Forest:
    """Grow some groups of a step of the run."""
    settings = config.read(HOME / "examples" / f"{case.example}.yaml")
    changes = SMALL | case.changes
    keys = config.resolve(settings).keys
    settings |= {k: SettingValue(v, "picture") for k, v in changes.items() if k in keys}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config.resolve(settings), out=folder)
        try:
            for _ in range(case.before):
                trainer.step()
            step = trainer.step_number + 1
            session = trainer.session(step, seed=0, sampling=trainer.sampling, budget=trainer.budget)
            forest = session.score(trainer.method.rollout.grow(session.draw(changes["tasks.per_step"]), session))
        finally:
            trainer.close()
    return some_groups(forest, case)


def some_groups(forest: Forest, case: Case) -> Forest:
    """Select the first groups from where there is a row of the wanted origin, at most two trajectories beside it if
    there are many."""
    names = list(dict.fromkeys(forest.group))
    candidates = [g for g, origin in zip(forest.group, forest.origin, strict=True) if origin == case.origin]
    first = names.index(candidates[0]) if candidates else 0
    first = max(0, first + 1 - case.groups) if case.origin == "replay" else first
    groups = names[first : first + case.groups]
    return forest.select([r for r, g in enumerate(forest.group) if g in groups][:12])


def main(names: list[str]) -> None:
    folder = HOME / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name in names or CASES:
        forest = grow(CASES[name])
        (folder / f"{name}.svg").write_text(picture(forest), encoding="utf-8")
        print(f"{name}: {forest.n_nodes} nodes, {forest.n_trajectories} trajectories, {set(forest.origin)}")


if __name__ == "__main__":
    main(sys.argv[1:])
