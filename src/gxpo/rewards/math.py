"""Is the last expression of a completion equal to the answer? Decided by math-verify, in a worker process.

math-verify's own time limit uses a signal and breaks off the main thread, so it is off here and the worker's limit
holds (`9^{9^9}` is a completion, too). This file is loaded by path in the worker and imports nothing of gxpo.
"""

from __future__ import annotations

import logging
from typing import Any

MARKS = ("$", "\\boxed", "\\(", "\\[")


def correct(completion: str, answer: Any) -> dict[str, float]:
    """`correct`: 1 where math-verify finds an expression in `completion` that equals `answer`, else 0.

    `answer` is LaTeX, with or without `$`, or a number. A completion without anything readable is wrong; an `answer`
    that can't be read is an error of the data, so it raises (unscored). Source: math-verify `parse` and `verify`.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off
    text = str(answer)
    gold = parse(
        text if any(mark in text for mark in MARKS) else f"${text}$",
        parsing_timeout=0,
    )
    if answer is None or not gold:
        raise ValueError(f"the answer {answer!r} can't be read as mathematics")
    found = parse(completion, parsing_timeout=0)
    return {"correct": float(verify(gold, found, timeout_seconds=0, raise_on_error=True))}
