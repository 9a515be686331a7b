"""Replay: what is stored, what is drawn, in which group it stands, and that a resumed run goes on exactly."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import statistics
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.rollouts.replay_session import (
    ENV,
    RIGHT,
    UNSCORED,
    StepSession,
    right_first,
    tasks,
    train,
    world_session,
    world_tasks,
)

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Sampling
from gxpo.sampling.rollouts.replay import Replay
from gxpo.sampling.rollouts.replay_buffer import Choice, ReplayBuffer, choose

OUTCOMES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, -1.0]), min_size=1, max_size=9)


def replay(**more: object) -> Replay:
    settings: dict = {"group_size": 4, "replays": 4, "choice": "all", "min_stored": 4, "max_stored": 4}
    return Replay(**settings | more)


def scripted(verdicts: dict[int, list[int]]):
    """{step: verdict of each attempt}"""
    return lambda stream: verdicts[stream.step][stream.attempt]


# ---------------------------------------------------------------- the choice
@given(OUTCOMES, st.integers(1, 9))
def test_each_choice_is_what_it_says(outcomes: list[float], k: int) -> None:
    n = len(outcomes)
    for how in get_args(Choice):
        places = choose(outcomes, k, how, (0, 1, "g"))
        assert places == sorted(set(places)) and set(places) <= set(range(n))
        assert len(places) == (n if how == "all" else min(k, n))
    taken = sorted(outcomes[i] for i in choose(outcomes, k, "highest"))
    assert taken == sorted(outcomes)[max(0, n - k) :]
    assert choose(outcomes, k, "recent") == list(range(max(0, n - k), n))


@given(OUTCOMES, st.integers(1, 9))
def test_max_variance_is_the_best_of_all_subsets(outcomes: list[float], k: int) -> None:
    k = min(k, len(outcomes))
    sets = [[outcomes[i] for i in c] for c in itertools.combinations(range(len(outcomes)), k)]
    best = max((statistics.pvariance(s), math.fsum(s)) for s in sets)
    actual = [outcomes[i] for i in choose(outcomes, k, "max_variance")]
    assert (statistics.pvariance(actual), math.fsum(actual)) == best


@given(OUTCOMES, st.integers(1, 9), st.sampled_from(["highest", "max_variance"]))
def test_of_equal_outcomes_the_newer_are_taken(outcomes: list[float], k: int, how) -> None:
    places = choose(outcomes, k, how)
    for left, taken in itertools.product(set(range(len(outcomes))) - set(places), places):
        assert outcomes[left] != outcomes[taken] or left < taken


def test_random_depends_on_its_key_alone_and_is_fair() -> None:
    assert choose([0.0] * 8, 3, "random", (0, 1, "a")) == choose([1.0] * 8, 3, "random", (0, 1, "a"))
    counts = Counter(i for step in range(400) for i in choose([0.0] * 8, 2, "random", (0, step, "a")))
    # 400 draws of 2 of 8: each place is expected 100 times, with a standard deviation of sqrt(400 * 3/16) = 8.7
    assert all(60 < counts[i] < 140 for i in range(8))


# ---------------------------------------------------------------- the card's numbers
def two_steps(statistics: str) -> Forest:
    """Step 1 stores [1, 1, 0, 1]; step 2 samples four failures."""
    part = replay(statistics=statistics)
    script = scripted({1: [1, 1, 0, 1], 2: [0, 0, 0, 0]})
    train(part, ["a"], StepSession(script, step=1))
    return part.grow(tasks("a"), StepSession(script, step=2))


def advantages(forest: Forest, **more: object) -> list[float]:
    m = gxpo.method("repo_replay", {"credit.eps": 1e-4, **more})
    actual = m.advantages(forest)
    return [float(actual[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


def test_split_and_mixed_statistics() -> None:
    # off: mean 3/4, std sqrt(3/16 * 4/3) = 1/2; (1 - 3/4) / 0.5001 = 0.4999, (0 - 3/4) / 0.5001 = -1.4997
    split = two_steps("split")
    assert split.group == ["s2/a"] * 4 + ["s2/a/replay"] * 4
    assert advantages(split) == pytest.approx([0, 0, 0, 0, 0.4999, 0.4999, -1.4997, 0.4999], abs=5e-6)
    # all eight: mean 3/8, std sqrt((3 * 25 + 5 * 9) / 64 / 7) = 0.517549
    mixed = two_steps("mixed")
    assert mixed.group == ["s2/a"] * 8
    assert advantages(mixed) == pytest.approx([-0.724429] * 4 + [1.207381, 1.207381, -0.724429, 1.207381], abs=1e-6)


def test_the_loss_is_one_mean_over_all_rows() -> None:
    """The reference's denominator: fresh and replayed sums are both divided by the number of all rows."""
    part = replay(coef=0.5, max_stored=8)
    script = scripted({1: [1, 1, 0, 1], 2: [1, 0, 0, 0]})
    train(part, ["a"], StepSession(script, step=1))
    forest = part.grow(tasks("a", "b"), StepSession(script, step=2))  # b is new: no replays
    assert forest.n_trajectories == 12
    m = gxpo.method("repo_replay")
    credit = m.advantages(forest)
    behaviour = forest.path_behaviour_logprob
    generator = torch.Generator().manual_seed(1)
    logprob = behaviour + 0.3 * torch.randn(forest.n_entries, generator=generator, dtype=torch.float64)
    elsewhere = behaviour - 5.0  # a proximal policy is there, and is not what the ratio is over
    actual = m.loss(forest, gxpo.PolicyTokens(logprob, behaviour, proximal_logprob=elsewhere), advantages=credit)
    total = 0.0
    for r in range(12):
        losses = []
        for p in forest.path_of(r).tolist():
            a, rho = float(credit[p]), math.exp(float(logprob[p] - behaviour[p]))
            losses.append(max(-a * rho, -a * min(max(rho, 0.8), 1.2)))
        total += (0.5 if forest.origin[r] == "replay" else 1.0) * sum(losses) / len(losses)
    assert float(actual.value) == pytest.approx(total / 12, abs=1e-14)


