"""AEPO's tempered samples: which temperature, who comes in and for whom, credit 1, runs that are resumed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.replay_session import UNSCORED, StepSession, tasks, train
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.rounds import Independent
from gxpo.sampling.rollouts.temperature import HotColdReplay


class Heated(StepSession):
    """Notes the temperature and the streams of every request."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.asked: list[tuple[float, list[Any]]] = []

    def sample(self, requests: Any, sampling: Any = None) -> Any:
        streams = [s for request in requests for s in request.streams]
        self.asked.append(((sampling or self.sampling).temperature, streams))
        return super().sample(requests)


def grown(part: HotColdReplay, entropy: float | None, script: Any, names: Any = "abcdefgh") -> tuple[Forest, Heated]:
    if entropy is not None:
        part.load_state_dict({"entropy": entropy})
    session = Heated(script, step=3)
    return part.grow(tasks(*names), session), session


def half(stream: Any) -> int:
    """The first of the tempered samples of every task succeeds, and the second of the fresh ones."""
    return int(stream.attempt in (1, 2))


@pytest.mark.parametrize(("entropy", "heat", "m"), [(0.3, 1.2, 2), (0.5, 1.2, 2), (0.51, 0.8, 1)])
def test_the_last_entropy_decides_on_temperature_and_number(entropy: float, heat: float, m: int) -> None:
    forest, session = grown(HotColdReplay(2), entropy, half)
    assert [t for t, _ in session.asked] == [session.sampling.temperature, heat]
    again = session.asked[1][1]
    assert [(s.task, s.attempt, s.step) for s in again] == [(t, i, 3) for t in "ab" for i in (2, 3)]
    assert forest.origin == ["tempered"] * m + ["policy"] * 16  # a quarter of eight tasks, one good sample of each
    assert session.budget.discarded == 4 - m
    trained = [bool(forest.path_trainable[forest.path_of(r)].all()) for r in range(len(forest.id))]
    assert trained == [True] * m + [False] * m + [True] * (16 - m)  # as many are trained as without


def test_tempered_rows_are_uncompared_and_at_the_run_temperature() -> None:
    forest, session = grown(HotColdReplay(2), 0.3, half)
    assert forest.group[:2] == forest.id[:2] == ["s3/a/tempered/0", "s3/b/tempered/0"]
    assert forest.compared.tolist() == [False] * 2 + [True] * 16
    assert forest.outcome[:2].tolist() == [1.0, 1.0] and forest.task[:2] == ["a", "b"]
    assert {row["temperature"] for row in forest.sampling} == {session.sampling.temperature}
    own_behaviour_logprobs = [forest.path_behaviour_logprob[forest.path_of(r)] for r in range(18)]
    assert all(bool(x.isnan().all()) for x in own_behaviour_logprobs[:2]) and all(
        bool(x.isfinite().all()) for x in own_behaviour_logprobs[2:]
    )
    plain = Heated(half, step=3)
    fresh = plain.score(Independent(2).grow(tasks(*"abcdefgh"), plain))
    assert [forest.action(r) for r in range(2, 18)] == [fresh.action(r) for r in range(16)]
    assert forest.weight.tolist() == [1.0] * 2 + [0.0] * 2 + [1.0] * 14


def test_tempered_rows_have_credit_one_and_others_keep_theirs() -> None:
    """Groups of one right and one wrong answer of two: +-.5 unscaled, also for those whose place was taken."""
    forest, _ = grown(HotColdReplay(2), 0.3, half)
    m = gxpo.method("aepo", {"credit.scale": "none"})
    credit = m.advantages(forest)
    actual = [float(credit[forest.path_of(r)[0]]) for r in range(18)]
    assert actual == [1.0] * 2 + [-0.5, 0.5] * 8
    scaled = gxpo.method("aepo").advantages(forest)
    assert [float(scaled[forest.path_of(r)[0]]) for r in range(2)] == [1.0, 1.0]
    logprob = torch.zeros(forest.n_entries, dtype=torch.float64, requires_grad=True)
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob, proximal_logprob=logprob.detach())
    (slope,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit).value, logprob)
    lengths = [len(forest.path_of(r)) for r in range(18)]
    expected = [-a / 16 / n if r not in (2, 3) else 0.0 for r, (a, n) in enumerate(zip(actual, lengths, strict=True))]
    assert [float(slope[forest.path_of(r)[0]]) for r in range(18)] == pytest.approx(expected)


def test_only_good_samples_come_in_and_only_so_many() -> None:
    everyone = lambda s: 1  # noqa: E731  no advantage in a group of equals
    forest, session = grown(HotColdReplay(2), 0.3, everyone)
    assert set(forest.origin) == {"policy"} and session.budget.discarded == 4 and bool(forest.path_trainable.all())
    one, _ = grown(HotColdReplay(2, max_rows=1), 0.3, half)
    assert one.origin.count("tempered") == 1
    strict, _ = grown(HotColdReplay(2, min_advantage=0.8), 0.3, half)  # (1 - .5) / std .7071 = .7071
    assert strict.origin.count("tempered") == 0
    unscored = lambda s: UNSCORED if s.attempt == 2 else int(s.attempt == 1)  # noqa: E731
    none, _ = grown(HotColdReplay(2), 0.3, unscored)
    assert none.origin.count("tempered") == 0
    most, session = grown(HotColdReplay(2, share=1.0), 0.3, half, "ab")
    assert most.origin == ["tempered"] * 2 + ["policy"] * 4 and len(session.asked[1][1]) == 4


def test_the_entropy_is_measured_on_the_policys_own_samples() -> None:
    part = HotColdReplay(2)
    first = train(part, "abcd", Heated(half, step=1))
    assert set(first.origin) == {"policy"}  # nothing is known in the first step
    known_entropy = part.state_dict()["entropy"]
    assert known_entropy == pytest.approx(-float(first.path_behaviour_logprob.mean()))
    doubled = first.replace(behaviour_logprob=2 * first.behaviour_logprob, origin=["policy"] * 4 + ["tempered"] * 4)
    part.observe(doubled)
    own_behaviour_logprob = doubled.path_behaviour_logprob[doubled.entries_of(torch.arange(4))]
    assert part.state_dict()["entropy"] == pytest.approx(-float(own_behaviour_logprob.mean()))
    part.observe(first.replace(origin=["replay"] * 8))
    assert part.state_dict()["entropy"] == pytest.approx(-float(own_behaviour_logprob.mean()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_resumed_run_goes_on_exactly(tmp_path) -> None:
    rows = check_resumed("aepo", tmp_path, '"entropy"', **{"rollout.share": 1.0, "rollout.target": 9.0})
    assert "origin_tempered" not in rows[0] and any(row.get("origin_tempered", 0) > 0 for row in rows[1:])


def test_what_is_wrong_is_said() -> None:
    for bad in (
        {"group_size": 1},
        {"share": 0.0},
        {"max_rows": 0},
        {"target": 0.0},
        {"low_temperature": 2.0},
        {"high_temperature": math.inf},
    ):
        with pytest.raises(ConfigError, match="rollout"):
            HotColdReplay(**bad)
    with pytest.raises(CheckpointError, match="entropy"):
        HotColdReplay().load_state_dict({"groups": 1.0})
