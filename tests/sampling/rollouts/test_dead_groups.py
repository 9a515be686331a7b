"""Groups whose rollouts all get one reward: hotter attempts, a temperature for each task, replay of the other verdict,
reflection, and stored successes (EFRame, ERPO, R^3, ARPO of GUI agents)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.replay_session import (
    ENV,
    StepSession,
    tasks,
    train,
    world_session,
    world_tasks,
)
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Request, Sampling
from gxpo.sampling.rollouts.replay import GroupReplay, Replay
from gxpo.sampling.rollouts.replay_buffer import ReplayBuffer
from gxpo.sampling.rollouts.retry import Retry
from gxpo.sampling.rollouts.temperature import TaskTemperature


class Heated(StepSession):
    """Verdicts by (step, task, attempt); `asked` has the temperature of every call."""

    def __init__(self, verdicts: dict[tuple[int, str], Sequence[int]], step: int, **more: Any) -> None:
        super().__init__(lambda key: verdicts[key.step, key.task][key.attempt], step=step, **more)
        self.asked: list[tuple[float, int]] = []

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> Any:
        heat = (sampling or self.sampling).temperature
        self.asked.append((heat, sum(len(r.streams) for r in requests)))
        return super().sample(requests)


def advantages(method: gxpo.Method, forest: Forest) -> list[float]:
    actual = method.advantages(forest)
    return [float(actual[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


def weights(method: gxpo.Method, forest: Forest) -> list[float]:
    credit = method.advantages(forest)
    actual = method.token_weights(forest, credit, {})
    return [float(actual[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


# ---------------------------------------------------------------- EFRame
def eframe(**more: Any) -> Any:
    return gxpo.method("eframe", {"rollout.group_size": 5, **more})


def test_twenty_hot_attempts_take_the_place_of_five_failures() -> None:
    part = eframe().rollout
    session = Heated({(1, "a"): [0] * 5 + [1] + [0] * 19, (1, "b"): [1, 0, 0, 0, 0]}, 1)
    forest = part.grow(tasks("a", "b"), session)
    assert session.asked == [(1.0, 10), (1.2, 20)] and session.budget.discarded == 5
    assert Counter(forest.group) == {"s1/a": 20, "s1/b": 5}
    assert Counter(zip(forest.group, forest.origin, strict=True)) == {("s1/a", "tempered"): 20, ("s1/b", "policy"): 5}
    assert {s["temperature"] for s in forest.sampling[:20]} == {1.2}
    assert len(set(session.streams)) == 30 and len(set(forest.id)) == 25
    assert forest.path_behaviour_logprob.isfinite().all()


@pytest.mark.parametrize(
    ("right", "up", "down", "kept"),
    [
        # mean k/20, std sqrt(k (20 - k) / 380) with one degree of freedom
        (1, 4.248510, -0.223606, [1.0, 0.0]),
        (9, 1.077547, -0.881629, [1.0, 0.0]),
        (10, 0.974678, -0.974678, [0.0, 0.0]),
        (11, 0.881629, -1.077547, [0.0, 1.0]),
    ],
)
def test_the_cards_numbers_of_twenty_hot_attempts(right: int, up: float, down: float, kept: list[float]) -> None:
    session = Heated({(1, "a"): [0] * 5 + [1] * right + [0] * (20 - right)}, 1, sampling=Sampling(max_new_tokens=9))
    forest = eframe().rollout.grow(tasks("a"), session)
    assert advantages(eframe(), forest) == pytest.approx([up] * right + [down] * (20 - right), abs=1e-5)
    assert weights(eframe(), forest) == [kept[0]] * right + [kept[1]] * (20 - right)


def test_uninformative_and_truncated_right_rows_have_no_weight() -> None:
    # every second answer fills the three tokens that there are: attempts 1 and 3
    session = Heated({(1, "a"): [1, 1, 0, 0, 0]}, 1)
    forest = eframe().rollout.grow(tasks("a"), session)
    assert forest.truncated.tolist() == [False, True, False, True, False]
    assert weights(eframe(), forest) == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert weights(eframe(**{"weight.informative.min_score": 1.0}), forest) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_large_advantages_come_back_every_fifth_step() -> None:
    part = eframe(**{"rollout.replay_ratio": 1.0}).rollout
    verdicts = {(step, "a"): [1, 0, 0, 0, 0] if step < 4 else [1] * 5 for step in range(1, 6)}
    forests = [train(part, ["a"], Heated(verdicts, step)) for step in range(1, 6)]
    assert [f.origin.count("replay") for f in forests] == [0, 0, 0, 0, 15]
    actual = forests[4]
    # three groups of one right in five: 0.8 / sqrt(0.2) = 1.788854, the others -0.447214; the fourth was all right
    credit = [round(a, 5) for a in advantages(eframe(), actual)]
    replayed_rows = [r for r in range(actual.n_trajectories) if actual.origin[r] == "replay" and actual.weight[r] > 0]
    assert [credit[r] for r in replayed_rows] == [1.78885] * 3
    assert [actual.id[r] for r in replayed_rows] == [f"s{s}/a/0/again" for s in (1, 2, 3)]
    assert [actual.trainable[actual.path_token[actual.path_of(r)]].all().item() for r in range(5, 20)] == [
        r in replayed_rows for r in range(5, 20)
    ]
    scarce = GroupReplay(5, choice="largest", min_advantage=1.0, replay_ratio=0.4, every=5)
    for step in range(1, 6):
        last = train(scarce, ["a"], Heated(verdicts, step))
    assert int(((last.weight > 0) & torch.tensor([o == "replay" for o in last.origin])).sum()) == 2


# ---------------------------------------------------------------- ERPO
def heat_of(forest: Forest) -> list[float]:
    return [round(info["temperature"], 6) for info in forest.info]


def test_a_task_that_is_always_right_is_heated_up_to_the_most() -> None:
    part = gxpo.method("erpo", {"rollout.group_size": 2}).rollout
    actual = [train(part, ["a"], Heated({(step, "a"): [1, 1]}, step)) for step in range(1, 7)]
    assert [heat_of(f)[0] for f in actual] == [1.0, 1.05, 1.1, 1.15, 1.2, 1.2]  # the card's
    assert [f.sampling[0]["temperature"] for f in actual] == pytest.approx([1.0, 1.05, 1.1, 1.15, 1.2, 1.2])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1.0, 1.05, 1.0, 1.0, 1.05]),
        ({"reset": False}, [1.0, 1.05, 1.05, 1.05, 1.1]),
        ({"groups": "all_wrong"}, [1.0, 1.0, 1.0, 1.05, 1.0]),
        ({"groups": "uniform"}, [1.0, 1.05, 1.0, 1.05, 1.1]),
        ({"step": 0.0}, [1.0] * 5),
        ({"max_temperature": 0.5}, [1.0] * 5),
    ],
)
def test_what_counts_and_what_sets_back(options: dict, expected: list[float]) -> None:
    part = TaskTemperature(2, **options)
    verdicts = [[1, 1], [1, 0], [0, 0], [1, 1], [1, 1]]
    actual = [train(part, ["a"], Heated({(s, "a"): v}, s)) for s, v in enumerate(verdicts, 1)]
    assert [heat_of(f)[0] for f in actual] == pytest.approx(expected)


def test_temperature_rises_per_task_and_ignores_unscored_groups() -> None:
    part = TaskTemperature(2)
    train(part, ["a", "b", "c"], Heated({(1, "a"): [1, 1], (1, "b"): [1, 0], (1, "c"): [2, 2]}, 1))
    assert part.state_dict() == {"visits": {"a": 1}}
    session = Heated({(2, n): [1, 1] for n in "abc"}, 2)
    assert heat_of(train(part, ["a", "b", "c"], session)) == [1.05] * 2 + [1.0] * 4
    assert sorted(session.asked) == [(1.0, 4), (1.05, 2)]
    again = TaskTemperature(2)
    again.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert again.visits == part.visits == {"a": 2, "b": 1, "c": 1}
    with pytest.raises(CheckpointError, match="visits"):
        again.load_state_dict({"rows": {}})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_temperatures_survive_a_stop(tmp_path: Path) -> None:
    rows = check_resumed("erpo", tmp_path, '"visits"', **{"rollout.groups": "uniform", "rollout.step": 0.2})
    assert all(row["ratio_max"] == 1.0 for row in rows)  # each row is read at the temperature that it was sampled at
    steps = [(tmp_path / "whole" / "rollouts" / f"step-{s:06d}.jsonl").read_text().splitlines() for s in range(1, 6)]
    assert len({json.loads(line)["info"]["temperature"] for step in steps for line in step}) > 1


def test_a_virtual_failure_joins_groups_that_are_all_right() -> None:
    erpo = gxpo.method("erpo")
    forest = Forest.from_completions(
        [[1], [2], [3]], [[[4], [5], [6], [7]]] * 3, rewards=[[1.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0]]
    )
    # 1 1 1 1 and 0: mean .8, std .447214, .2 over that; all wrong: nothing; one right of four: as GRPO
    expected = [0.447213] * 4 + [0.0] * 4 + [1.499997, -0.499999, -0.499999, -0.499999]
    assert advantages(erpo, forest) == pytest.approx(expected, abs=1e-6)
    everywhere = gxpo.method("erpo", {"credit.groups": "all"})
    assert advantages(everywhere, forest)[8:] != pytest.approx(expected[8:], abs=1e-2)
    failing = gxpo.method("erpo", {"credit.groups": "all_wrong", "credit.value": 1.0})
    assert advantages(failing, forest) == pytest.approx([0.0] * 4 + [-0.447213] * 4 + expected[8:], abs=1e-6)


# ---------------------------------------------------------------- R^3: replay
def r3(**more: Any) -> Any:
    return gxpo.method("r3", {"rollout.group_size": 4, "rollout.retry_with": "once", **more})


def credit_of_outcomes(forest: Forest) -> list[float]:
    """GRPO's, eps 0: that of R^3 where nothing is truncated."""
    return advantages(gxpo.method("grpo", {"credit.eps": 0.0}), forest)