# ---------------------------------------------------------------- what a replayed row is
def test_a_replayed_row_is_the_row_that_was_sampled() -> None:
    part = replay(choice="recent", replays=2, coef=0.25)
    script = scripted({1: [1, 0, 1, 0], 5: [0, 1, 1, 1]})
    first = train(part, ["a"], StepSession(script, step=1))
    forest = part.grow(tasks("a"), StepSession(script, step=5))
    old = forest.select(torch.tensor([o == "replay" for o in forest.origin]))
    for r, was in ((0, 2), (1, 3)):
        assert old.action(r) == first.action(was)
        entries, before = old.path_of(r), first.path_of(was)
        assert torch.equal(old.path_behaviour_logprob[entries], first.path_behaviour_logprob[before])
        assert int(old.policy_version[old.last_action[r]]) == 1
        assert old.context(int(old.prompt_node[r])) == first.context(int(first.prompt_node[was]))
        assert float(old.outcome[r]) == float(old.success[r]) == float(first.outcome[was])
        assert old.component_names == ("correct",) and torch.equal(old.components[r], first.components[was])
        assert old.step_finish[r] == first.step_finish[was]
        assert bool(old.truncated[r]) == bool(first.truncated[was])
        assert old.info[r] == {"sampled_as": first.id[was]} and old.task[r] == "a"
        assert float(old.weight[r]) == 0.25 and bool(old.compared[r])
    assert len(set(forest.id)) == 6
    assert forest.policy_version[forest.last_action].tolist() == [5] * 4 + [1] * 2


def test_supports_are_replayed_too() -> None:
    sampling = Sampling(top_k=5, max_new_tokens=3)
    part = replay()
    script = scripted({1: [1, 0, 1, 0], 2: [0, 0, 0, 0]})
    first = train(part, ["a"], StepSession(script, step=1, sampling=sampling))
    part.load_state_dict(json.loads(json.dumps(part.state_dict())))
    forest = part.grow(tasks("a"), StepSession(script, step=2, sampling=sampling))
    for r in range(4):
        assert forest.extras["support"].dtype == torch.int64
        mine, theirs = (f.extras["support"][f.path_token[f.path_of(i)]] for f, i in ((forest, r + 4), (first, r)))
        width = theirs.shape[1]
        assert torch.equal(mine[:, :width], theirs) and bool((mine[:, width:] == -1).all())


