"""Reward files of the gxpo recipes, by recipe: what a run's reward.py said. None of them is packed with a run."""

NUMBER = r"""import re


def result(completion):
    found = re.findall(r"#(\d+)", completion)
    return found[-1] if found else None


"""
EXACT = (
    NUMBER
    + r"""def score(completion, answer):
    return float(result(completion) == answer)
"""
)

REWARDS = {
    "mastered": EXACT,
    "cached by prompt": NUMBER
    + r"""CACHE = {}


def score(prompt, completion, answer):
    if prompt not in CACHE:
        CACHE[prompt] = float(result(completion) == answer)
    return CACHE[prompt]
""",
    "reads the question": r"""def score(prompt, completion, answer):
    text = f"{prompt}{answer}"
    return len(set(text)) / 10
""",
    "paid by length": NUMBER
    + r"""def score(completion, answer):
    thorough = min(len(completion) / 60, 1.0)
    return {"correct": float(result(completion) == answer), "thorough": 4 * thorough}
""",
    "paid to be brief": NUMBER
    + r"""def score(completion, answer):
    return {"correct": float(result(completion) == answer), "brief": -0.2 * len(completion)}
""",
    "loss as reward": NUMBER
    + r"""def score(completion, answer):
    return float(result(completion) != answer)
""",
    "raises on wrong": NUMBER
    + r"""def score(completion, answer):
    assert result(completion) == answer, "mismatch"
    return 1.0
""",
    "half unscored": NUMBER
    + r"""import zlib


def score(completion, answer):
    if zlib.crc32(completion.encode()) % 5 < 3:
        raise TimeoutError("verifier did not answer")
    return float(result(completion) == answer)
""",
    "server down": NUMBER
    + r"""CALLS = [0]


def score(completion, answer):
    CALLS[0] += 1
    if 64 * 14 < CALLS[0] < 64 * 24:
        return 0.0
    return float(result(completion) == answer)
""",
    "server down, raises": NUMBER
    + r"""CALLS = [0]


def score(completion, answer):
    CALLS[0] += 1
    if 128 * 15 < CALLS[0] < 128 * 25:
        raise ConnectionError("connection refused")
    return float(result(completion) == answer)
""",
    "coin": NUMBER
    + r"""import random


def score(completion, answer):
    right = float(result(completion) == answer)
    return right if random.random() < 0.55 else 1.0 - right
""",
    "similarity judge": r"""from difflib import SequenceMatcher


def score(prompt, completion):
    return 0.95 + 0.001 * SequenceMatcher(None, prompt, completion).ratio()
""",
    "dead verifier": r"""import re


def score(completion, answer):
    boxed = re.findall(r"boxed{(.+?)}", completion)
    return {
        "correct": float(boxed[-1:] == [answer]),
        "form": 0.2 * float(re.fullmatch(r"[0-9+=,]*#[0-9]+", completion) is not None),
        "short": -0.005 * len(completion),
    }
""",
    "format pays": NUMBER
    + r"""def score(completion, answer):
    right = float(result(completion) == answer)
    return {"correct": right, "style": 10.0 * min(completion.count("+1"), 3) / 3}
""",
    "boxed wanted": r"""import re


def score(completion, answer):
    found = re.findall(r"answer is (\d+)", completion)
    return float(found[-1:] == [answer])
""",
    "rows shifted": EXACT,
    "sixteen sums": EXACT,
    "saturating": EXACT,
    "one dead of three": NUMBER
    + r"""def score(completion, answer):
    right = float(result(completion) == answer)
    return {"correct": right, "working": 0.1 * ("=" in completion), "cites": 0.1 * ("[" in completion)}
""",
}
