"""Metrics of structured answers against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError, MissingExtra
from gxpo.environments.rewards.metrics import METRICS, metric_of, options_of


# ---------------------------------------------------------------- the registry
def test_every_metric_is_found_and_names_what_is_missing(monkeypatch):
    for name in METRICS:
        metric = metric_of(name, "metric")
        assert (
            metric.__name__ == name and metric.__doc__ and list(options_of(metric)) == list(metric.__kwdefaults__ or {})
        )
    with pytest.raises(ConfigError, match="did you mean 'bleu'"):
        metric_of("blue", "metric")
    monkeypatch.setitem(__import__("sys").modules, "apted", None)
    with pytest.raises(MissingExtra, match=r"gxpo\[rewards\]"):
        metric_of("teds", "metric")


def test_the_extra_has_what_the_metrics_need():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("rewards = "))
    assert all(library in line for _, library in METRICS.values() if library) and "jsonschema" in line
