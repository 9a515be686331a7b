"""Hints, drafts, cuts, references, baselines, replay and group sizes in environments."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.acting_session import acting, seeded, turns_of
from tests.sampling.rollouts.branching_session import pool
from tests.sampling.rollouts.resumed import lines
from tests.sampling.rollouts.retry_parts import (
    BestDraft,
    GrowingHint,
    LeastHint,
    OversampleForVote,
    ReferenceOnFailure,
    RetryUntilSolved,
)

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import EpisodeRules, Sampling
from gxpo.sampling.rollouts.adaptive_group_size import AdaptiveGroupSize
from gxpo.sampling.rollouts.baseline import BaselineRollouts
from gxpo.sampling.rollouts.cut_and_regenerate import CutAndRegenerate
from gxpo.sampling.rollouts.partial import PartialRollouts
from gxpo.sampling.rollouts.reference import ReferenceInGroup, solutions_of
from gxpo.sampling.rollouts.temperature import HotColdReplay

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # count down; anything else is malformed


@pytest.fixture
def world() -> Iterator[EnvPool]:
    """Two letters solve seed 0, three seed 1, within three turns."""
    with pool(start=2, good=LETTERS, max_turns=3) as envs:
        yield envs


@pytest.fixture
def asked() -> Iterator[EnvPool]:
    """Three turns, of which the expert says "?go" in each."""
    actual = source(f"{Path(__file__).with_name('expert_env.py')}:Asked", {})
    assert actual is not None
    with EnvPool(actual, workers=0) as envs:
        yield envs


def said(forest: Forest, r: int) -> list[str]:
    return [t["said"] for t in turns_of(forest, r)]


# ---------------------------------------------------------------- hints
@pytest.mark.parametrize(("part", "ids"), [(LeastHint, ["hint2/0", "1"]), (GrowingHint, ["hint2/0", "hint2/1"])])
def test_a_hint_is_read_in_every_turn_and_not_trained_under(world: EnvPool, part: Any, ids: list[str]) -> None:
    session = acting(world, lambda text, key: "a" if "go on" in text else "!", step=60)
    (task,) = seeded(session, 0)
    task.info["hints"] = ["wait", "go on"]  # type: ignore[index]
    forest = part(2, template="{prompt} ({hint})").grow([task], session)
    assert forest.id == [f"s60/steps/0/{name}" for name in ids]
    plain, under = turns_of(forest, 0), turns_of(forest.in_context("sampled"), 0)
    assert [t["said"] for t in plain] == ["a", "a"] and forest.success[0] == 1
    assert [t["context"] for t in plain] == ["count\n\n2 left\n>", "count\n\n2 left\n>a1 left\n>"]
    assert [t["context"] for t in under] == ["count\n\n2 left\n> (go on)", "count\n\n2 left\n> (go on)a1 left\n>"]
    assert forest.origin[0] == "hint" and forest.info[0]["hint"] == 2 and forest.info[0]["end"] == "done"


def test_a_hint_stays_where_the_context_is_built_anew(world: EnvPool) -> None:
    rules = EpisodeRules(3, "window", 1)
    session = acting(world, lambda text, key: "a" if "HELP" in text else "!", rules=rules)
    tasks = seeded(session, 1)
    tasks[0].info["hints"] = ["HELP"]  # type: ignore[index]
    forest = GrowingHint(1, template="{prompt} {hint}").grow(tasks, session)
    under = [t["context"] for t in turns_of(forest.in_context("sampled"), 0)]
    assert said(forest, 0) == ["a", "a", "a"] and all(text.count("HELP") == 1 for text in under)
    assert under[2] == "count\n\n2 left\n> HELP\na\n1 left\n>"


def test_the_solution_is_the_experts_way_a_line_for_each_action(asked: EnvPool) -> None:
    messages: list[str] = []
    session = acting(asked, lambda text, key: messages.append(text) or "no")
    session.score = lambda forest, texts=None: forest.with_rewards(  # type: ignore[method-assign]  # all are wrong
        torch.zeros(forest.n_trajectories), success=torch.zeros(forest.n_trajectories)
    )
    part = GrowingHint(1, fractions=[0.4, 1.0], template="{prompt}{hint}")
    forest = part.grow(seeded(session, 0), session)
    hinted = [text for text in dict.fromkeys(messages) if "?go" in text and "no" not in text]
    assert hinted == ["ask\n\nturn 0\n?go", "ask\n\nturn 0\n?go\n?go\n?go"]
    assert forest.info[0]["hint"] == 2 and session.budget.discarded == 2


# ---------------------------------------------------------------- drafts and cuts
def test_the_best_episode_is_shown_with_what_came_of_each_action(world: EnvPool) -> None:
    session = acting(world, lambda text, key: "!" if key.path == (0,) and key.attempt == 0 else "b")
    forest = BestDraft(2, n_drafts=2, template="{prompt}\n<{draft}>").grow(seeded(session, 0), session)
    output = "count\n\n2 left\n>\n<b\n1 left\n>\nb\n0 left\n>>"
    assert turns_of(forest, 0)[0]["context"] == output
    assert forest.id == ["s1/steps/0/0", "s1/steps/0/1"] and forest.info[0]["draft_outcome"] == 1.0
    assert session.budget.discarded == 2


def test_an_episode_is_cut_at_the_turn_that_the_refiner_names(world: EnvPool) -> None:
    def say(text: str, key: Any) -> str:
        if text.endswith("Which?"):
            return "2"
        return "c" if key.path or not text.endswith("1 left\n>") else "!"

    session = acting(world, say)
    part = CutAndRegenerate(1, template="{prompt}\n{steps}\nWhich?", refiner_tokens=4)
    forest = part.grow(seeded(session, 0), session)
    turns = turns_of(forest, 0)
    assert [(t["agent"], t["said"]) for t in turns] == [("agent", "c"), ("agent", "c"), ("refiner", "2")]
    assert turns[2]["context"] == ("count\n\n2 left\n>\n1. c\n1 left\n>\n2. !\n1 left\n>\n3. !\n1 left\n>\nWhich?")
    assert forest.info[0]["cuts"] == [1] and forest.origin == ["correction"] and forest.id == ["s1/steps/0/0"]
    assert forest.outcome.tolist() == [1.0] and session.budget.discarded == 1
    assert Forest.from_records(forest.to_records()).to_records() == forest.to_records()


def test_the_least_probable_turn_is_cut(world: EnvPool) -> None:
    session = acting(world, lambda text, key: "c" if key.path else "!!!!" if text.endswith("2 left\n>") else "!")
    forest = CutAndRegenerate(1, cut_at="low_probability").grow(seeded(session, 0), session)
    # every turn says "!!!!" in front of two steps left: their means are equal, and the first is cut
    assert forest.info[0]["cuts"] == [0] and said(forest, 0) == ["c", "c"]


# ---------------------------------------------------------------- references
def test_where_all_fail_the_experts_episode_comes_in(asked: EnvPool) -> None:
    session = acting(asked, lambda text, key: "no", step=3)
    forest = ReferenceInGroup(3, references=1, statistics="policy").grow(seeded(session, 0), session)
    assert [said(forest, r) for r in range(3)] == [["no"] * 3, ["no"] * 3, ["?go"] * 3]
    assert forest.origin == ["policy", "policy", "demonstration"] and forest.compared.tolist() == [True, True, False]
    behaviour = forest.path_behaviour_logprob[forest.path_of(2)]
    assert bool(behaviour.isnan().all()) and bool(forest.path_trainable[forest.path_of(2)].all())
    assert session.budget.rollouts == 2  # the expert's are not sampled


def test_a_group_of_references_alone_samples_nothing(asked: EnvPool) -> None:
    session = acting(asked, lambda text, key: "no", step=3)
    forest = ReferenceInGroup(1, references=1).grow(seeded(session, 0), session)
    assert forest.origin == ["demonstration"] and said(forest, 0) == ["?go"] * 3
    assert session.budget.rollouts == 0


def test_what_an_expert_can_not_do_is_refused_or_left_out(asked: EnvPool) -> None:
    session = acting(asked, lambda text, key: "no", sampling=Sampling(max_new_tokens=3))
    with pytest.warns(UserWarning, match="it has 4 tokens"):
        forest = ReferenceInGroup(2).grow(seeded(session, 0), session)
    assert forest.scored.tolist() == [True, False]
    session = acting(asked, lambda text, key: "no", rules=EpisodeRules(3, "summary", 1))
    with pytest.raises(ConfigError, match="an expert writes no summaries"):
        solutions_of(seeded(session, 0), session)


def test_the_expert_takes_the_place_of_the_last_failure(asked: EnvPool) -> None:
    session = acting(asked, lambda text, key: "no", step=3)
    judged = type(session).score

    def score(forest: Forest, texts: Any = None) -> Forest:
        verdict = torch.tensor([float(o == "demonstration") for o in forest.origin], dtype=torch.float64)
        return judged(session, forest).with_rewards(verdict, success=verdict)

    session.score = score  # type: ignore[method-assign]
    forest = ReferenceOnFailure(2).grow(seeded(session, 0), session)
    assert forest.id == ["s3/steps/0/0", "s3/steps/0/reference"] and forest.outcome.tolist() == [0.0, 1.0]
    assert session.budget.discarded == 1


# ---------------------------------------------------------------- baselines, sizes, votes, stages, temperatures
def test_a_greedy_episode_stands_beside_the_group(world: EnvPool) -> None:
    session: Any = acting(world, lambda text, key: "d" if key.attempt == 2 else "!")
    forest = BaselineRollouts(2, temperature=0.0).grow(seeded(session, 0, 1), session)
    assert forest.id[:3] == ["s1/steps/0/0", "s1/steps/0/1", "s1/steps/0/baseline/0"]
    assert said(forest, 2) == ["d", "d"] and forest.origin == ["policy", "policy", "baseline"] * 2
    assert forest.compared.tolist() == [True, True, False] * 2 and forest.weight.tolist() == [1, 1, 0] * 2
    assert not forest.path_trainable[forest.path_of(2)].any() and forest.path_trainable[forest.path_of(0)].all()
    heats = {
        (how.temperature, key.attempt) for requests, how in session.engine.calls for r in requests for key in r.streams
    }
    assert heats == {(1.0, 0), (1.0, 1), (0.0, 2)}
    scored = session.score(forest)
    assert scored.outcome[2] == 1 and scored.outcome[0] == 0


def test_group_sizes_follow_what_is_predicted(world: EnvPool) -> None:
    part = AdaptiveGroupSize(3, min_attempts=2, max_attempts=4)
    part.memory.rows.update({"steps/0": [4.0, 4.0], "steps/1": [2.0, 4.0]})
    forest = part.grow(seeded(acting(world, lambda text, key: "d"), 0, 1), acting(world, lambda text, key: "d"))
    assert Counter(forest.task) == {"steps/0": 2, "steps/1": 4}
    assert forest.info[0]["predicted"] > forest.info[2]["predicted"] and forest.info[0]["end"] == "done"


def test_more_episodes_vote_than_are_trained(world: EnvPool) -> None:
    session = acting(world, lambda text, key: "d" if key.attempt else "!")
    forest = OversampleForVote(2, 4).grow(seeded(session, 0), session)
    assert forest.success.tolist() == [0.0, 1.0] and session.budget.discarded == 2


def test_a_solved_world_is_left_after_its_stage(world: EnvPool) -> None:
    session = acting(world, lambda text, key: "d" if "steps/0" in key.task else "!")
    forest = RetryUntilSolved(4, stage_size=2).grow(seeded(session, 0, 1), session)
    assert Counter(forest.group) == {"s1/steps/0": 2, "s1/steps/1": 4}


def test_hot_episodes_take_the_place_of_the_first(world: EnvPool) -> None:
    part = HotColdReplay(2, share=1.0, high_temperature=1.5)
    part.load_state_dict({"entropy": 0.1})
    session = acting(world, lambda text, key: "d" if key.attempt == 3 else "!")
    forest = part.grow(seeded(session, 0), session)
    assert forest.origin == ["tempered", "policy", "policy"] and forest.id[0] == "s1/steps/0/tempered/1"
    assert said(forest, 0) == ["d", "d"] and forest.sampling[0]["temperature"] == 1.0
    assert forest.weight.tolist() == [1.0, 0.0, 1.0]


# ---------------------------------------------------------------- partial rollouts
def test_episodes_go_on_where_they_were_in_a_later_step(world: EnvPool) -> None:
    part = PartialRollouts(1, windows=2)  # two of three turns a step

    def step(number: int, *seeds: int) -> Forest:
        session = acting(world, lambda text, key: f"{LETTERS[session.step]}", step=number)
        forest = session.score(part.grow(seeded(session, *seeds), session))
        again = PartialRollouts(1, windows=2)
        again.load_state_dict(json.loads(json.dumps(part.state_dict())))
        assert again.memory == part.memory
        return forest

    first = step(1, 0, 1)  # seed 1 takes three letters
    assert first.outcome.tolist() == [1.0, 0.0] and first.truncated.tolist() == [False, True]
    assert first.success.isnan().tolist() == [False, True] and len(part.memory) == 1
    second = step(2, 0)
    assert second.id == ["s1/steps/1/0", "s2/steps/0/0"] and second.outcome.tolist() == [1.0, 1.0]
    assert said(second, 0) == ["b", "b", "c"] and turns_of(second, 0)[2]["context"].endswith("b2 left\n>b1 left\n>")
    assert not part.memory and second.truncated.tolist() == [False, False]


# ---------------------------------------------------------------- whole runs
FILE = Path(__file__).with_name("lenient_worlds.py")
WORLDS: dict[str, dict[str, Any]] = {
    "LenientLake": {"tasks.options": {"style": "bare", "size": 3, "pool": 2}, "env.max_turns": 3},
    "LenientShop": {"tasks.options": {"pool": 2}, "env.max_turns": 3},
}
METHODS: dict[str, tuple[dict[str, Any], set[str]]] = {  # keys, and the origins that a run of two steps must have seen
    "scaf_grpo": ({"rollout.warmup_steps": 0, "rollout.group_size": 1}, {"hint"}),
    "igrpo": ({"rollout.n_drafts": 2}, {"policy"}),
    "search_r2": ({"rollout.cut_at": "uniform"}, {"correction"}),
    "repo_replay": ({"rollout.min_stored": 1, "rollout.replays": 2}, {"policy", "replay"}),
    "remax": ({"rollout.group_size": 2}, {"policy", "baseline"}),
    "dapo": ({"tasks.per_step": 1}, {"policy"}),
}


# the others' memories are resumed by tests of their own
TRIED = (("scaf_grpo", "LenientShop"), ("search_r2", "LenientLake"), ("igrpo", "LenientLake"), ("remax", "LenientLake"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("method", "world"),
    [pytest.param(m, w, marks=[pytest.mark.thorough] * ((m, w) not in TRIED)) for m in METHODS for w in WORLDS],
)
def test_second_step_in_a_world_is_identical_after_a_kill(method: str, world: str, tmp_path: Path) -> None:
    keys, origins = METHODS[method]
    settings = {
        "tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 5, "eval.tasks": 1, "eval.every": 0,
        "trainer.checkpoint_every": 1, "trainer.keep_checkpoints": 9, "trainer.rollouts_every": 1,
        **WORLDS[world], **keys,
    }  # fmt: skip
    full_path, cut = tmp_path / "whole", tmp_path / "cut"
    gxpo.train("tiny:cold", f"{FILE}:{world}", method, 2, out=full_path, set=settings)
    shutil.copytree(full_path, cut)
    shutil.rmtree(next((cut / "checkpoints").glob("step-*2")))
    gxpo.resume(cut)
    assert lines(cut) == lines(full_path) and len(lines(full_path)) == 2
    saved_values = [
        [(run / "rollouts" / f"step-00000{n}.jsonl").read_text() for n in (1, 2)] for run in (full_path, cut)
    ]
    assert saved_values[0] == saved_values[1]
    actual = {json.loads(line).get("origin", "policy") for text in saved_values[0] for line in text.splitlines()}
    assert origins <= actual
