"""Episodes of several agents as trajectories: groups, opponents, conflicts, order, and what is refused."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.thorough import ALL

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.forest.records import load
from gxpo.sampling.rollouts.answer_tree import Answers, uct_bound
from gxpo.sampling.rollouts.opponents import Opponents, expected_score
from gxpo.sampling.rollouts.partners import Partners, edge_score
from gxpo.sampling.rollouts.proposer import proposer_reward, sum_with_answer
from gxpo.sampling.rollouts.seats import Seats, role_of
from gxpo.training import checkpoint

SMALL = {
    "tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 1,
    "env.context": "window", "trainer.rollouts_every": 1,
}  # fmt: skip
BARE = {"style": "bare"}


def run(tmp_path, method, task, steps=2, **changes):
    options = {"tasks.options": BARE} if task == "tictactoe" else {}
    small = {k: v for k, v in SMALL.items() if task != "arithmetic" or k != "env.context"}
    return gxpo.train(
        "tiny:cold", task, method, steps=steps, out=str(tmp_path / "run"), set={**small, **options, **changes}
    )


def records(tmp_path, step=1):
    return load(tmp_path / f"run/rollouts/step-{step:06d}.jsonl")


@pytest.mark.parametrize("task", [pytest.param(t, marks=[ALL] * (t != "paths")) for t in ("paths", "secrets")])
def test_a_world_of_agents_trains(tmp_path, task):
    ended = run(tmp_path, "grpo", task, 1, **{"rollout": "seats"})
    assert ended.metrics[-1]["trajectories"] >= 4


# ---------------------------------------------------------------- trajectories
def test_both_seats_of_a_game_are_groups_of_their_own(tmp_path):
    run(tmp_path, "grpo", "tictactoe", 1, **{"rollout": "seats"})
    forest = records(tmp_path)
    assert {name.rpartition("/")[2] for name in forest.group} <= {"X", "O"}
    assert {info["seat"] for info in forest.info} <= {"X", "O"} and set(forest.agent_names) <= {"X", "O"}
    by_episode = {}
    for info, outcome in zip(forest.info, forest.outcome.tolist(), strict=True):
        by_episode.setdefault(info["episode"], []).append((info["result"], outcome))
    # an invalid move costs who made it; the other, if it has acted, is paid nothing
    assert all(sorted(rows)[0][1] == -1.0 for rows in by_episode.values())


def test_past_opponents_are_in_the_checkpoint(tmp_path):
    keys = {"rollout": "seats", "rollout.opponents": "past", "rollout.every": 1, "rollout.history": 2}
    ended = run(tmp_path, "grpo", "tictactoe", 4, **keys)
    gxpo.resume(ended.path)  # finds its opponents again
    assert {info["opponent"] for info in records(tmp_path, 4).info} <= {"s0", "s2", "s3"}
    tensors = load_file(str(checkpoint.latest(Path(ended.path)) / "tensors.safetensors"))
    assert {name.split("/")[1] for name in tensors if name.startswith("rollout/")} == {"s0", "s2", "s3"}


@pytest.mark.filterwarnings("ignore:nothing is learned")  # by rewards; the entropy term moves the policy
def test_a_resumed_run_meets_the_same_opponents(tmp_path):
    keys = {"rollout": "seats", "rollout.opponents": "past", "rollout.every": 1, "rollout.opponent_draw": "rating"}
    keys |= {"objective.entropy.coef": 1.0, "optim.lr": 0.01}
    ended = run(tmp_path / "whole", "grpo", "tictactoe", 4, **keys)
    gxpo.resume(run(tmp_path / "cut", "grpo", "tictactoe", 2, **keys).path, steps=4)
    for step in (3, 4):
        whole, cut = (tmp_path / name / f"run/rollouts/step-{step:06d}.jsonl" for name in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes(), step
    tensors = load_file(str(checkpoint.latest(Path(ended.path)) / "tensors.safetensors"))
    first, newest = ([x for n, x in tensors.items() if n.startswith(f"rollout/{s}/")] for s in ("s0", "s3"))
    assert not all(map(torch.equal, first, newest))  # opponents that differ, or else any would do


def test_held_out_games_are_told_apart_by_their_opponent(tmp_path):
    keys = {
        "rollout": "seats",
        "rollout.eval_opponent": ["start", "expert"],
        "eval.samples": 2,
        "eval.temperature": 1.0,
    }
    ended = run(tmp_path, "grpo", "nim", 1, **keys)
    last = ended.evaluations[-1]
    assert last["eval_accuracy"] == (last["eval_win_start"] + last["eval_win_expert"]) / 2


def test_another_checkpoint_plays_a_seat(tmp_path):
    keys = {"rollout": "seats", "rollout.models": {"second": "tiny:nim"}, "tasks.options": BARE}
    run(tmp_path, "grpo", "nim", 1, **keys)
    assert {info["seat"] for info in records(tmp_path).info} == {"first"}
    assert set(records(tmp_path).policy_names) == {"main"}


def test_roles_are_names_without_numbers():
    assert [role_of(x) for x in ("adversary_0", "X", "walker_10", "7")] == ["adversary", "X", "walker", "7"]


# ---------------------------------------------------------------- opponents
def snapshot(x):
    return {"w": torch.tensor([float(x)])}


def test_the_first_and_the_newest_snapshots_stay():
    pool = Opponents(history=2)
    for step in range(0, 50, 10):
        pool.add(step, snapshot(step))
    assert list(pool.ratings) == ["s0", "s30", "s40"] and set(pool.parameters) == set(pool.ratings)


def test_a_snapshot_that_is_not_finite_is_left_out():
    pool = Opponents(history=2)
    pool.add(0, snapshot(math.nan))
    with pytest.raises(GxpoError, match="no opponent yet"):
        pool.choose(random.Random(0))


def test_elo_moves_by_what_was_not_expected():
    # equal ratings expect 0.5: a win moves both by 16 (1 - 0.5) = 8
    pool = Opponents(history=2, draw_by="rating")
    pool.add(0, snapshot(0))
    pool.rate([("s0", 1.0), ("s0", math.nan)])  # a game without a score moves nothing
    assert pool.policy == 8.0 and pool.ratings["s0"] == -8.0
    assert expected_score(400.0, 0.0) == pytest.approx(10 / 11)


def test_stronger_opponents_are_drawn_more_often_by_rating():
    pool = Opponents(history=2, draw_by="rating")
    pool.add(0, snapshot(0))
    pool.add(1, snapshot(1))
    pool.ratings.update(s0=-800.0, s1=0.0)
    drawn = [pool.choose(random.Random(i)) for i in range(400)]
    assert 0 < drawn.count("s0") < 40


def test_a_pool_comes_back_whole_and_a_dead_opponent_is_named():
    pool = Opponents(history=2)
    pool.add(0, snapshot(3))
    other = Opponents(history=2)
    other.load_tensors(pool.tensors())
    other.load_state_dict(pool.state_dict())
    assert other.ratings == pool.ratings and other.parameters["s0"]["w"].tolist() == [3.0]
    dead = Opponents(history=2)
    dead.load_tensors({})
    with pytest.raises(CheckpointError, match="no parameters of opponent 's0'"):
        dead.load_state_dict(pool.state_dict())
    with pytest.raises(GxpoError, match="opponent 's7' has no parameters"), pool.acting("s7", None):
        pass


# ---------------------------------------------------------------- order and partners
def test_a_circle_of_who_sees_whom_is_refused():
    with pytest.raises(ConfigError, match=r"rollout\.observed_roles goes in a circle: a sees b sees a"):
        Seats(observed_roles={"a": ["b"], "b": ["a"]})


def test_the_variance_of_a_partners_payoff_is_its_edge():
    # rows [0, 2] and [1, 1]: variances 1 and 0
    assert edge_score({("a", "x"): 0, ("a", "y"): 2, ("b", "x"): 1, ("b", "y"): 1}) == 1


def test_partners_that_matter_are_kept():
    partners = Partners()
    for own in "ab":
        for other, paid in (("x", 0.0), ("y", 2.0)):
            partners.note("i", "j", (own, other), paid)
            partners.note("i", "k", (own, other), 1.0)
    assert partners.score("i", "j") == 1.0 and partners.of("i", ["j", "k"], 0.5) == ["j"]
    assert partners.of("new", ["j", "k"], 0.5) == ["k"]  # nothing is known: the one before


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"policy": "per_role"}, "name them in rollout.roles"),
        ({"eval_opponent": []}, r"rollout\.eval_opponent names nobody"),
        ({"models": {"X": "tiny"}, "frozen_roles": ["X"]}, r"rollout\.models: 'X' is in rollout\.frozen_roles"),
        ({"policy": "per_role", "roles": ["X", "O"], "opponents": "past"}, "set rollout.policy=shared"),
    ],
)
def test_policies_that_do_not_fit_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        Seats(**keys)


def test_one_agents_rollout_is_refused_in_a_world_of_several(tmp_path):
    with pytest.raises(ConfigError, match="rollout independent plays one: set rollout=seats"):
        run(tmp_path, "grpo", "tictactoe", 1)


# ---------------------------------------------------------------- proposer and trees
def test_a_proposers_reward_is_what_its_solver_misses():
    assert proposer_reward(0.6) == 0.4
    assert [round(proposer_reward(x, "parabola"), 6) for x in (0.6, 0.2, 1.0, 0.0)] == [0.96, 0.64, 0.0, 0.0]


@pytest.mark.parametrize(("text", "question"), [("37+48=", "37+48="), ("90-5", "90-5="), ("85", None), ("1+1", None)])
def test_a_question_has_to_have_the_answer(text, question):
    assert sum_with_answer(text, "85") == question


def test_a_proposer_of_nothing_valid_has_the_penalty_alone(tmp_path):
    run(
        tmp_path,
        "search_self_play",
        "arithmetic",
        1,
        **{"rollout.penalty": -0.5, "rollout.question_format": never(tmp_path)},
    )
    forest = records(tmp_path)
    assert set(forest.outcome.tolist()) == {-0.5} and set(forest.agent_names) == {"proposer"}


def never(tmp_path: Path) -> str:
    (tmp_path / "valid.py").write_text("def never(text, answer):\n    return None\n")
    return f"{tmp_path}/valid.py:never"


def test_upper_confidence_bound_of_a_node():
    assert uct_bound([0.2] * 3, 10, 2.0) == pytest.approx(1.952174, abs=1e-6)


def test_uct_asks_every_policy_before_it_descends():
    tree = Answers(["a", "b"], parent=[-1], policy=["a"], score=[0.0])
    assert tree.uct(1.4) == (-1, "b")
    tree = Answers(["a"], parent=[-1], policy=["a"], score=[1.0])
    assert tree.uct(1.4) == (0, "a")


def test_thompson_goes_where_answers_were_good():
    good = Answers(["a"], [-1, -1, *[0] * 20], ["a"] * 22, [1.0, 0.0, *[1.0] * 20])
    nodes = [good.thompson(random.Random(i))[0] for i in range(200)]
    assert nodes.count(1) < 20 and {-1, 0} < set(nodes)


def test_scores_of_a_tree_are_shaped_by_parents_and_siblings():
    from gxpo.algorithms.credit.values import tree_shaped_scores

    s, parent = torch.tensor([0, 1, 0.5, 0, 1]), torch.tensor([-1, -1, 0, 0, 2])
    shaped = tree_shaped_scores(s, parent, torch.tensor([0, 0, 1, 1, 2]), 0.5, 0.5)
    assert shaped.tolist() == [-0.5, 1.5, 0.75, -0.125, 1.25]
    # (r - mean) / (std + eps), ddof 1, over the whole tree
    z = (shaped - shaped.mean()) / shaped.std()
    assert z.tolist() == pytest.approx([-1.243897, 1.07033, 0.202495, -0.80998, 0.781052], abs=1e-6)