def test_replay_waits_for_enough_stored_and_stays_within_a_task() -> None:
    part = replay(min_stored=8, max_stored=8)
    session = StepSession(right_first(2), step=1)
    assert set(train(part, ["a", "b"], session).origin) == {"policy"}
    session.step = 2
    assert set(train(part, ["a", "c"], session).origin) == {"policy"}
    session.step = 3
    forest = part.grow(tasks("a", "b"), session)  # 8 of a, 4 of b
    replayed = [t for t, o in zip(forest.task, forest.origin, strict=True) if o == "replay"]
    assert replayed == ["a"] * 8
    # rows of a task stand together, so that minibatches of whole groups hold both kinds
    assert forest.group == ["s3/a"] * 4 + ["s3/a/replay"] * 8 + ["s3/b"] * 4


# ---------------------------------------------------------------- what is stored
def test_rollouts_are_stored_after_use_and_only_once() -> None:
    part = replay(max_stored=16)
    session = StepSession(right_first(2), step=1)
    forest = part.grow(tasks("a"), session)
    assert part.buffer.of("a") == []
    part.observe(forest)
    assert len(part.buffer.of("a")) == 4
    session.step = 2
    forest = train(part, ["a"], session)
    assert forest.origin.count("replay") == 4
    assert [r["id"] for r in part.buffer.of("a")] == [f"s{s}/a/{i}" for s in (1, 2) for i in range(4)]
    part.observe(forest)  # nothing is held any more
    assert len(part.buffer.of("a")) == 8


def test_only_scored_rollouts_that_were_used_are_stored() -> None:
    part = replay()
    session = StepSession(lambda s: (RIGHT, UNSCORED, 0, RIGHT)[s.attempt], step=1)
    forest = part.grow(tasks("a"), session)
    part.observe(forest.select([0, 1, 2]))
    assert [r["id"] for r in part.buffer.of("a")] == ["s1/a/0", "s1/a/2"]


def test_what_shaping_adds_is_not_stored() -> None:
    part = replay()
    session = StepSession(right_first(2), step=1)
    forest = part.grow(tasks("a"), session)
    part.observe(forest.with_rewards(forest.outcome - 0.7, components={"overlong": forest.outcome * 0 - 0.7}))
    assert [r["reward"] for r in part.buffer.of("a")] == [1, 1, 0, 0]
    assert part.buffer.of("a")[0]["rewards"] == {"correct": 1.0}


def test_oldest_rollouts_and_least_used_tasks_are_dropped() -> None:
    part = replay(group_size=2, max_stored=4, max_tasks=2)
    session = StepSession(right_first(1), step=1)
    for step, names in enumerate((["a"], ["b"], ["a"], ["c"], ["a"]), 1):
        session.step = step
        train(part, names, session)
    assert part.buffer.of("b") == []  # a was used after b when c came
    assert [r["id"] for r in part.buffer.of("a")] == [f"s{s}/a/{i}" for s in (3, 5) for i in range(2)]
    looked_up = ReplayBuffer(1, 2)
    looked_up.load_state_dict({"stored": [["a", [{}]], ["b", [{}]]]})
    looked_up.of("a")
    assert [task for task, _ in looked_up.state_dict()["stored"]] == ["b", "a"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=8), st.integers(1, 5), st.integers(1, 3))
def test_the_buffer_is_a_list_of_lists(steps: list[tuple[str, int]], most: int, most_tasks: int) -> None:
    part = Replay(4, 2, "recent", 1, most, most_tasks)
    expected: dict[str, list[str]] = {}
    for step, (name, unscored) in enumerate(steps, 1):
        script = lambda s, n=unscored: UNSCORED if s.attempt < n else RIGHT  # noqa: E731
        train(part, [name], StepSession(script, step=step))
        kept_pop = expected.pop(name, []) + [f"s{step}/{name}/{i}" for i in range(unscored, 4)]
        if kept_pop:
            expected[name] = kept_pop[-most:]
        if len(expected) > most_tasks:
            del expected[next(iter(expected))]
    actual = {task: [r["id"] for r in records] for task, records in part.state_dict()["stored"]}
    assert actual == expected and list(actual) == list(expected)


