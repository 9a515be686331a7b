"""Every example resolves, names what exists, and says how it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gxpo.training import config
from gxpo.training.models import pipelines
from gxpo.training.models.load import check_name, is_path

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_resolve_and_are_short(path):
    resolved = config.load(path)
    assert resolved.method.name and resolved.settings.trainer.steps >= 1
    model = resolved.settings.model
    if not pipelines.denoises(model) and (is_path(model) or "/" not in model):  # tiny needs the warm start of its task
        check_name(model, resolved.settings.task)
    lines = path.read_text().splitlines()
    assert len(lines) <= 22
    assert path.stem == "arithmetic" or f"gxpo train examples/{path.name}" in lines[0]


def test_the_examples_that_are_promised_are_there():
    promised = {
        "arithmetic", "frozenlake_gigpo", "sokoban_gigpo", "shop_gigpo", "smollm2_reasoning_gym", "smollm2_tools",
        "gsm8k_qwen",
    }  # fmt: skip
    assert promised <= {p.stem for p in EXAMPLES}
