"""Signals of a frozen teacher: what is asked of it, its axes, and a checkpoint that knows its weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gxpo.algorithms.signals.teacher_model import TeacherModel
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Output

FOREST = Forest.from_completions(
    prompts=[[1, 2]], completions=[[[3, 4], [5]]], rewards=[1.0, 0.0]
)  # three action tokens


class FixedTeacher:
    """Teacher whose outputs are written down, and which notes the names that were asked for."""

    def __init__(self, weight: float) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.model.weight, weight)
        self.names: tuple[Output, ...] = ()

    def outputs(self, forest: Forest, names: tuple[Output, ...]) -> dict[Output, torch.Tensor]:
        self.names = names
        values = (
            torch.tensor([[3.0, 9.0], [4.0, 9.0], [5.0, 9.0]]),
            torch.tensor([[-0.1, -3.0, -4.0]] * 3),
            torch.tensor([0.5, 0.25, 0.0]),
            torch.tensor([-0.1, -0.1, -0.1]),
        )
        return dict(zip(names, values, strict=True))


def bound(weight: float, **options: Any) -> tuple[TeacherModel, FixedTeacher, list[str]]:
    """A part bound to a teacher, and the names of the external models that it asked for."""
    part, teacher, asked_names = TeacherModel(**options), FixedTeacher(weight), []
    part.bind(SimpleNamespace(external=lambda name: asked_names.append(name) or teacher))  # type: ignore[arg-type]
    return part, teacher, asked_names


def test_the_teacher_is_read_by_its_name_for_the_top_k_ids():
    part, teacher, requests = bound(1.0, model="large", top_k=2)
    signals = part.compute(FOREST, {}, None)  # type: ignore[arg-type]
    assert part.external == ("large",) and requests == ["large"]
    assert teacher.names[:2] == (Output("likeliest", 2), Output("likeliest_logprob", 2))
    assert list(signals) == ["teacher_ids", "teacher_logprob", "teacher_entropy", "teacher_token_logprob"]
    assert signals["teacher_ids"].dtype == torch.int64 and signals["teacher_ids"].tolist() == [[3, 9], [4, 9], [5, 9]]
    assert signals["teacher_entropy"].tolist() == [0.5, 0.25, 0.0]


def test_without_a_bound_model_the_error_names_the_setting():
    with pytest.raises(ConfigError, match=r"set teacher\.model=DIR"):
        TeacherModel().compute(FOREST, {}, None)  # type: ignore[arg-type]


def test_resuming_with_other_weights_is_refused():
    part, again, other = bound(1.0)[0], bound(1.0)[0], bound(2.0)[0]
    state = part.state_dict()
    again.load_state_dict(state)  # equal weights in another object
    with pytest.raises(CheckpointError, match="has other weights than the one that this run began with"):
        other.load_state_dict(state)


def test_an_unbound_part_has_no_state():
    assert TeacherModel().state_dict() == {}
