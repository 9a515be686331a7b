"""Rows by architecture: which kinds are measured, and what both sides do."""

from gxpo.bench import models
from gxpo.bench.random_models import KINDS


def test_refused_kinds_and_those_like_another_have_no_rows():
    names = {case.name for case in models.cases()}
    assert {"sample/llama", "update/llama", "sample/gpt2"} <= names
    assert not any(kind in name for name in names for kind in ("mamba", *models.SAME_SPEED))
    assert all(case.figures["note"] == KINDS[case.name.split("/")[1]].expected for case in models.cases())


def test_updates_share_prompts_on_one_side_alone():
    (case,) = [c for c in models.cases() if c.name == "update/qwen3"]
    assert case.candidate.arguments == {"kind": "qwen3", "as_it_is": True}
    assert case.baseline.arguments == {"kind": "qwen3", "as_it_is": False}
    assert case.candidate.target == case.baseline.target == "gxpo.bench.models:learner_gradient"
