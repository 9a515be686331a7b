"""Golden losses: against worked numbers, and through the command that anyone can point at a function of their own."""

from __future__ import annotations

import math

import pytest

from gxpo.base.errors import ConfigError
from gxpo.conformance.losses import check_losses, losses, objectives
from gxpo.methods import METHODS

# Worked by hand on the five tokens: (objective, vector, value, slopes).
WORKED = [
    ("grpo", "five tokens, token_mean", 0.313057, [0, -0.180967, 0, 0.244281, 0.329744]),
    ("grpo", "five tokens, sequence_mean", 0.085478, [0, -0.226209, 0, 0.203567, 0.274787]),
    ("grpo", "clip higher, token_mean", 0.297057, [0, -0.180967, 0, 0.244281, 0.329744]),
    ("ppo", "a low bound on worsening tokens, token_mean", 0.243313, [0, -0.180967, 0, 0.244281, 0]),
    ("gspo", "five tokens, sequence_mean", 0.052385, [0, 0, 0.184195, 0.184195, 0.184195]),
    ("gspo", "PPO's bounds, sequence_mean", 0.0, [-0.276293, -0.276293, 0.184195, 0.184195, 0.184195]),
    ("gmpo", "five tokens, sequence_mean", 0.065045, [0, -0.262818, 0, 0.196893, 0.196893]),
    ("cispo", "five tokens, token_mean", -0.147117, [-0.256, -0.180967, 0.134064, 0.244281, 0.256]),
    ("gpg", "five tokens, token_mean", -0.28, [-0.2, -0.2, 0.2, 0.2, 0.2]),
    ("spo_simple", "five tokens, token_mean", 0.612152, [0.202288, -0.267074, -0.086927, 0.514702, 1.399305]),
    ("sapo_gate", "five tokens, sequence_mean", -0.023974, [-0.327345, -0.225698, 0.108439, 0.200841, 0.245225]),
]


@pytest.mark.parametrize(("objective", "name", "value", "slopes"), WORKED, ids=[f"{o}: {n}" for o, n, *_ in WORKED])
def test_worked_numbers(objective: str, name: str, value: float, slopes: list[float]) -> None:
    vector = next(v for v in losses(objective).vectors if v.name == name)
    assert vector.value == pytest.approx(value, abs=1e-6)
    assert list(vector.gradient) == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("objective", objectives())
def test_every_file_is_whole(objective: str) -> None:
    entry = losses(objective)
    assert entry.objective == objective in METHODS and entry.formula and len(entry.vectors) >= 4
    assert len({v.name for v in entry.vectors}) == len(entry.vectors)
    for v in entry.vectors:
        assert len({len(x) for x in (v.logprobs, v.old, v.advantages, v.rows, v.gradient)}) == 1
        assert set(entry.constants) <= set(v.constants) and math.isfinite(v.value)
        assert all(math.isfinite(x) for x in v.gradient) and max(v.logprobs) < 0
        assert all(g == 0 for g, a in zip(v.gradient, v.advantages, strict=True) if a == 0)


def test_gxpos_own_objectives_pass_all_of_them() -> None:
    results = check_losses()
    assert [r for r in results if r.status != "passed"] == [] and len(results) > 60


def reinforce(objective, logprobs, old, advantages, rows, aggregate, **constants):
    if objective != "gpg" or aggregate != "token_mean":
        raise NotImplementedError(objective)
    n = len(rows)
    return -sum(a * x for a, x in zip(advantages, logprobs, strict=True)) / n, [-a / n for a in advantages]


def test_an_own_function_passes_fails_and_is_not_supported() -> None:
    assert {r.status for r in check_losses(reinforce, ["gpg"])} == {"passed", "not supported"}
    wrong = check_losses(lambda *a, **k: (-0.28, [0.0] * len(a[1])), ["gpg"])
    assert any(r.status == "failed" and "the slope of token" in r.detail for r in wrong)
    assert all("1 slopes for" in r.detail for r in check_losses(lambda *a, **k: (0.0, [0.0]), ["gpg"]))
    with pytest.raises(ConfigError, match="did you mean 'gspo'"):
        losses("gsp")
