"""Sick runs: for every sickness two variants, of which split.json puts one into each half.

A recipe: name; expect (ids of `gxpo doctor --list` that are right as the first finding, the cause foremost); warm (a
key of WARM); rewards; leave (what the user kept); config (is there a config.yaml); cfg (GRPOConfig); data, eval,
trainer and engine as in trl_runs.py. The cause is always one that happens: a wrong argument, a bug in a reward.
"""

from __future__ import annotations

from typing import Any

from sick_signal import SIGNAL
from sick_training import TRAINING

WARM: dict[str, dict[str, Any]] = {
    "rev": {"task": "reverse", "steps": 400, "how": {"noise": 0.7}},
    "rev_half": {"task": "reverse", "steps": 400, "how": {"noise": 0.5}, "seed": 1},
    "rev_faint": {"task": "reverse", "steps": 400, "how": {"noise": 0.95}},
    "rev_weak": {"task": "reverse", "steps": 220, "how": {"noise": 0.0, "n": 5}},
    "rev_sure": {"task": "reverse", "steps": 900, "how": {"noise": 0.0, "n": 3}},
    "copy": {"task": "copy", "steps": 700, "how": {"noise": 0.0, "n": 3}},
    "add": {"task": "add", "steps": 600, "how": {"noise": 0.5, "first": 49}},
    "add_sure": {"task": "add", "steps": 600, "how": {"noise": 0.3, "first": 49}},
    "class": {"task": "class", "steps": 151, "how": {"share": 6}},
    "class_seven": {"task": "class", "steps": 151, "how": {"share": 7}, "seed": 1},
    "add_poor": {"task": "add", "steps": 250, "how": {"noise": 0, "first": 99}},
    "words": {"task": "reverse", "steps": 500, "how": {"noise": 0.6, "words": 1.5, "most": 5}},
    "words_long": {"task": "reverse", "steps": 700, "how": {"noise": 0.3, "words": 2.0, "least": 2, "most": 5, "n": 3}},
    "unmarked": {"task": "reverse", "steps": 500, "how": {"noise": 0.5, "words": 0.7, "most": 3, "unmarked": 0.6}},
    "chat": {"task": "reverse", "steps": 500, "dress": "chat", "how": {"noise": 0.65}},
    "chat_end": {"task": "reverse", "steps": 500, "dress": "chat_end", "how": {"noise": 0.5}},
    "plain_chat": {"task": "reverse", "steps": 601, "dress": "plain_chat", "how": {"noise": 0.3, "n": 3}},
    "packed": {"task": "reverse", "steps": 500, "dress": "packed", "how": {"noise": 0.5}},
}
SICK = [*SIGNAL, *TRAINING]
for _i, _recipe in enumerate(SICK):
    _recipe.setdefault("kind", "sick")
    _recipe.setdefault("warm", "rev")
    _recipe.setdefault("rewards", [("accuracy", {})])
    _recipe.setdefault("steps", 40)
    _recipe.setdefault("seed", 100 + _i)
    if "weights" in _recipe:
        _recipe["cfg"] = {**_recipe.get("cfg", {}), "reward_weights": _recipe["weights"]}