# ---------------------------------------------------------------- state
def test_a_buffer_read_back_goes_on_as_the_one_that_was_written() -> None:
    part, other = (replay(choice="random", replays=3, max_stored=16) for _ in range(2))
    for step in (1, 2):
        train(part, ["a", "b"], StepSession(right_first(step), step=step))
    other.load_state_dict(json.loads(json.dumps(part.state_dict(), allow_nan=False)))
    for step in (3, 4):
        one, two = (train(p, ["b", "a"], StepSession(right_first(1), step=step)) for p in (part, other))
        assert one.to_records() == two.to_records() and one.origin.count("replay") == 6
    assert part.state_dict() == other.state_dict()
    with pytest.raises(CheckpointError, match="stored rollouts"):
        other.load_state_dict({"rows": []})


def test_two_parts_share_no_memory() -> None:
    one, two = replay(), replay()
    train(one, ["a"], StepSession(right_first(1), step=1))
    assert one == two and two.buffer.of("a") == [] and "buffer" not in repr(one)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"choice": "best"}, "rollout.choice"),
        ({"statistics": "both"}, "rollout.statistics"),
        ({"min_stored": 5, "max_stored": 4}, "rollout.min_stored"),
        ({"replays": 0}, "rollout.replays"),
        ({"coef": -1.0}, "rollout.coef"),
        ({"max_tasks": 0}, "rollout.max_tasks"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        replay(**wrong)


def test_a_task_drawn_twice_has_replays_beside_both() -> None:
    part = replay(replays=2, choice="random")
    session = StepSession(right_first(2), step=1)
    train(part, ["a"], session)
    session.step = 2
    forest = part.grow(tasks("a", "a"), session)
    assert Counter(forest.group) == {"s2/a": 4, "s2/a/replay": 2, "s2/a#1": 4, "s2/a#1/replay": 2}
    assert len(set(forest.id)) == 12


# ---------------------------------------------------------------- episodes of a real model
@pytest.mark.parametrize("rules", [EpisodeRules(3), EpisodeRules(3, "window", 1)], ids=["full", "window"])
@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=3), Sampling(0.7, top_k=5, max_new_tokens=3)])
def test_log_probs_of_replayed_episodes_equal_the_learners(rules: EpisodeRules, sampling) -> None:
    part = Replay(2, 2, "all", 2, 4)
    with EnvPool(source(ENV), workers=0) as envs:
        for step in (1, 2):
            now = world_session(envs, rules=rules, sampling=sampling, step=step)
            forest = now.score(part.grow(world_tasks(now, 2), now))
            part.observe(forest)
    assert forest.origin == (["policy"] * 2 + ["replay"] * 2) * 2 and forest.n_steps > 12
    part.load_state_dict(json.loads(json.dumps(part.state_dict())))
    actual = TorchLearner(now.engine.model, lr=1e-3).outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- a run
def lines(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(tmp_path: Path) -> None:
    pool = [{"id": f"q{i}", "prompt": f"{i}?", "answer": str(i)} for i in range(5)]
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, pool)))
    (tmp_path / "held.jsonl").write_text(json.dumps({"id": "h", "prompt": "9?", "answer": "9"}))
    keys = {
        "tasks.per_step": 3, "tasks.options": {"held_out": str(tmp_path / "held.jsonl")}, "rollout.group_size": 4,
        "rollout.replays": 3, "rollout.min_stored": 4, "rollout.choice": "random", "sampling.max_new_tokens": 4,
        "eval.tasks": 1, "eval.every": 0, "trainer.checkpoint_every": 1, "trainer.keep_checkpoints": 9,
        "trainer.rollouts_every": 1, "update.epochs": 2, "update.minibatches": 2,
    }  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    parity = lambda completion: {"correct": float(sum(map(ord, completion)) % 2)}  # noqa: E731  it runs in process
    gxpo.train("tiny:cold", str(tmp_path / "pool.jsonl"), "repo_replay", 5, parity, out=whole, set=keys)
    shutil.copytree(whole, cut)  # what a run killed after step 3 and before its checkpoint leaves behind
    for step in (3, 4, 5):
        shutil.rmtree(next((cut / "checkpoints").glob(f"step-*{step}")))
    gxpo.resume(cut, reward=parity)
    assert lines(cut) == lines(whole) and len(lines(whole)) == 5
    rollout_texts = [(run / "rollouts" / "step-000005.jsonl").read_text() for run in (whole, cut)]
    assert rollout_texts[0] == rollout_texts[1] and '"origin": "replay"' in rollout_texts[0]
    # without what was stored before the kill the run is another one
    state = next((cut / "checkpoints").glob("step-*2")) / "state.json"
    assert '"stored"' in state.read_text()
