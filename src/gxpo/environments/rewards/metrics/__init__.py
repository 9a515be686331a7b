"""Metrics of an answer against a reference, by name: pure functions `(answer, reference, **options) -> float`.

Each is a score, 1 the best there is (`wer` is 1 - WER). One that can't read the answer raises `Unreadable`; one that
can't read the reference gives nan.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping

from gxpo.base.errors import ConfigError, did_you_mean, need

__all__ = ["METRICS", "Unreadable", "metric_of", "options_of"]

Metric = Callable[..., float]

METRICS: Mapping[str, tuple[str, str]] = {  # name -> module of this package, and what has to be installed for it
    "exact": ("text", ""),
    "choice": ("text", ""),
    "f1": ("text", ""),
    "wer": ("text", ""),
    "cer": ("text", ""),
    "bleu": ("text", "sacrebleu"),
    "chrf": ("text", "sacrebleu"),
    "script_share": ("text", ""),
    "lexical_diversity": ("diversity", ""),
    "interval_iou": ("regions", ""),
    "box_iou": ("regions", ""),
    "point_in_box": ("regions", ""),
    "point_distance": ("regions", ""),
    "count_distance": ("regions", ""),
    "json_schema": ("structure", ""),
    "teds": ("tables", "apted"),
    "embedding": ("embedding", ""),
}
REFERENCE_FREE = ("script_share", "lexical_diversity")
SUPERLINEAR = ("json_schema", "teds")  # a short text or schema can cost much: workers compute them, with a limit


class Unreadable(ValueError):
    """Error for an answer that holds nothing of the kind that the metric compares."""


def metric_of(name: str, key: str) -> Metric:
    """Load a metric by name; ConfigError naming `key` where there is none, MissingExtra without its library."""
    if name not in METRICS:
        hint = did_you_mean(name, METRICS) or f"; there is {', '.join(METRICS)}, or my_metrics.py:FUNCTION"
        raise ConfigError(f"{key} has no {name!r}{hint}")
    module, library = METRICS[name]
    if library:
        need(library, "rewards")
    return getattr(importlib.import_module(f"gxpo.environments.rewards.metrics.{module}"), name)


def options_of(metric: Metric) -> tuple[str, ...]:
    """Names of a metric's options: its parameters after answer and reference."""
    return tuple(inspect.signature(metric).parameters)[2:]
