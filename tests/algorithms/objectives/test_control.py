"""Controls: their cards, loops, runs that are resumed, and what a term at coefficient 0 still measures."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
import torch
from tests.algorithms.objectives.by_position import Schedule, TwoPhaseDecay
from tests.algorithms.objectives.conftest import figures_of
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.algorithms.objectives import KL, Entropy
from gxpo.algorithms.objectives.control import AdaptiveKl, ByAccuracy, DualBudget, EntropyTarget
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.parts.definition import show

ALL = (
    AdaptiveKl(),
    Schedule(total_steps=7),
    TwoPhaseDecay(total_steps=7),
    ByAccuracy(),
    EntropyTarget(target=0.5),
    DualBudget(),
)


def figures(step: int, seed: int = 0) -> dict[str, float]:
    rng = random.Random(100 * seed + step)
    return {
        "step": float(step),
        "kl": 0.2 * rng.random(),
        "entropy": rng.random(),
        "success_rate": rng.random(),
        "trajectories": 128.0,
    }


def fresh(control):
    return type(control)(**{k: v for k, v in vars(control).items() if not k.startswith("_")})


# ---------------------------------------------------------------- one by one
def test_adaptive_kl_has_the_cards_numbers():
    control = AdaptiveKl(target=0.06)
    assert control.adjust({"kl": 0.08, "trajectories": 128.0}) == pytest.approx({"kl_factor": 1.00256})
    assert control.coefficient(0.1) == pytest.approx(0.100256)
    control.adjust({"kl": 0.057, "trajectories": 128.0})  # 5 % below: -.05 * .0128
    assert control.coefficient(0.1) == pytest.approx(0.100256 * (1 - 0.05 * 0.0128))
    before = control.coefficient(0.1)
    control.adjust({"step": 3.0})  # a step that has no KL
    assert control.coefficient(0.1) == before and control.coefficient(0.0) == 0.0


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential"])
@pytest.mark.parametrize(("start", "to"), [(0.001, 0.04), (0.04, 0.001)])
def test_a_schedule_is_monotone_between_its_ends(shape, start, to):
    control = Schedule(to, shape, total_steps=10)
    coefficients = [control.coefficient(start)]
    for step in range(1, 14):
        assert control.adjust({"step": step}) == {"schedule_progress": min(step / 10, 1.0)}
        coefficients.append(control.coefficient(start))
    assert coefficients[0] == start and coefficients[10:] == pytest.approx([to] * 4)
    signs = [(b - a) * (to - start) for a, b in itertools.pairwise(coefficients)]
    assert all(s > 0 for s in signs[:10]) and all(s == 0 for s in signs[10:])
    middle = {"linear": (start + to) / 2, "cosine": (start + to) / 2, "exponential": math.sqrt(start * to)}
    assert coefficients[5] == pytest.approx(middle[shape])
    quarter = {"linear": 0.2, "cosine": (1 - math.cos(math.pi / 5)) / 2, "exponential": None}[shape]
    if quarter is not None:
        assert coefficients[2] == pytest.approx(start + (to - start) * quarter)


def test_two_phases_have_the_cards_numbers():
    control = TwoPhaseDecay(total_steps=1000)
    coefficients = [control.coefficient(1.0)]
    for step in range(1, 1001):
        control.adjust({"step": step})
        coefficients.append(control.coefficient(1.0))
    assert coefficients[0] == 1.0 and coefficients[499] == pytest.approx(0.827067, abs=2e-4)  # just before the middle
    assert coefficients[500] == pytest.approx(0.8) and coefficients[1000] == pytest.approx(0.8 * math.exp(-3))
    assert coefficients[250] == pytest.approx(1 - 0.2 * (1 - math.exp(-1))) and coefficients[750] == pytest.approx(
        0.8 * math.exp(-1.5)
    )
    assert all(b < a for a, b in itertools.pairwise(coefficients))


def test_by_accuracy_loosens_for_the_one_that_fails():
    control = ByAccuracy(midpoint=0.5, slope=10.0)
    assert control.coefficient(0.04) == 0.04  # nothing is known yet
    factors = []
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        control.adjust({"success_rate": rate})
        factors.append(control.coefficient(1.0))
    expected = [1 / (1 + math.exp(5)), 1 / (1 + math.exp(2.5)), 0.5, 1 / (1 + math.exp(-2.5)), 1 / (1 + math.exp(-5))]
    assert factors == pytest.approx(expected)
    assert control.adjust({}) == control.adjust({"success_rate": math.nan}) == {"accuracy_factor": factors[-1]}


@pytest.mark.parametrize("start", [0.0, 0.012])
def test_the_entropy_target_equals_a_loop(start):
    control, coef = EntropyTarget(target=0.5, step_size=0.005), start
    for step in range(40):
        entropy = figures(step)["entropy"]
        trace = control.adjust({"entropy": entropy})
        coef = coef + 0.005 if entropy < 0.5 else max(0.0, coef - 0.005)
        assert control.coefficient(start) == pytest.approx(coef if entropy < 0.5 else 0.0, abs=1e-15)
        assert trace == {"entropy_below_target": float(entropy < 0.5)}
    before = control.coefficient(start)
    assert control.adjust({}) and control.coefficient(start) == before
    at = EntropyTarget(target=0.5)
    at.adjust({"entropy": 0.5})
    assert at.coefficient(0.1) == 0.0  # at the target is not below it


@pytest.mark.parametrize("start", [0.012, 0.02, 0.03])
def test_a_bounded_entropy_target_equals_a_loop(start):
    """TRL's adaptive control: nothing before the first entropy, then clamped increments."""
    control, coef = (
        EntropyTarget(target=0.5, step_size=0.005, min_coef=0.01, max_coef=0.03, off_until_measured=True),
        start,
    )
    assert control.coefficient(start) == 0.0 and control.level(start) == start
    for step in range(60):
        entropy = 0.4 if step % 9 < 6 else 0.6 if step < 40 else 0.7
        control.adjust({"entropy": entropy})
        coef = min(coef + 0.005, 0.03) if entropy < 0.5 else max(coef - 0.005, 0.01)
        assert control.level(start) == pytest.approx(coef, abs=1e-15)
        assert control.coefficient(start) == pytest.approx(coef if entropy < 0.5 else 0.0, abs=1e-15)
    again = EntropyTarget(target=0.5, step_size=0.005, min_coef=0.01, max_coef=0.03, off_until_measured=True)
    again.load_state_dict(control.state_dict())
    assert again.level(start) == control.level(start)
    assert set(EntropyTarget().state_dict()) == {"total", "lowest", "below"}  # what earlier checkpoints hold
    with pytest.raises(ConfigError, match=r"control\.min_coef is 0\.5 and control\.max_coef 0\.1"):
        EntropyTarget(min_coef=0.5, max_coef=0.1)


