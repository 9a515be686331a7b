"""Rewards of the recipes for papers. See the head of each recipe for what they are taken from."""

import math
import re

FORM = re.compile(r"\A\s*<think>.*?</think>\s*<answer>.*?</answer>\s*\Z", re.DOTALL)
TOOL = re.compile(r"<tool>\s*(.*?)\s*</tool>", re.DOTALL)
LONGEST = 3584  # tokens, max_completion_length of Open-RS


def boxed(completion):
    """Return the text in the last \\boxed{}, of braces that pair; None without one."""
    start = completion.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for i in range(start + 6, len(completion)):
        depth += {"{": 1, "}": -1}.get(completion[i], 0)
        if depth == 0:
            return completion[start + 7 : i]
    return None


def open_rs(completion, answer, tokens):
    """Reward form + 2 x cosine: right answers from 1 (short) to .5 (long), wrong ones from -1 to -.5; length cut at
    LONGEST.

    Theirs counts characters and is not cut: with a limit of 3584, an answer of 7168 characters earns 1 again.
    """
    boxed_text = boxed(completion)
    is_right = boxed_text is not None and boxed_text.replace(" ", "") == str(answer).replace(" ", "")
    wave = math.cos(math.pi * min(len(tokens) / LONGEST, 1.0))
    cosine = 0.5 + 0.25 * (1 + wave) if is_right else -0.5 - 0.25 * (1 + wave)
    return float(bool(FORM.match(completion))) + 2.0 * cosine


def tool_gain(completion, info):
    """Return the verdict of the frozen model with the named tool, less without one: 1, 0 or -1; -1 where no tool of the
    list is named. `info["right"]`: tool -> 0 or 1, computed before the run with greedy answers; "none" is without a
    tool."""
    match = TOOL.search(completion)
    right = info["right"]
    if match is None or match[1] not in right:
        return -1.0
    return float(right[match[1]] - right["none"])


def rebuttal_form(completion):
    """Reward 1 where <analysis>, <strategy> and <response> are all there."""
    tags = ("analysis", "strategy", "response")
    return float(all(re.search(rf"<{tag}>.*</{tag}>", completion, re.DOTALL) for tag in tags))
