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


def split(recipes: Sequence[Any], entries: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Map name -> {"half", "id"}; `entries` are kept as they are."""
    new = [r for r in recipes if r.name not in entries]
    new.sort(key=lambda r: (r.kind, r.expect[:1], digest(r.name)))
    halves = ("build", "held")
    half_by_name = {r.name: halves[i % 2] for i, r in enumerate(new)}
    first = 1 + len(entries)
    order = sorted(half_by_name, key=lambda name: digest(f"id {name}"))
    return entries | {name: {"half": half_by_name[name], "id": f"run-{first + i:03d}"} for i, name in enumerate(order)}


def write(trainer: str, recipes: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Read and extend the split of one trainer's recipes in split_TRAINER.json."""
    path = HERE / f"split_{trainer}.json"
    entries = json.loads(path.read_text()) if path.exists() else {}
    split_entries = split(recipes, entries)
    path.write_text(json.dumps(split_entries, indent=1) + "\n")
    return split_entries


def is_claimed(name: str) -> bool:
    """Tell whether another process makes this run: several share a list by files in the folder DOCTOR_CORPUS_CLAIMS."""
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
        split_entries = write(trainer, import_module(f"{trainer}_recipes").RECIPES)
        print(trainer, {h: sum(x["half"] == h for x in split_entries.values()) for h in ("build", "held")})
