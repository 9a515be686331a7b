"""Rewards, a list and a rule for studies/rows.yaml: `python studies/rules.py` writes studies/items.jsonl."""

import json
import random
import re
from pathlib import Path

ITEMS, KINDS = "0123456789", 4


def hits(completion, answer):
    """Share of the reference's items (lines) that are among the completion's characters, each once."""
    items = answer.splitlines()
    return len({*completion} & {*items}) / len(items)


def bounded(completion, answer):
    """Right or wrong, and what it costs: the characters before the answer, as a share of 24."""
    text = completion.strip()
    match = re.fullmatch(r"([0-9+\-*=,]*)#([0-9]+)", text)
    return {
        "correct": float(match is not None and match[2] == answer),
        "cost": min(len(text.split("#")[0]) / 24, 1.0),
        "kept": float(len(text.split("#")[0]) <= 7),
    }


def no_holes(observation, action):
    """Refuse a step into a hole of frozenlake's bare picture."""
    rows = [row for row in observation.splitlines() if set(row) <= set("@.OGX*") and row]
    at = [(y, row.index("@")) for y, row in enumerate(rows) if "@" in row]
    step = {"L": (0, -1), "R": (0, 1), "U": (-1, 0), "D": (1, 0)}.get(action.strip()[:1])
    if not at or step is None:
        return None
    y, x = at[0][0] + step[0], at[0][1] + step[1]
    is_hole = 0 <= y < len(rows) and 0 <= x < len(rows[y]) and rows[y][x] == "O"
    return "a hole" if is_hole else None


CASES = [("@O.\n..G\n>", "R", False), ("@O.\n..G\n>", "D", True), ("@O.\n..G\n>", "L", True)]


def main():
    draws, here = random.Random(0), Path(__file__).parent
    lists = ["\n".join(draws.sample(ITEMS, 4)) for _ in range(KINDS)]
    rows = [{"prompt": f"{k}{b}=", "answer": items} for b in range(10) for k, items in enumerate(lists)]
    for name, part in (("items", rows[: 7 * KINDS]), ("items_held_out", rows[7 * KINDS :])):
        (here / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))


if __name__ == "__main__":
    main()
