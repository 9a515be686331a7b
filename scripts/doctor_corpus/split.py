"""Which recipe belongs to which half: written to split.json before any threshold is chosen, only ever extended.

Recipes of one sickness (the first expected id; the kind where none is expected) are ordered by the hash of their names
and go to the halves in turn, the first one by the hash of the sickness.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

HALVES = ("build", "held")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def split(recipes: list[dict[str, Any]], entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Map name -> {"half", "run"}; `entries` stay, new recipes go to the half that has fewer of their sickness."""
    out = dict(entries)
    kind = {r["name"]: (r["expect"] or [r["kind"]])[0] for r in recipes}
    for name in sorted((n for n in kind if n not in out), key=_hash):
        counts = [sum(kind.get(n) == kind[name] and p["half"] == h for n, p in out.items()) for h in HALVES]
        first = int(_hash(kind[name]), 16) % 2
        half = first if counts[0] == counts[1] else int(counts[1] < counts[0])
        number = max((p["run"] for p in out.values()), default=-1) + 1
        out[name] = {"half": HALVES[half], "run": number}
    return out


def main() -> None:
    from healthy import HEALTHY
    from recipes import SICK

    path = Path(__file__).with_name("split.json")
    splits = json.loads(path.read_text()) if path.exists() else {}
    splits["trl"] = split([*SICK, *HEALTHY], splits.get("trl", {}))
    path.write_text(json.dumps(splits, indent=1) + "\n")


if __name__ == "__main__":
    main()
