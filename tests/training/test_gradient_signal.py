"""The gradient-signal meter: what it estimates from known gradients, and that its gradients are the trainer's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gxpo.base.errors import ConfigError
from gxpo.cli.app import app
from gxpo.parts.definition import SettingValue
from gxpo.parts.protocols import Budget
from gxpo.training import gradient_signal as meter
from gxpo.training.bound_learner import BoundLearner
from gxpo.training.config import resolve
from gxpo.training.gradient_signal import SizeMeasurement, agreement_of, measure, noise_scale, recommend, signal_of
from gxpo.training.loop import Trainer

COLD = {
    "model": "tiny:cold",
    "task": "arithmetic",
    "sampling.max_new_tokens": 6,
    "reward": f"{Path(__file__).with_name('even_tokens.py')}:share",
}


def test_signal_and_agreement_of_known_gradients():
    draws = torch.Generator().manual_seed(0)
    mean = torch.zeros(50, dtype=torch.float64)
    mean[:4] = 0.5  # |m|^2 = 1
    parts = mean + 0.4 * torch.randn(4000, 50, generator=draws, dtype=torch.float64)  # tr C = 50 * 0.16 = 8
    signal = signal_of(parts @ parts.T)
    assert signal == pytest.approx(1 / 8, rel=0.05)
    # two batches of 20 of them, many times over
    halves = parts.reshape(200, 20, 50).sum(1)
    cosines = torch.nn.functional.cosine_similarity(halves[::2], halves[1::2])
    assert float(cosines.mean()) == pytest.approx(agreement_of(1 / 8, 20), abs=0.03)
    pure = torch.randn(4000, 50, generator=draws, dtype=torch.float64)
    assert abs(signal_of(pure @ pure.T)) < 0.002


def test_edges_of_the_estimate():
    assert signal_of(torch.zeros(3, 3)) == 0 and signal_of(torch.ones(3, 3)) == float("inf")
    assert agreement_of(float("inf"), 4) == 1 and agreement_of(-0.1, 4) == 0
    with pytest.raises(ConfigError, match="at least 2"):
        signal_of(torch.ones(1, 1))


def test_a_sketch_keeps_inner_products_on_average(monkeypatch):
    draws = torch.Generator().manual_seed(1)
    a = {"x": torch.randn(40, 30, generator=draws), "y": torch.randn(500, generator=draws)}
    b = {k: x + torch.randn(x.shape, generator=draws) for k, x in a.items()}
    exact = float(meter._sketch(a) @ meter._sketch(b))
    monkeypatch.setattr(meter, "SKETCH", 1024)
    one, other = meter._sketch(a), meter._sketch(b)
    assert len(one) == 1024
    size = float(one.norm() * other.norm())
    assert abs(float(one @ other) - exact) < 4 * size / 1024**0.5


@pytest.fixture
def trainer(tmp_path):
    def make(method, **keys):
        given_settings = {**COLD, "method": method, "tasks.per_step": 5, "rollout.group_size": 4, **keys}
        return Trainer(resolve({k: SettingValue(v, "test") for k, v in given_settings.items()}), out=tmp_path / method)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "gspo", "gvpo", "papo"])
def test_the_tasks_gradients_add_up_to_the_steps(trainer, method):
    t = trainer(method)
    session = t.session(1, seed=0, sampling=t.sampling, budget=Budget())
    forest = t.shape(session.score(t.method.rollout.grow(session.draw(5), session)))
    tools = t.tools(1, session)
    parts = meter.gradients(t, forest, tools)
    read, signals, credit, weight = t.assign_credit(forest, tools)
    full_gradient = BoundLearner(t.learner, t.method, read, signals, 1).gradient(read, credit, weight)
    total = meter._sketch(full_gradient)
    assert parts.shape == (5, len(total))
    assert float((parts.sum(0) - total).norm()) <= 1e-4 * float(total.norm()) and float(total.norm()) > 0


@pytest.mark.slow
def test_smaller_groups_are_the_first_attempts_of_larger_ones():
    rows = measure("tiny:cold", "arithmetic", ["grpo"], [2, 3], 4, COLD)
    assert [(r.method, r.group_size) for r in rows] == [("grpo", 2), ("grpo", 3)]
    single_measure = measure("tiny:cold", "arithmetic", ["grpo"], [2], 4, COLD)
    assert single_measure[0].signal == pytest.approx(rows[0].signal, rel=1e-6)
    assert single_measure[0].tokens_per_task == rows[0].tokens_per_task < rows[1].tokens_per_task


@pytest.mark.slow
def test_methods_that_share_attempts_cut_them_their_own_way(monkeypatch):
    cut = []
    real = meter.gradients

    def seen(trainer, forest, tools):
        cut.append(int(forest.segment.max()))
        return real(trainer, forest, tools)

    monkeypatch.setattr(meter, "gradients", seen)
    keys = {**COLD, "sampling.max_new_tokens": 4}
    measure("tiny:cold", "arithmetic", ["grpo_vps", "grpo"], [2], 3, keys)
    measure("tiny:cold", "arithmetic", ["grpo", "grpo_vps"], [2], 3, keys)
    assert cut[1] == cut[2] == -1 and cut[0] == cut[3] >= 0


def row(size, signal, error, tokens, signs=(1, -1)):
    """Of 8 tasks; without each of them the signal is error / sqrt(7) more or less: the jackknife's is `error`."""
    without = tuple(signal + sign * error / 7**0.5 for sign in (signs * 8)[:8])
    to_agree = tokens / signal if signal > 0 else None
    return SizeMeasurement("grpo", size, 8, 0.5, signal, error, tokens, None, to_agree, 0.0, signal_without=without)


