"""Tasks and rewards for studies/mechanisms.yaml: `python studies/mechanisms.py` writes the tasks."""

from __future__ import annotations

import json
import math
import random
import string
from pathlib import Path

HERE = Path(__file__).parent
ANGLES = (0, 30, 60, 90)


def no_digit(completion):
    """1 for a text without a digit: every second text of six characters that are drawn at random."""
    return {"correct": float(not set(completion) & set(string.digits))}


def three(completion):
    """1 for a text with a q, a 7 and a z: by chance one of 3000 texts of eight characters."""
    return float({"q", "7", "z"} <= set(completion))


def kinds(completion, answer):
    """Shares of six characters that are digits and small letters; `along`: their sum along the direction of the answer.

    The answer is an angle in degrees. Both can't be had at once: what is best depends on the direction alone.
    """
    shares = [sum(c in kind for c in completion) / 6 for kind in (string.digits, string.ascii_lowercase)]
    angle = math.radians(float(answer))
    along = math.cos(angle) * shares[0] + math.sin(angle) * shares[1]
    return {"digits": shares[0], "letters": shares[1], "along": along, "correct": float(along >= 0.8)}


def direction_tasks(draws):
    """Make 40 prompts for training, and 120 held-out ones that state a direction as rollout.template does."""
    names = draws.sample([a + b for a in string.ascii_uppercase for b in string.ascii_uppercase], 70)
    plain = [{"prompt": f"{name}=", "answer": "45"} for name in names[:40]]
    held_out = [
        {"prompt": f"{100 * math.cos(a):.0f} {100 * math.sin(a):.0f} {name}=", "answer": str(degrees)}
        for name in names[40:]
        for degrees, a in ((degrees, math.radians(degrees)) for degrees in ANGLES)
    ]
    return plain, held_out


def hint_tasks(draws):
    """Make prompts whose reference answer has a q and a 7 among its first four characters, and a z among the next
    three."""
    rows, names = [], draws.sample([a + b for a in string.ascii_uppercase for b in string.ascii_uppercase], 140)
    for name in names:
        first, second = draws.choices(string.ascii_uppercase, k=4), draws.choices(string.ascii_uppercase, k=3)
        for place, character in zip(draws.sample(range(4), 2), "q7", strict=True):
            first[place] = character
        second[draws.randrange(3)] = "z"
        rows.append({"prompt": f"{name}=", "answer": "q7z", "solution": "".join(first + second)})
    return rows[:40], rows[40:]


def main():
    for name, write in (("directions", direction_tasks), ("rare", hint_tasks)):
        for suffix, rows in zip(("", "_held_out"), write(random.Random(0)), strict=True):
            (HERE / f"{name}{suffix}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main()
