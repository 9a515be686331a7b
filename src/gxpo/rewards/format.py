"""Format reward: exactly one final answer, in `<answer>` tags or `\\boxed{}`."""

from __future__ import annotations

import re

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BOXED = re.compile(r"\\boxed\s*\{(?!\s*\})")


def well_formed(completion: str) -> float:
    r"""1.0 where there is exactly one non-empty `<answer>...</answer>` or, without tags, one non-empty `\boxed{...}`.

    >>> well_formed("2 and 2 <answer>4</answer>"), well_formed(r"so \boxed{4}"), well_formed("4")
    (1.0, 1.0, 0.0)
    """
    tagged = TAGGED.findall(completion)
    if tagged or "<answer>" in completion or "</answer>" in completion:
        alone = completion.count("<answer>") == 1 == completion.count("</answer>")
        return float(alone and len(tagged) == 1 and bool(tagged[0].strip()))
    return float(len(BOXED.findall(completion)) == 1)