@pytest.mark.parametrize(("now", "sign"), [(0, 1.0), (1, -1.0)])
def test_the_other_verdict_joins_a_group_of_one_verdict(now: int, sign: float) -> None:
    part = r3().rollout
    session = Heated({(1, "a"): [1, 0, 0, 1], (2, "a"): [now] * 4}, 1, sampling=Sampling(max_new_tokens=9))
    train(part, ["a"], session)
    session.step = 2
    forest = part.grow(tasks("a"), session)
    assert forest.group == ["s2/a"] * 5 and forest.origin == ["policy"] * 4 + ["replay"]
    assert forest.success.tolist() == [now] * 4 + [1 - now]
    assert credit_of_outcomes(forest) == pytest.approx([-0.447214 * sign] * 4 + [1.788854 * sign], abs=1e-6)
    stored = int(forest.info[4]["sampled_as"][-1])
    assert forest.path_behaviour_logprob[forest.path_of(4)].tolist() == [
        -0.5 * t for t in [1 - now, 10 + stored] + [9] * (stored % 2)
    ]


def test_mixed_groups_and_those_without_the_other_verdict_stay() -> None:
    part = r3().rollout
    verdicts = {(1, "a"): [1] * 4, (2, "a"): [1] * 4, (3, "a"): [0, 1, 1, 1], (4, "a"): [1] * 4, (4, "b"): [0] * 4}
    actual = [train(part, names, Heated(verdicts, s)) for s, names in enumerate((["a"], ["a"], ["a"], ["a", "b"]), 1)]
    assert [f.n_trajectories for f in actual] == [4, 4, 4, 9]
    assert actual[3].info[4]["sampled_as"] == "s3/a/0" and actual[3].group[4] == "s4/a"