def test_the_recommendation_counts_tokens_and_knows_its_error():
    few, many, none = row(4, 0.10, 0.001, 100.0), row(8, 0.12, 0.001, 200.0), row(16, -0.01, 0.02, 400.0)
    assert recommend([many, few, none]) == (few, True)  # 0.001 against 0.0006 a token
    assert recommend([none]) == (None, False) and recommend([few]) == (few, True)
    # 0.001 (0.0006) a token against 0.0006 (0.00024), moved by different tasks: 0.0004 with an error of 0.00065
    unsure = row(4, 0.10, 0.06, 100.0)
    assert recommend([unsure, row(8, 0.12, 0.048, 200.0, (1, 1, -1, -1))])[1] is False
    assert recommend([unsure, row(8, 0.12, 0.10, 200.0)])[1] is True  # moved alike: 0.0004 with an error of 0.0001


def test_the_cosine_of_expected_gradients():
    draws = torch.Generator().manual_seed(2)
    shared = torch.randn(3000, 40, generator=draws, dtype=torch.float64)  # noise that both have does not count
    a, b = torch.zeros(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    a[:2], b[1:3] = 1.0, 1.0  # cosine 1/2
    actual = meter.cosine_of(shared + a, shared + b)
    assert actual == pytest.approx(0.5, abs=0.05)
    assert meter.cosine_of(a.repeat(5, 1), b.repeat(5, 1)) == pytest.approx(0.5)
    assert meter.cosine_of(torch.zeros(5, 1), a.repeat(5, 1)) is None
    assert meter.cosine_of(torch.zeros(5, 40).double(), a.repeat(5, 1)) is None


def test_signals_are_related_on_the_same_tasks():
    base, twice = row(4, 0.10, 0.05, 100.0), row(8, 0.30, 0.15, 200.0)
    assert meter._relate(base, base).relative == 1 and meter._relate(base, base).relative_error == 0
    actual = meter._relate(twice, base)  # three times the signal at twice the tokens, without any task
    assert actual.relative == pytest.approx(1.5) and actual.relative_error == pytest.approx(0, abs=1e-9)
    # 3 (1 + e) / (1 - e) / 2 and the inverse, e = 0.5 / sqrt(7): half the difference times sqrt(7)
    e = 0.5 / 7**0.5
    other = meter._relate(row(8, 0.30, 0.15, 200.0, (-1, 1)), base)
    assert other.relative_error == pytest.approx(7**0.5 * 0.75 * ((1 + e) / (1 - e) - (1 - e) / (1 + e)))
    assert meter._relate(base, row(4, -0.1, 0.05, 100.0)).relative is None


@pytest.mark.slow
def test_the_command(monkeypatch):
    given_texts = ["signal", "tiny:cold", "arithmetic", "--sizes", "2,3", "--tasks", "4", "--json"]
    sets = [x for k, v in COLD.items() if k not in ("model", "task") for x in ("--set", f"{k}={v}")]
    actual = json.loads(CliRunner().invoke(app, [*given_texts, *sets]).stdout)
    assert [r["group_size"] for r in actual["rows"]] == [2, 3] and actual["advice"]
    assert actual["rows"][0]["relative"] in (1.0, None) and "without" not in actual["rows"][0]
    assert actual["rows"][0]["along"] in (pytest.approx(1.0), None)
    output = CliRunner().invoke(app, [*given_texts[:-1], *sets]).stdout
    assert "tokens to agree" in output and actual["advice"].split(":")[0] in " ".join(output.split())


def test_what_is_wrong_is_said():
    with pytest.raises(ConfigError, match="group sizes are whole numbers above 0, not 0"):
        measure("tiny:cold", "arithmetic", ["grpo"], [0], 4)
    with pytest.raises(ConfigError, match=r"unknown key 'rollout\.group_size'"):
        measure("tiny:cold", "arithmetic", ["tree_grpo"], [4], 4)
    with pytest.raises(ConfigError, match="unknown method"):
        measure("tiny:cold", "arithmetic", ["grop"], [2], 4)
    with pytest.raises(ConfigError, match=r"--sizes '2;4'"):
        CliRunner().invoke(app, ["signal", "tiny:cold", "arithmetic", "--sizes", "2;4"], catch_exceptions=False)


def test_noise_scale_of_two_batches() -> None:
    # |g|^2 is 5 of 8 tasks, 2 of 64: tr C = 3 / (1/8 - 1/64) = 27.428571, |m|^2 = (128 - 40) / 56 = 1.571429
    assert noise_scale(8, 5.0, 64, 2.0) == pytest.approx(17.454545, abs=1e-6)
    assert noise_scale(8, 9.0, 64, 1.0) is None  # |m|^2 = (64 - 72) / 56
    with pytest.raises(ConfigError, match="the smaller first: got 8 and 8"):
        noise_scale(8, 5.0, 8, 2.0)
