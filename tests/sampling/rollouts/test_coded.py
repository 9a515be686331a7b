"""Attempts under codes, and the best of them reinforced alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.sampling.rollouts.team_session import AnswerSession, decoded

import gxpo
from gxpo.algorithms.credit.sets import max_second
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.coded import Coded

ADD = Task("add", "1+1=", "2")


def grow(rollout: Any) -> tuple[Any, list[str]]:
    session = AnswerSession(lambda policy, context, attempt: "2")
    forest = rollout.grow(session.asked(ADD), session)
    return forest, [decoded(request.prompt) for request in session.requests[0] for _ in request.streams]


def test_each_attempt_reads_its_code() -> None:
    forest, prompts = grow(Coded(3, ["p", "q"], template="{code}{prompt}"))
    assert prompts == ["p1+1=", "q1+1=", "p1+1="] and [i["code"] for i in forest.info] == ["p", "q", "p"]
    assert set(forest.group) == {"s3/add"}


def test_a_group_can_share_its_code() -> None:
    forest, _ = grow(Coded(4, assignment="group"))
    assert len({i["code"] for i in forest.info}) == 1
    forest, _ = grow(Coded(16, assignment="each"))
    assert len({i["code"] for i in forest.info}) > 2


def test_held_out_samples_go_through_the_codes() -> None:
    forest, _ = grow(Coded(2, ["p", "q", "r"], "each").evaluation(3))
    assert [i["code"] for i in forest.info] == ["p", "q", "r"]


def test_the_best_alone_is_reinforced() -> None:
    # .9 - (.2 + .5) / 2 = .55
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3], [4]]], [[0.2, 0.9, 0.5]])
    credit = gxpo.method("compass_latent", {"rollout": "independent"}).advantages(forest)
    assert credit.tolist() == pytest.approx([0.0, 0.55, 0.0])
    tied = max_second(torch.tensor([1.0, 1.0, 0.0]), torch.zeros(3).long(), scale="none", against="others")
    assert tied.tolist() == [0.0, 0.0, 0.0]  # none of several that are best, as in the authors' code


def test_codes_that_are_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.codes=\['p', 'p'\]: name one code or more, each once"):
        Coded(codes=["p", "p"])
