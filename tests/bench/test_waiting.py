"""Agents of the benchmark of waiting tools make the calls that its figures count."""

from __future__ import annotations

from pathlib import Path

import pytest

from gxpo.bench import waiting
from gxpo.bench.plan import save_models


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["instant_agent", "waiting_agent"])
def test_a_step_generates_the_tokens_that_its_row_counts(agent: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(waiting, "LONGEST", 0.06)
    save_models(str(tmp_path), ["tiny"])
    step = waiting.agents_step(str(tmp_path), 16, agent, 2)
    assert step()["generated_tokens"] == 16 * 4 * 16
