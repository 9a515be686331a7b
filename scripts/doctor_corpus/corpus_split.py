"""Cut the recipes into the half that the doctor is developed on and the half that it is judged on, by hash of the name.

Within a kind and a sickness the recipes, in the order of their hashes, go to one half and the other in turn, so that
both halves have about as many of each. Ids are given in the order of another hash and say nothing. The file is written
once, before any run is looked at; recipes that come later are added to it, and none changes its half.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def split(recipes: Sequence[Any], known: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """name -> {"half", "id"}; `known` are kept as they are."""
    new = [r for r in recipes if r.name not in known]
    new.sort(key=lambda r: (r.kind, r.expect[:1], digest(r.name)))
    halves = ("build", "held")
    actual = {r.name: halves[i % 2] for i, r in enumerate(new)}
    first = 1 + len(known)
    order = sorted(actual, key=lambda name: digest(f"id {name}"))
    return known | {name: {"half": actual[name], "id": f"run-{first + i:03d}"} for i, name in enumerate(order)}


def write(trainer: str, recipes: Sequence[Any]) -> dict[str, dict[str, str]]:
    """The split of one trainer's recipes, from split_TRAINER.json and for what it lacks."""
    path = HERE / f"split_{trainer}.json"
    known_data = json.loads(path.read_text()) if path.exists() else {}
    actual = split(recipes, known_data)
    path.write_text(json.dumps(actual, indent=1) + "\n")
    return actual


def taken(name: str) -> bool:
    """Whether another process makes this run: several share a list by files in the folder DOCTOR_CORPUS_CLAIMS."""
    if not (folder := os.environ.get("DOCTOR_CORPUS_CLAIMS")):
        return False
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    from importlib import import_module

    for trainer in sys.argv[1:] or ("gxpo",):
        made = write(trainer, import_module(f"{trainer}_recipes").RECIPES)
        print(trainer, {h: sum(x["half"] == h for x in made.values()) for h in ("build", "held")})