def test_a_rare_success_outlives_failures() -> None:
    stored = [{"task": "a", "id": str(i), "success": i == 1} for i in range(6)]
    one, apart = ReplayBuffer(2, 9), ReplayBuffer(2, 9, apart=True)
    for buffer in (one, apart):
        buffer.add(stored)
    assert [r["id"] for r in one.of("a")] == ["4", "5"]
    assert [r["id"] for r in apart.of("a")] == ["1", "4", "5"]


# ---------------------------------------------------------------- R^3: reflection
class Asked(Heated):
    """Encodes what is asked."""

    def encode(self, task: Any) -> tuple[int, ...]:
        return tuple(task.prompt.encode())


def test_a_task_that_went_badly_is_asked_again_with_a_failure() -> None:
    part = gxpo.method("r3", {"rollout.group_size": 2, "rollout.template": "{prompt}|{attempt}|"}).rollout
    verdicts = {(1, "a"): [0, 0], (1, "b"): [1, 0], (2, "a"): [0, 1, 1, 0], (2, "b"): [1, 1], (3, "a"): [1, 1]}
    train(part, ["a", "b"], Asked(verdicts, 1))
    session = Asked(verdicts, 2)
    forest = train(part, ["a", "b"], session)  # b was right half of the time
    assert Counter(forest.group) == {"s2/a": 2, "s2/b": 3, "s2/a/reflect": 2}
    rows = [r for r, group in enumerate(forest.group) if group == "s2/a/reflect"]
    output = [bytes(forest.context(int(forest.prompt_node[r]))).decode() for r in rows]
    assert output == ["a?|0 11 9|"] * 2  # what attempt 1 of step 1 said
    assert [forest.info[r]["reflects_on"] for r in rows] == ["s1/a/1"] * 2 and forest.success[rows].tolist() == [1, 0]
    assert [r["id"] for r in part.buffer.of("a")] == ["s1/a/0", "s1/a/1", "s2/a/0", "s2/a/1"]
    assert forest.trainable[forest.path_token[forest.path_of(rows[0])]].all() and len(set(session.streams)) == 6
    assert Counter(train(part, ["a"], Asked(verdicts, 3)).group) == {"s3/a": 3}  # half of the newest group was right


