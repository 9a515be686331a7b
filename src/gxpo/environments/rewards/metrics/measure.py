"""Measure of one text by a metric, in this process or a worker; it imports no torch, which workers do not load."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.answers import compiled, extract
from gxpo.base.usercode import from_file
from gxpo.environments.rewards.metrics import Unreadable, metric_of

Metric = Callable[..., float]


def answer_of(text: str, pattern: str | None) -> str:
    """Extract the answer of a text; Unreadable without one. `pattern`: see `base.answers.extract`; None: all of it."""
    answer = text.strip() if pattern is None else extract(text, compiled(pattern, "pattern"))
    if not answer:
        raise Unreadable("no answer")
    return answer


@dataclass
class Measure:
    """Score of the answer in a text beside a reference.

    metric   name in `rewards.metrics.METRICS`, a function's source as `gxpo.base.usercode.from_file` takes it, or the
             function itself
    pattern  regular expression of the answer in the text

    It returns {"score": x}, {"malformed": 1} where the answer can't be read, or {"incomparable": 1} where the reference
    can't. With `reference_is_text` the reference is the answer in another text.
    """

    metric: str | Mapping[str, Any] | Metric
    pattern: str | None
    _function: Metric | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(
        self, text: str, reference: Any, options: Mapping[str, Any], reference_is_text: bool = False
    ) -> dict[str, float]:
        try:
            answer = answer_of(text, self.pattern)
        # The policy's own text first: an answer that can't be read is malformed whatever the reference is.
        except Unreadable:
            return {"malformed": 1.0}
        if reference_is_text:
            try:
                reference = answer_of(reference, self.pattern)
            except Unreadable:
                return {"incomparable": 1.0}
        try:
            # A metric may find only while comparing that it can't read the answer.
            score = float(self.function(answer, reference, **options))
        except Unreadable:
            return {"malformed": 1.0}
        return {"score": score} if math.isfinite(score) else {"incomparable": 1.0}

    @property
    def function(self) -> Metric:
        """Function of the metric; a user's file is loaded at the first use."""
        function = self._function
        if function is None:
            if isinstance(self.metric, str):
                function = metric_of(self.metric, "metric")
            elif isinstance(self.metric, Mapping):
                function = from_file(self.metric, types.FunctionType, "gxpo_metric_file")
            else:
                function = self.metric
            self._function = function
        return function

    def __getstate__(self) -> dict[str, Any]:
        return {"metric": self.metric, "pattern": self.pattern, "_function": None}
