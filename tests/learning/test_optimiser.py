"""Learning-rate schedules, and single steps of the optimiser."""

import inspect
import math

import pytest
import torch
from torch import nn

from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.learning.optimiser import OF_SCHEDULE, Optimiser, OptimiserSettings, Schedule, with_constant_rate


def test_schedules_have_the_stated_values():
    # warm-up of 2: 1/2, 2/2; then four steps down from 1 to 0
    assert [Schedule("linear", 2, 6)(s) for s in range(8)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert [round(Schedule("cosine", 0, 4)(s), 6) for s in range(5)] == [1.0, 0.853553, 0.5, 0.146447, 0.0]
    assert [Schedule("constant", 3)(s) for s in range(4)] == [1 / 3, 2 / 3, 1.0, 1.0]


def test_unknown_or_endless_schedules_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        Schedule("cosin", total=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a total"):
        Schedule("linear")
    with pytest.raises(ConfigError, match="needs a total"):
        Schedule("linear", warmup=5, total=5)


# ---------------------------------------------------------------- optimiser
def one_weight(value: float, gradient: float, **settings) -> tuple[nn.Parameter, Optimiser]:
    p = nn.Parameter(torch.tensor([value], dtype=settings.pop("dtype", torch.float64)))
    optimiser = Optimiser({"w": p}, kind="sgd", betas=(0.0, 0.0), **settings)
    p.grad = torch.tensor([gradient], dtype=p.dtype)
    return p, optimiser


def test_a_step_reports_the_norm_before_clipping():
    # the gradient 4 is clipped to norm 1 (less 1e-6 / 4 of it), so the weight moves by lr
    p, optimiser = one_weight(2.0, 4.0, lr=0.5, max_grad_norm=1.0)
    assert optimiser.step() == 4.0
    assert float(p.detach()) == pytest.approx(1.5, abs=1e-6)
    assert (optimiser.steps, optimiser.moved_share) == (1, 1.0)


def test_a_limit_of_zero_clips_nothing():
    p, optimiser = one_weight(2.0, 4.0, lr=0.25, max_grad_norm=0.0)
    optimiser.step()
    assert float(p.detach()) == 1.0


@pytest.mark.parametrize("gradient", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(gradient):
    p, optimiser = one_weight(2.0, gradient, lr=0.5)
    assert not math.isfinite(optimiser.step())
    assert (float(p.detach()), optimiser.steps, optimiser.moved_share) == (2.0, 0, None)


def test_multiples_scale_the_learning_rate_by_prefix():
    head, body = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    optimiser = Optimiser({"value_head.w": head, "body.w": body}, lr=0.5, kind="sgd", multiples={"value_head.": 4.0})
    for p in (head, body):
        p.grad = torch.tensor([-0.125], dtype=torch.float64)
    optimiser.step()
    assert (float(head.detach()), float(body.detach())) == (0.25, 0.0625)


def test_sixteen_bit_weights_move_through_float32_copies():
    # 2^-9 is a quarter of the gap between 1 and its upper neighbour in bfloat16: a single step moves no weight
    p, optimiser = one_weight(1.0, 0.0, lr=1.0, dtype=torch.bfloat16)
    seen_records = []
    for _ in range(4):
        p.grad = torch.tensor([-(2.0**-9)], dtype=torch.bfloat16)
        optimiser.collect()
        optimiser.step()
        optimiser.zero()
        seen_records.append(float(p.detach()))
    assert optimiser.copies and seen_records == [1.0, 1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-7]


def test_saved_states_of_another_model_are_refused_whole():
    p, optimiser = one_weight(2.0, 4.0, lr=0.5)
    with pytest.raises(CheckpointError, match="lacks 'parameter/w'"):
        optimiser.load_tensors({"parameter/v": torch.zeros(1)}, 0)
    with pytest.raises(CheckpointError, match=r"shape \(2,\) in the saved state and \(1,\)"):
        optimiser.load_tensors({"parameter/w": torch.zeros(2)}, 0)
    assert float(p.detach()) == 2.0


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ModelError, match="no trainable parameters"):
        Optimiser({}, lr=0.1)


def test_settings_of_learners_are_those_of_the_optimiser_and_its_schedule():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    made = Optimiser.of({"w": weight}, {"optimiser": "sgd", "schedule": "linear", "warmup_steps": 1, "total_steps": 5,
                                        "max_grad_norm": 0.25}, lr=0.5)  # fmt: skip
    assert (made.lr, made.max_grad_norm, made.schedule) == (0.5, 0.25, Schedule("linear", 1, 5))
    plain = Optimiser({"w": weight}, lr=0.5)
    default = Optimiser.of({"w": weight}, {}, lr=0.5)
    assert (default.schedule, default.max_grad_norm) == (plain.schedule, plain.max_grad_norm)
    assert with_constant_rate({"eps": 1e-3, "schedule": "linear", "total_steps": 5}) == {"eps": 1e-3}
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        Optimiser.of({"w": weight}, {"momentum": 0.9}, lr=0.5)
    names = {"kind" if name == "optimiser" else name for name in OptimiserSettings.__annotations__} - {*OF_SCHEDULE}
    of_class = {*inspect.signature(Optimiser).parameters} - {"parameter_by_name", "lr", "schedule", "multiples"}
    assert names == of_class - {"outer_names"}
