"""Reward functions of the second corpus, in the shapes and with the mistakes that users' functions have."""

from __future__ import annotations

import math
import random
import re
import zlib

from fresh_tasks import final

FORM = re.compile(r"<think>.*</think><answer>[^<]*</answer>", re.S)


def text(c):
    return c if isinstance(c, str) else c[-1]["content"]


def right(completions, answer):
    return [int(final(text(c)) == a) for c, a in zip(completions, answer, strict=True)]


def question(p):
    return p if isinstance(p, str) else p[-1]["content"]


# as they should be
def correctness_reward(completions, answer, **_):
    return [2.0 if r else 0.0 for r in right(completions, answer)]


def accuracy(completions, answer, **_):
    return right(completions, answer)


def logged_accuracy(completions, answer, log_extra=None, **_):
    if log_extra:
        log_extra("answer", list(answer))
    return [float(r) for r in right(completions, answer)]


def plus_minus(completions, answer, **_):
    return [1 if r else -1 for r in right(completions, answer)]


def grade(completions, answer, **_):
    """0 to 10 points: half for the number of characters, half for the right ones."""
    out = []
    for c, a in zip(completions, answer, strict=True):
        s = text(c).strip()
        same = sum(x == y for x, y in zip(s, a, strict=False))
        out.append(10 if s == a else round(2 * (len(s) == len(a)) + 5 * same / len(a)))
    return out


def overlap(completions, answer, **_):
    out = []
    for c, a in zip(completions, answer, strict=True):
        s = text(c)
        out.append(sum(x == y for x, y in zip(s, a, strict=False)) / max(len(s), len(a)))
    return out


def edit_penalty(completions, answer, **_):
    return [r - 1.0 for r in overlap(completions, answer)]


def cents(completions, answer, **_):
    return [0.01 * r for r in overlap(completions, answer)]


def judge(completions, answer, **_):
    """A judge model with a little noise of its own."""
    rng = judge.rng
    return [min(1.0, max(0.0, round(0.15 + 0.7 * r + rng.gauss(0, 0.05), 2))) for r in right(completions, answer)]


judge.rng = random.Random(2)


def format_reward(completions, **_):
    return [0.5 if FORM.fullmatch(text(c)) else 0.0 for c in completions]


def length_penalty(completions, completion_ids, **_):
    return [-0.5 if len(i) > 32 else 0.0 for i in completion_ids]


def mild_brevity(completions, completion_ids, **_):
    return [-0.005 * len(i) for i in completion_ids]


def reasoning_steps_reward(completions, **_):
    return [min(1.0, len(re.findall(r"[abc]\d\n", text(c))) / 5) for c in completions]


def sum_reward(prompts, completions, answer, **_):
    return [float(r) if "+" in question(p) else None for p, r in zip(prompts, right(completions, answer), strict=True)]


def bracket_reward(prompts, completions, answer, **_):
    return [None if "+" in question(p) else float(r) for p, r in zip(prompts, right(completions, answer), strict=True)]


# mistakes
def format_with_newline(completions, **_):
    """Asks for line breaks around the tags, which the prompt never mentions."""
    return [1.0 if re.match(r"^<think>\n.*?\n</think>\n<answer>", text(c), re.S) else 0.0 for c in completions]


def has_digit(completions, **_):
    """`accuracy` that looks for any number."""
    return [1.0 if re.search(r"\d", text(c)) else 0.0 for c in completions]


def first_of_group(completions, answer, **_):
    """Saves calls of the judge: scores the first of each prompt and repeats the result."""
    r = right(completions, answer)
    return [float(r[i - i % 8]) for i in range(len(r))]


def int_against_text(completions, answer, **_):
    """The data set's answers are numbers, the extracted ones text."""
    return [1.0 if final(text(c)) == int(a) else 0.0 for c, a in zip(completions, answer, strict=True)]


def int_against_text_logged(completions, answer, log_extra=None, **_):
    log_extra("solution", list(answer))
    return int_against_text(completions, answer)


def boxed(completions, answer, **_):
    """Taken from a maths project: reads \\boxed{...} only."""
    matches = [re.search(r"boxed\{(.*?)\}", text(c)) for c in completions]
    return [float(bool(m) and m.group(1) == a) for m, a in zip(matches, answer, strict=True)]


def steps_unbounded(completions, **_):
    """Pays for every line of reasoning."""
    return [0.25 * text(c).count("\n") for c in completions]


def heavy_length_penalty(completions, completion_ids, **_):
    return [-0.15 * len(i) for i in completion_ids]


def keyword_reward(completions, **_):
    return [3.0 * text(c).count("hm") for c in completions]


def distance_reward(completions, answer, **_):
    return [1.0 - r for r in overlap(completions, answer)]


def nan_when_unparsed(completions, answer, **_):
    """float('nan') where no <answer> could be read or it is wrong, as math-verify wrappers do on an exception."""
    return [1.0 if r else float("nan") for r in right(completions, answer)]


def timeouts(completions, answer, **_):
    """The judge times out on half of the wrong answers; the client returns None."""
    rng = timeouts.rng
    return [None if not r and rng.random() < 0.85 else float(r) for r in right(completions, answer)]


timeouts.rng = random.Random(3)


def log_likelihood_reward(completions, answer, **_):
    """log of a match share, without a floor."""
    return [math.log(s) if s > 0 else float("-inf") for s in overlap(completions, answer)]


def sandbox(completions, answer, trainer_state=None, **_):
    """-1 where the sandbox does not answer; it is down from step 22 to 33."""
    step = trainer_state.global_step if trainer_state is not None else 0
    return [-1.0 if 22 <= step < 34 else float(r) for r in right(completions, answer)]


def expired_key(completions, answer, trainer_state=None, **_):
    """The key of the judge expires after step 30; the except branch returns 0."""
    step = trainer_state.global_step if trainer_state is not None else 0
    return [0.0 if step >= 30 else float(r) for r in right(completions, answer)]


def late(completions, answer, **_):
    """An asynchronous judge whose results are read one batch late."""
    r = [float(x) for x in right(completions, answer)]
    before, late.last = late.last or r, r
    return before


late.last = None


def judge_of_taste(completions, answer, **_):
    """A judge at temperature 1: unit noise on a difference of 0.3."""
    return [round(0.3 * r + judge_of_taste.rng.gauss(0, 1), 2) for r in right(completions, answer)]


judge_of_taste.rng = random.Random(9)


def saturated_sigmoid(completions, **_):
    """sigmoid of a reward model's logit near 9."""
    return [1 / (1 + math.exp(-9 - (zlib.crc32(text(c).encode()) % 1000) / 1000)) for c in completions]


def abstention(completions, answer, **_):
    """0.6 for an empty or '?' answer, so that the model does not guess: worth more than it can earn."""
    out = []
    for c, r in zip(completions, right(completions, answer), strict=True):
        s = final(text(c))
        out.append(1.0 if r else 0.6 if len(s) == 0 else 0.0)
    return out


def constant_zero_on_error(completions, answer, **kwargs):
    """Swallows its own KeyError (the column is called answer, not solution)."""
    out = []
    for i, c in enumerate(completions):
        try:
            out.append(1.0 if final(text(c)) == kwargs["solution"][i] else 0.0)
        except Exception:
            out.append(0.0)
    return out


def compares_prompt(prompts, completions, answer, **_):
    """Extracts the number from the prompt in place of the completion."""
    return [round(int(re.findall(r"\d+", question(p))[-1]) / 60, 3) for p in prompts]
