"""Episodes that leave others: they stand where the other stood, whether a snapshot or a replay took them there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tests.sampling.rollouts.test_episodes import FULL, SUMMARY, WINDOW, session

from gxpo.base.errors import GxpoError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EnvFailure, Reply, Sampling, StreamKey, Task, TimeStep
from gxpo.sampling.rollouts.episodes import Play
from gxpo.training.models import tiny_model

HERE = Path(__file__)
STEPS = f"{HERE.with_name('countdown_env.py')}:Steps"
TASKS = [Task("w/3", "", info={"seed": 3}), Task("w/4", "", info={"seed": 4})]


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def world():
    with EnvPool(source("keydoor", {"style": "bare", "size": 4, "max_turns": 6}), workers=0) as pool:
        yield pool


class Replayed:
    """The same world without snapshots."""

    def __init__(self, pool: EnvPool) -> None:
        self.pool, self.provides = pool, tuple(p for p in pool.provides if p != "snapshots")

    def __getattr__(self, name: str):
        return getattr(self.pool, name)


def plain(forest: Forest) -> str:
    return json.dumps(list(forest.to_records()), default=str)


def at(s, attempt, *path):
    return StreamKey(s.seed, s.step, "w/3", attempt, path)


def grown(model, envs, rules):
    """Two attempts; one that leaves the first before its third turn, one that leaves that one before its last."""
    s = session(model, envs, rules=rules, sampling=Sampling(max_new_tokens=2))
    with Play(s, restorable=True) as play:
        first, second = play.start(TASKS[:1], ["w/3"], 2)
        play.finish([first, second])
        (fork,) = play.fork([(first, 2, at(s, 0, 0), "w/3/0.0")])
        play.finish([fork])
        last = len(fork.turns) - 1
        (further, again) = play.fork([(fork, last, at(s, 0, 0, 0), "w/3/0.0.0"), (first, 0, at(s, 0, 1), "w/3/0.1")])
        play.finish([further, again])
        return s, play, play.forest()


@pytest.mark.parametrize("rules", [FULL, WINDOW, SUMMARY], ids=["full", "window", "summary"])
def test_snapshot_and_replay_lead_to_one_place(model, world, rules):
    _, _, a = grown(model, world, rules)
    _, _, b = grown(model, Replayed(world), rules)
    assert plain(a) == plain(b)
    assert a.id == [f"s1/w/3/{x}" for x in ("0", "1", "0.0", "0.0.0", "0.1")]


@pytest.mark.parametrize("rules", [FULL, WINDOW], ids=["full", "window"])
def test_what_a_fork_sampled_is_what_the_learner_scores(model, world, rules):
    _, _, forest = grown(model, world, rules)
    actual = TorchLearner(model, lr=1e-3).outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)


def test_inherited_turns_are_stored_once_and_belong_to_both(model, world):
    s, play, forest = grown(model, world, FULL)
    first, _, fork, further, again = play.episodes
    of = [forest.path_token[forest.path_of(r)].tolist() for r in range(5)]
    shared = sum(len(t["action"]) for t in first.turns[:2])
    assert of[0][:shared] == of[2][:shared] and not set(of[0][shared:]) & set(of[2][shared:])
    assert (
        of[3][: len(of[3]) - len(further.turns[-1]["action"])] == of[2][: len(of[3]) - len(further.turns[-1]["action"])]
    )
    assert not set(of[4]) & set(of[0])
    sampled = sum(len(t["action"]) for e in play.episodes for t in e.turns[e.n_inherited :])
    assert s.budget.generated_tokens == sampled == len({t for own_value in of for t in own_value})
    assert s.budget.rollouts == 5
    assert (fork.n_inherited, further.n_inherited, again.n_inherited) == (2, len(fork.turns) - 1, 0)


def test_a_fork_goes_its_own_way_and_the_base_is_untouched(model, world):
    s = session(model, world, sampling=Sampling(max_new_tokens=2))
    with Play(s, restorable=True) as play:
        (single_value,) = play.start(TASKS[:1], ["w/3"], 1)
        play.finish([single_value])
    expected = [t["action"] for t in single_value.turns]
    s = session(model, world, sampling=Sampling(max_new_tokens=2))
    with Play(s, restorable=True) as play:
        (base,) = play.start(TASKS[:1], ["w/3"], 1)
        play.turn(play.active([base]))
        (adjacent_value,) = play.fork(
            [(base, 1, at(s, 0, 0), "w/3/0.0")]
        )  # before the turn that the base has not taken yet
        play.finish([adjacent_value, base])
        forest = play.forest()
    assert [t["action"] for t in base.turns] == expected
    assert adjacent_value.turns[0] is base.turns[0] and forest.n_trajectories == 2
    flat = Forest.from_records([dict(r) for r in forest.to_records()])
    assert plain(flat) == plain(forest)


def test_a_world_that_goes_elsewhere_is_refused(model, world):
    class Other(Replayed):
        def reset(self, seeds):
            return {n: dataclasses.replace(t, state="elsewhere") for n, t in self.pool.reset(seeds).items()}

    s = session(model, world, sampling=Sampling(max_new_tokens=2))
    with Play(s, restorable=True) as play:
        (base,) = play.start(TASKS[:1], ["w/3"], 1)
        play.finish([base])
        play.envs, play._can_snapshot = Other(world), False
        with pytest.raises(GxpoError, match=r"keydoor can't be restarted: the same start \(w/3\) and 0 actions"):
            play.fork([(base, 0, at(s, 0, 0), "w/3/0.0")])


def test_a_broken_restart_costs_the_fork_alone(model, world):
    class Broken(Replayed):
        provides = ()

        def restore(self, snapshots):
            return dict.fromkeys(snapshots, EnvFailure("raised", "no way back"))

    s = session(model, world, sampling=Sampling(max_new_tokens=2))
    with Play(s, restorable=True) as play:
        (base,) = play.start(TASKS[:1], ["w/3"], 1)
        play.finish([base])
        play.envs = Broken(world)
        (fork,) = play.fork([(base, 1, at(s, 0, 0), "w/3/0.0")])
        assert play.active([fork]) == [] and fork.failure == "no way back"
        scored = s.score(play.forest()) if s.know(TASKS) is None else None
    assert scored is not None and scored.scored.tolist() == [True, False]


def test_forks_need_a_play_that_keeps_places(model, world):
    s = session(model, world, sampling=Sampling(max_new_tokens=2))
    with Play(s) as play:
        (base,) = play.start(TASKS[:1], ["w/3"], 1)
        with pytest.raises(GxpoError, match="restorable=True"):
            play.fork([(base, 0, at(s, 0, 0), "x")])


def test_shared_envs_pass_all_answers_on(world):
    from gxpo.training.resources import SharedEnvs

    shared = SharedEnvs(world)
    started = shared.reset({"a": 3})
    assert isinstance(started["a"], TimeStep)
    texts = shared.snapshot(["a"])
    assert shared.restore({"b": texts["a"]}) == {"b": None}
    assert list(shared.expert(["a"]).values()) == list(shared.expert(["b"]).values())
    assert list(shared.legal(["a"]).values()) == list(shared.legal(["b"]).values())
    move = Reply(str(shared.expert(["a"])["a"]))
    assert shared.step({"b": move})["b"] == shared.step({"a": move})["a"]
    shared.finish(["a", "b"])
