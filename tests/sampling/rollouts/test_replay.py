"""Groups of earlier steps that come back: the last step's, and rollouts drawn by their advantage."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.replay_session import UNSCORED, StepSession, tasks, train
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Sampling, StreamKey
from gxpo.sampling.rollouts.replay import GroupReplay, draw_by_weight
from gxpo.sampling.rollouts.rounds import Independent

LastStepAgain = partial(GroupReplay, choice="all", max_groups=0)
ReplayByAdvantage = GroupReplay


def fading(stream: StreamKey) -> int:
    """Task "m" has one success of four; everything else fails."""
    return int(stream.task == "m" and stream.attempt == 0)


def replayed(forest: Forest) -> Forest:
    return forest.select(torch.tensor([o == "replay" for o in forest.origin]))


# ---------------------------------------------------------------- the last step
def test_the_groups_of_the_last_step_come_back_as_they_were() -> None:
    part = LastStepAgain(3)
    script = lambda s: (1, 0, UNSCORED)[(s.attempt + s.step) % 3]  # noqa: E731
    first = train(part, ["a", "b"], StepSession(script, step=1))
    assert set(first.origin) == {"policy"}
    second = train(part, ["c", "a"], StepSession(script, step=2))
    old = replayed(second)
    assert second.group == ["s2/c"] * 3 + ["s2/a"] * 3 + ["s1/a/again"] * 2 + ["s1/b/again"] * 2
    rows = [r for r in range(6) if bool(first.scored[r])]  # what could not be scored is not kept
    assert len(rows) == 4 and old.task == ["a", "a", "b", "b"]
    for r, was in enumerate(rows):
        assert old.action(r) == first.action(was) and old.info[r] == {"sampled_as": first.id[was]}
        assert float(old.outcome[r]) == float(first.outcome[was]) and float(old.success[r]) == float(first.success[was])
        assert torch.equal(old.path_behaviour_logprob[old.path_of(r)], first.path_behaviour_logprob[first.path_of(was)])
        assert int(old.policy_version[old.last_action[r]]) == 1 and old.context(int(old.prompt_node[r])) == list(
            first.task[was].encode()
        )
    assert bool(old.path_trainable.all()) and bool(old.compared.all()) and old.weight.tolist() == [1.0] * 4
    third = train(part, ["b"], StepSession(script, step=3))  # step 2's, and nothing of step 1
    assert Counter(third.group) == {"s3/b": 3, "s2/c/again": 2, "s2/a/again": 2}
    session = StepSession(script, step=2)
    plain = session.score(Independent(3).grow(tasks("c", "a"), session))
    assert second.select(range(6)).to_records() == plain.to_records()


def test_buffer_leaves_out_filtered_rollouts_and_shaped_rewards() -> None:
    part = LastStepAgain(3)
    forest = part.grow(tasks("a"), StepSession(fading, step=1))
    subset = forest.select([0, 2])
    part.observe(subset.with_rewards(subset.outcome - 0.5))
    assert [r["id"] for r in part.buffer.records_by_key["s1/a"]] == ["s1/a/0", "s1/a/2"]
    assert [r["reward"] for r in part.buffer.records_by_key["s1/a"]] == [0, 0]
    part.observe(forest)  # nothing is held any more
    assert len(part.buffer.records_by_key["s1/a"]) == 2


# ---------------------------------------------------------------- drawn by weight
def test_the_first_draw_has_the_cards_probabilities() -> None:
    # |A| = 2, 1, 0, 1: .5, .25, 0, .25; 4000 draws: three standard deviations are .024 and .021
    actual = Counter(draw_by_weight([2.0, 1.0, 0.0, 1.0], 1, ("seed", n))[0] for n in range(4000))
    assert actual[2] == 0
    assert [actual[i] / 4000 for i in (0, 1, 3)] == pytest.approx([0.5, 0.25, 0.25], abs=0.024)


def test_pairs_are_drawn_one_after_the_other() -> None:
    """Without replacement: P{0, 1} = .5 * .5 + .25 * (.5 / .75) = .416667; {1, 3} = 2 * .25 * (.25 / .75) = .166667."""
    actual = Counter(tuple(draw_by_weight([2.0, 1.0, 0.0, 1.0], 2, (n,))) for n in range(4000))
    shares = {pair: count / 4000 for pair, count in actual.items()}
    assert shares == pytest.approx({(0, 1): 0.416667, (0, 3): 0.416667, (1, 3): 0.166667}, abs=0.025)


def test_weighted_draw_depends_on_its_key_and_the_stock_alone() -> None:
    weights = [0.1 * i for i in range(20)]
    assert draw_by_weight(weights, 5, (1, "a")) == draw_by_weight(weights, 5, (1, "a"))
    assert draw_by_weight(weights, 5, (1, "a")) != draw_by_weight(weights, 5, (1, "b"))
    assert draw_by_weight([0.0, 1.0], 5, ()) == [1] and draw_by_weight([], 3, ()) == [] == draw_by_weight([1.0], 0, ())


# ---------------------------------------------------------------- what is drawn comes back
def test_idle_rollouts_are_replaced_at_their_stored_advantage() -> None:
    part = ReplayByAdvantage(4, replay_ratio=0.25)
    first = train(part, ["m", "a"], StepSession(fading, step=1))  # nothing is stored yet
    assert set(first.origin) == {"policy"} and list(part.buffer.records_by_key) == ["s1/m"]  # group a teaches nothing
    forest = part.grow(tasks("b", "c", "m"), StepSession(fading, step=2))  # 8 idle rollouts: 2 are drawn
    old = replayed(forest)
    assert forest.group == ["s2/b"] * 4 + ["s2/c"] * 4 + ["s2/m"] * 4 + ["s1/m/again"] * 4
    assert sorted(old.weight.tolist()) == [0, 0, 1, 1] and bool(old.compared.all())
    assert [n > 0 for n in old.lengths().tolist()] == [w > 0 for w in old.weight.tolist()]
    for name in ("grpo", "dr_grpo", "rloo"):
        m = gxpo.method(name)
        then, now = m.advantages(first), m.advantages(forest)
        for r in range(4):
            assert now[forest.path_of(12 + r)].tolist() == then[first.path_of(r)].tolist()


def test_its_companions_are_in_no_denominator() -> None:
    part = ReplayByAdvantage(4, replay_ratio=0.25)
    train(part, ["m"], StepSession(fading, step=1))
    forest = part.grow(tasks("a"), StepSession(fading, step=2))
    m = gxpo.method("r1v2_ssb")
    (row,) = (forest.weight * torch.tensor([o == "replay" for o in forest.origin])).nonzero().squeeze(1).tolist()
    behaviour, credit = forest.path_behaviour_logprob, m.advantages(forest)
    logprob = (behaviour + 0.05).requires_grad_()
    value = m.loss(forest, gxpo.PolicyTokens(logprob, behaviour), advantages=credit).value
    (gradient,) = torch.autograd.grad(value, logprob)
    entries = forest.path_of(row)
    # five rows count: four fresh ones without credit, and this one
    expected = -credit[entries] * torch.tensor(0.05).double().exp() / len(entries) / 5
    assert gradient[entries].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    gradient[entries] = 0
    assert not bool(gradient.any())


def test_a_batch_that_teaches_everywhere_draws_nothing() -> None:
    part = ReplayByAdvantage(4)
    for step in (1, 2):
        assert set(train(part, ["m", "m"], StepSession(lambda s: int(s.attempt == 0), step=step)).origin) == {"policy"}
    assert len(part.buffer.records_by_key) == 4


def test_newest_groups_are_kept_without_unscored_rollouts() -> None:
    part = ReplayByAdvantage(4, max_groups=2)
    for step in (1, 2, 3):
        script = lambda s: (1, 0, UNSCORED, UNSCORED)[s.attempt]  # noqa: E731
        forest = train(part, ["m"], StepSession(script, step=step))
        assert set(forest.origin) == {"policy"}
    assert {name: len(rows) for name, rows in part.buffer.records_by_key.items()} == {"s2/m": 2, "s3/m": 2}


def test_supports_come_back() -> None:
    sampling = Sampling(top_k=5, max_new_tokens=3)
    part = ReplayByAdvantage(4)
    train(part, ["m"], StepSession(fading, step=1, sampling=sampling))
    forest = part.grow(tasks("a"), StepSession(fading, step=2, sampling=sampling))
    assert forest.origin.count("replay") == 4 and forest.extras["support"].dtype == torch.int64


@pytest.mark.parametrize("make", [lambda: LastStepAgain(4), lambda: ReplayByAdvantage(4, replay_ratio=0.5)])
def test_read_back_it_goes_on_and_parts_share_no_memory(make: Any) -> None:
    part, other = make(), make()
    for step in (1, 2):
        train(part, ["m", "a"], StepSession(fading, step=step))
    assert part == other and not other.buffer.records_by_key and "buffer" not in repr(part)
    other.load_state_dict(json.loads(json.dumps(part.state_dict(), allow_nan=False)))
    for step in (3, 4):
        one, two = (train(p, ["b", "m", "c"], StepSession(fading, step=step)) for p in (part, other))
        assert one.to_records() == two.to_records() and "replay" in one.origin
    assert part.state_dict() == other.state_dict()
    with pytest.raises(CheckpointError, match="stored rollouts"):
        other.load_state_dict({"stored": []})


@pytest.mark.parametrize(
    "wrong", [{"group_size": 1}, {"max_groups": -1}, {"replay_ratio": 0.0}, {"replay_ratio": float("inf")}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(wrong))}"):
        ReplayByAdvantage(**wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("r1v2_ssb", {"rollout.max_groups": 3, "rollout.group_size": 2}),  # half of the groups of two teach nothing
        ("pipo", {"signal.improvement.window": 2}),
    ],
)
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(method: str, keys: dict, tmp_path: Path) -> None:
    rows = check_resumed(method, tmp_path, '"groups"', **keys)
    came_back = [row for row in rows if row.get("origin_replay")]
    assert came_back and all(row["staleness_max"] >= 1 for row in came_back)
    if method == "pipo":  # two means that differ are needed, and one that is not midway
        means = [row["reward_mean"] for row in rows]
        again = [
            a != b and 2 * now != pytest.approx(a + b) for a, b, now in zip(means, means[1:], means[2:], strict=False)
        ]
        assert [row["optimiser_steps"] for row in rows] == [1, 1, *(1 + moved for moved in again)] and any(again)
