"""Position of the first match of a pattern in an answer, in tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


def first_match(tokens: Sequence[int], pattern: re.Pattern[str], decode: Callable[[Sequence[int]], str]) -> float:
    """Index of the token that holds the first character of the first match; nan without a match.

    >>> first_match([7, 8, 9], re.compile("b"), lambda ids: "".join("abc"[i - 7] for i in ids))
    1.0
    """
    found = pattern.search(decode(tokens))
    if found is None:
        return float("nan")
    shown = bisect_right(range(len(tokens)), found.start(), key=lambda n: len(decode(tokens[: n + 1])))
    return float(min(shown, len(tokens) - 1))


@part("first_match", stage="signal")
@dataclass(frozen=True)
class FirstMatch(SignalPart):
    """The signal "first_use" [R]: `first_match` among all of a trajectory's action tokens, turn after turn.

    pattern  a regular expression; the default finds calls of tools and blocks of Python as models write them
    """

    pattern: str = r"<tool_call>|<code>|```python"

    provides = ("first_use",)
    axes = {"first_use": "R"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"signal.first_match.pattern={self.pattern!r} is not a regular expression: {error}"
            ) from None

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("the place of a first match")
        pattern = re.compile(self.pattern)
        answers = (forest.token[forest.path_token[forest.path_of(r)]].tolist() for r in range(forest.n_trajectories))
        found = [first_match(tokens, pattern, tools.decode) for tokens in answers]
        return {"first_use": torch.tensor(found, dtype=torch.float64)}
