"""Numeric reward by relative error from the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.base.errors import ConfigError

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task

NUMBER = re.compile(r"(?:(?<!\d)[-+])?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d*\.\d+|\d+)(?:/\d+)?")


def number_in(text: Any) -> float | None:
    """Last number in `text` (1,000; -2.5; 3/4); None without one, for a division by 0, or beyond a float.

    >>> number_in("about 1,250 people"), number_in("3/4"), number_in("none")
    (1250.0, 0.75, None)
    """
    found = NUMBER.findall(str(text))
    if not found:
        return None
    above, _, below = found[-1].replace(",", "").partition("/")
    if below and float(below) == 0:
        return None
    value = float(above) / float(below or 1)
    return value if math.isfinite(value) else None


def graded(gap: Tensor, top: float = 1.5, width: float = 0.5) -> Tensor:
    """top - gap where gap < width, else 0; float64, nan stays: what is just near enough still earns top - width.

    >>> [round(x, 6) for x in graded(torch.tensor([0.0, 0.1, 0.3, 0.49, 0.51])).tolist()]
    [1.5, 1.4, 1.2, 1.01, 0.0]
    """
    x = gap.to(torch.float64)
    return torch.where(x.isnan() | (x < width), top - x, 0.0)


@dataclass(eq=False)
class Numeric:
    """{"numeric": [R]}: `graded` of the relative error |y - y'| / |y|, y the task's answer, y' the number given.

    pattern  its groups catch the answer in a text; the last number in the last catch is y'
    top      reward of the exact number;   width  relative error from which on the reward is 0

    A text without a number is wrong. Of y = 0 only 0 itself is near. A task whose answer holds no number can't be
    scored by it: nan.

    Source: FGRPR (CrowdVLM-R1, arXiv 2504.03724) and its code, where y' is a string of digits, and y = 0 earns 0.
    """

    pattern: str = ANSWER
    top: float = 1.5
    width: float = 0.5

    name = "numeric"
    gives = ("numeric",)

    def __post_init__(self) -> None:
        self._read = compiled(self.pattern, "scoring.options.numeric.pattern")
        if not 0 < self.width <= self.top:
            raise ConfigError(
                f"scoring.options.numeric: width ({self.width!r}) is above 0 and at most top ({self.top!r}), so that "
                "nothing earns less than 0"
            )

    def gap(self, text: str, answer: Any) -> float:
        """Relative error; inf without a number in the text, nan without one in the answer."""
        true, said = number_in(answer), number_in(extract(text, self._read) or "")
        if true is None or answer is None:
            return math.nan
        if said is None:
            return math.inf
        return abs(true - said) / abs(true) if true else (0.0 if said == 0 else math.inf)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        gaps = [self.gap(text, task.answer) for text, task in zip(texts, tasks, strict=True)]
        return {"numeric": graded(torch.tensor(gaps, dtype=torch.float64), self.top, self.width)}
