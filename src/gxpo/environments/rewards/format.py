"""Format reward: exactly one final answer, in `<answer>` tags or `\\boxed{}`."""

from __future__ import annotations

from gxpo.environments.rewards.final_answer import find_answers


def well_formed(completion: str) -> float:
    r"""1.0 where there is exactly one non-empty `<answer>...</answer>`, after all boxes, or, without tags, exactly one
    non-empty `\boxed{...}`, outside the thought; all are closed. It is the answer that `math` reads
    (`gxpo.environments.rewards.final_answer`).

    >>> [well_formed(x) for x in ("2 and 2 <answer>4</answer>", r"so \boxed{4}", r"\boxed{4", "4")]
    [1.0, 1.0, 0.0, 0.0]
    """
    return float(find_answers(completion).is_well_formed)