@pytest.mark.parametrize("start", [0.0, 0.03])
def test_the_dual_variable_equals_a_loop(start):
    control, coef = DualBudget(budget=0.1, rate=0.2), start
    for step in range(60):
        kl = figures(step)["kl"]
        trace = control.adjust({"kl": kl})
        coef = max(0.0, coef + 0.2 * (kl - 0.1))
        assert control.coefficient(start) == pytest.approx(coef, abs=1e-14) and trace["kl_over_budget"] == kl - 0.1
    assert control.adjust({}) == {}


def test_the_dual_variable_converges_to_the_budget():
    """A world in which KL = 0.2 / (1 + 50 coef): 0.05 at coef 0.06."""
    control, coef = DualBudget(budget=0.05, rate=0.05), 0.0
    for _ in range(400):
        control.adjust({"kl": 0.2 / (1 + 50 * coef)})
        coef = control.coefficient(0.0)
    assert coef == pytest.approx(0.06, rel=1e-3)


# ---------------------------------------------------------------- all of them
@pytest.mark.parametrize("control", ALL, ids=lambda c: type(c).__name__)
def test_a_resumed_run_goes_on_exactly(control):
    uninterrupted = fresh(control)
    trace = [(uninterrupted.adjust(figures(s)), uninterrupted.coefficient(0.02)) for s in range(1, 10)]
    first, second = fresh(control), fresh(control)
    for s in range(1, 5):
        first.adjust(figures(s))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.coefficient(0.02) == trace[3][1]
    assert [(second.adjust(figures(s)), second.coefficient(0.02)) for s in range(5, 10)] == trace[4:]
    with pytest.raises(CheckpointError, match="another control"):
        second.load_state_dict({"foreign": 1.0})


@pytest.mark.parametrize("control", ALL, ids=lambda c: type(c).__name__)
def test_it_can_be_named_in_a_key_and_starts_anew_when_filled(control):
    name = show(type(control))  # adaptive_kl, schedule...
    m = gxpo.method("grpo", {"objective.kl.control": name, "objective.kl.coef": 0.02})
    term_control = m.terms["kl"].control
    assert type(term_control) is type(control) and m.terms["kl"].current_coef == pytest.approx(0.02)
    term_control.load_state_dict({k: v + 1 for k, v in term_control.state_dict().items()})
    assert m.fill(total_steps=5).terms["kl"].control.state_dict() == fresh(control).state_dict()
    assert "objective.kl.control" in m.state_dict()