def test_reflection_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="rollout=replay"):
        Retry(2, retry_with="reflect").grow(tasks("a"), Asked({(1, "a"): [0, 0]}, 1))
    with pytest.raises(ConfigError, match=r"lacks \{attempt\}"):
        Replay(2, retry_with="reflect", options={"template": "{prompt}"})


def test_replays_stand_beside_whatever_was_attempted_again() -> None:
    part = Replay(
        2,
        2,
        "recent",
        1,
        4,
        retry_if="all_wrong",
        retry_with="hotter",
        keep="newest",
        options={"more": 3, "temperature": 2.0},
    )
    train(part, ["a"], Heated({(1, "a"): [1, 0]}, 1))
    session = Heated({(2, "a"): [0, 0, 1, 0, 0]}, 2)
    forest = train(part, ["a"], session)
    assert session.asked == [(1.0, 2), (2.0, 3)] and session.budget.discarded == 2
    assert forest.group == ["s2/a"] * 3 + ["s2/a/replay"] * 2
    assert [r["sampling"]["temperature"] for r in part.buffer.of("a")] == [1.0, 2.0, 2.0, 2.0]  # the newest four


# ---------------------------------------------------------------- ARPO of GUI agents
def test_the_cards_numbers_with_a_format_reward() -> None:
    arpo = gxpo.method("arpo_gui")
    part = arpo.rollout
    assert (part.group_size, part.max_stored, part.coef) == (8, 8, 1.0)
    train(part, ["a"], Heated({(1, "a"): [0, 0, 0, 1, 0, 0, 0, 0]}, 1))
    forest = part.grow(tasks("a"), Heated({(2, "a"): [0] * 8}, 2))
    assert forest.origin == ["policy"] * 7 + ["replay"] and forest.info[7]["sampled_as"] == "s1/a/3"
    assert forest.weight.tolist() == [1.0] * 8
    wellformed = torch.tensor([1.0, 0, 1, 1, 1, 1, 0, 1], dtype=torch.float64)  # that of the stored row comes last
    paid = forest.with_rewards(forest.outcome + 0.5 * wellformed, components={"format": wellformed})
    expected = [0.0, -1.080121, 0.0, 0.0, 0.0, 0.0, -1.080121, 2.160242]
    assert advantages(arpo, paid) == pytest.approx(expected, abs=1e-6)
    bare = Forest.from_completions([[1]], [[[i] for i in range(8)]], rewards=[[0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5, 0]])
    without = [0.540059] * 2 + [-1.620178] + [0.540059] * 4 + [-1.620178]
    assert advantages(arpo, bare) == pytest.approx(without, abs=1e-6)


# ---------------------------------------------------------------- runs
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
@pytest.mark.parametrize(
    ("method", "remembered", "keys"),
    [
        ("r3", '"stored"', {"rollout.below": 1.0}),
        pytest.param("arpo_gui", '"stored"', {}, marks=pytest.mark.thorough),
        pytest.param(
            "eframe", '"groups"', {"rollout.more": 4, "rollout.every": 2, "rollout.min_advantage": 0.5},
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(
    method: str, remembered: str, keys: dict, tmp_path: Path
) -> None:
    rows = check_resumed(method, tmp_path, remembered, **keys)
    assert any(row.get("origin_replay") for row in rows) or method == "arpo_gui"  # where some group fails throughout


# ---------------------------------------------------------------- a real model
@pytest.mark.parametrize(
    "part", [lambda: GroupReplay(2, retry_if="all_wrong", retry_with="hotter", keep="newest", options={"more": 3}),
             lambda: TaskTemperature(2, groups="uniform", step=0.3, max_temperature=2.0)], ids=["hotter", "task"],
)  # fmt: skip
def test_log_probs_of_hot_episodes_equal_the_learners(part: Any) -> None:
    rollout, heats = part(), set()
    with EnvPool(source(ENV), workers=0) as envs:
        for step in (1, 2):
            now = world_session(envs, rules=EpisodeRules(3), sampling=Sampling(max_new_tokens=1), step=step)
            forest = now.score(rollout.grow(world_tasks(now, 2), now))
            rollout.observe(forest)
            heats |= {s["temperature"] for s in forest.sampling}
            actual = TorchLearner(now.engine.model, lr=1e-3).outputs(forest, ("logprob",))["logprob"]
            assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    assert heats - {1.0}
