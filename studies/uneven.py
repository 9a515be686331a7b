"""A list of additions of uneven difficulty: 40 of one digit, 80 of two and 80 of three, and held-out ones.

`python studies/uneven.py` writes studies/uneven.jsonl, studies/uneven_held_out.jsonl and studies/few.jsonl, which has
every second line of the first: tasks that come round often.
"""

import json
import random
import re
from pathlib import Path

EACH, HELD_OUT = {1: 55, 2: 130, 3: 130}, {1: 15, 2: 50, 3: 50}  # by number of digits


def result(completion, answer):
    """Right where the one number behind the `#` is the sum."""
    match = re.fullmatch(r"[0-9+\-*=,]*#([0-9]+)", completion.strip())
    return float(match is not None and match[1] == answer)


def additions(digits, n, draws):
    """Draw `n` different sums, those that differ only in the order counted as one."""
    low = 10 ** (digits - 1) if digits > 1 else 0
    pairs = {}
    while len(pairs) < n:
        a, b = (draws.randrange(low, 10**digits) for _ in range(2))
        pairs.setdefault((min(a, b), max(a, b)), (a, b))
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b), "digits": digits} for a, b in pairs.values()]


def main():
    draws, here = random.Random(0), Path(__file__).parent
    rows = {digits: additions(digits, EACH[digits], draws) for digits in EACH}
    for name, held_out in (("uneven", False), ("uneven_held_out", True)):
        subset = [row for d, sums in rows.items() for row in (sums[: HELD_OUT[d]] if held_out else sums[HELD_OUT[d] :])]
        lines = [f"{json.dumps(row)}\n" for row in subset]
        (here / f"{name}.jsonl").write_text("".join(lines))
        if not held_out:
            (here / "few.jsonl").write_text("".join(lines[::2]))


if __name__ == "__main__":
    main()