def test_who_can_leave_zero():
    for control in ALL:
        leaves = show(control) in ("schedule", "entropy_target", "dual_budget")
        assert control.from_zero == leaves and KL(0.0, control=control).is_ever_used == leaves
        assert KL(0.01, control=control).is_ever_used
        fresh_one = fresh(control)
        for s in range(1, 5):
            fresh_one.adjust(figures(s) | {"entropy": 0.1, "kl": 0.4})
        assert (fresh_one.coefficient(0.0) > 0) == leaves
    plain = gxpo.method("fg_expo", {"objective.kl.coef": 0.0})
    assert "kl" not in plain.terms and "reference_logprob" not in plain.needs
    on = gxpo.method("fg_expo")
    assert "kl" in on.terms and "reference_logprob" in on.needs


def test_a_schedule_must_know_how_long_the_run_is():
    for control in (Schedule(), TwoPhaseDecay()):
        with pytest.raises(ConfigError, match="total_steps is None"):
            control.adjust({"step": 1.0})
    m = gxpo.method("grpo_d", {"objective.kl.control.turn": 0.5}).fill(total_steps=4)
    assert m.terms["kl"].current_coef == 0.01
    assert m.adjust({"step": 1}) == {"schedule_progress": 0.25} and m.terms["kl"].current_coef == pytest.approx(0.005)
    assert gxpo.method("epo").fill(total_steps=9).terms["entropy_band"].control.total_steps == 9


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaptiveKl(target=0.0),
        lambda: Schedule(to=-1.0),
        lambda: Schedule(to=0.0, shape="exponential"),
        lambda: Schedule(0.1, "exponential", total_steps=3).coefficient(0.0),
        lambda: Schedule(total_steps=0),
        lambda: Schedule(shape="dip", turn=1.0),
        lambda: TwoPhaseDecay(fall=1.5),
        lambda: ByAccuracy(slope=-1.0),
        lambda: EntropyTarget(step_size=0.0),
        lambda: DualBudget(budget=-0.1),
    ],
)
def test_bad_options_are_refused(make):
    with pytest.raises(ConfigError, match="control"):
        make()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_with_a_schedule_is_resumed_exactly(tmp_path):
    rows = check_resumed(
        "grpo_d", tmp_path, '"progress"', **{"objective.kl.control.total_steps": 8, "objective.kl.control.turn": 0.25}
    )
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.01, 0.005, 0.0, 0.02 / 6, 0.04 / 6])
    assert [row["schedule_progress"] for row in rows] == [0.125, 0.25, 0.375, 0.5, 0.625]


# ---------------------------------------------------------------- in a term
def test_the_coefficient_is_in_force_and_is_told(toy):
    control = Schedule(to=1.0, total_steps=2)
    term = KL(0.0, "token_mean", control=control)
    assert toy.loss(term, reference_logprob=toy.reference)[0] == 0.0
    control.adjust({"step": 1})
    assert toy.loss(term, reference_logprob=toy.reference)[0] == pytest.approx(0.5 * 0.041652, abs=1e-6)
    policy = toy.policy(reference_logprob=toy.reference)
    metrics = figures_of(term, toy.forest, policy, toy.credit, toy.weight)
    assert metrics == pytest.approx({"kl": 0.041652, "kl_coef": 0.5}, abs=1e-6)
    assert figures_of(KL(1.0), toy.forest, policy, toy.credit, toy.weight).keys() == {"kl"}


def test_at_zero_the_dual_variable_still_sees_the_kl(toy):
    term = KL(0.0, control=DualBudget(budget=0.01, rate=1.0))
    assert set(term.needs) == {"reference_logprob", "proximal_logprob"}
    assert KL(0.0, control=Schedule()).needs == ("reference_logprob",)
    signals = {"proximal_logprob": toy.logprob.detach(), "reference_logprob": toy.reference}
    policy = toy.policy(reference_logprob=toy.reference)
    args = (toy.forest, policy, toy.credit, toy.weight)
    assert not term.active(*args[:1], *args[2:]).any()
    assert figures_of(term, *args, signals) == pytest.approx({"kl": 0.041652, "kl_coef": 0.0}, abs=1e-6)
    assert figures_of(term, *args).keys() == figures_of(term, *args).keys() == {"kl_coef"}
    assert figures_of(KL(0.0, control=Schedule()), *args, signals) == {"kl_coef": 0.0}
    term.control.adjust(figures_of(term, *args, signals))
    assert term.current_coef == pytest.approx(0.031652, abs=1e-6)


def test_an_entropy_bonus_under_a_target(toy):
    term = Entropy(0.0, control=EntropyTarget(target=0.3, step_size=0.01))
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    assert term.outputs == ("logprob", "entropy") and toy.loss(term, entropy=entropy)[0] == 0.0
    term.control.adjust({"entropy": 0.2})
    value = term(toy.forest, toy.policy(entropy=entropy), toy.credit, toy.weight, {}, 0)[0]
    assert float(value.detach()) == pytest.approx(-0.01 * 0.3)
    term.control.adjust({"entropy": 0.4})
    assert term.current_coef == 0.0
