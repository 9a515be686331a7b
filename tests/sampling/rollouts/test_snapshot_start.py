"""Episodes that begin in a state on a stored way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.acting_session import STEPS, acting, seeded, turns_of
from tests.sampling.rollouts.replay_session import small_model

import gxpo
from gxpo.base.errors import ConfigError, GxpoError, RecordError
from gxpo.environments.envs import EnvPool, source
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Reply, Sampling
from gxpo.sampling.rollouts.snapshot_start import SnapshotStart

FULL, WINDOW = EpisodeRules(40), EpisodeRules(40, "window", 0)


@pytest.fixture(scope="module")
def doors() -> Any:
    with EnvPool(source("keydoor", {"style": "bare", "size": 4}), workers=0) as pool:
        yield pool


@pytest.fixture(scope="module")
def steps() -> Any:
    with EnvPool(source(STEPS, {"start": 4}), workers=0) as pool:
        yield pool


def silent(context: str, key: Any) -> str:
    return "U"


def walked(envs: EnvPool, seed: int) -> list[tuple[str, str | None, str]]:
    """Observation, state and expert's text of each turn of the expert's episode, by hand."""
    (step,) = envs.reset({"by hand": seed}).values()
    out = []
    while not step.done:
        text = envs.expert(["by hand"])["by hand"]
        out.append((step.observation, step.state, text))
        (step,) = envs.step({"by hand": Reply(text)}).values()
    return out


@pytest.mark.slow
@pytest.mark.parametrize("rules", [FULL, WINDOW], ids=["full", "window"])
def test_a_group_begins_in_one_state_of_the_experts_way(doors: EnvPool, rules: EpisodeRules) -> None:
    way, begins = walked(doors, 5), Counter()
    for step in range(1, 9):
        s = acting(doors, silent, rules=rules, step=step, sampling=Sampling(max_new_tokens=1))
        forest = SnapshotStart(3).grow(seeded(s, 5), s)
        assert forest.n_trajectories == 3 and set(forest.group) == {f"s{step}/steps/5"}
        assert s.budget.rollouts == 3 and s.budget.generated_tokens == forest.n_entries
        assert len(set(s.engine.streams)) == len(s.engine.streams)
        (at,) = {info["begins"] for info in forest.info}
        begins[at] += 1
        for r in range(3):
            first = turns_of(forest, r)[0]
            before = [f"{seen_value}{did}" for seen_value, _, did in way[:at]] if rules is FULL else []
            assert first["state"] == way[at][1] and first["context"] == "".join([*before, way[at][0]])
            assert first["said"] == "U" and first["trained"] == [True]
    assert len(begins) > 3 and max(begins) < len(way)


def test_from_its_place_on_the_policy_acts_and_is_paid_alone(steps: EnvPool, tmp_path: Path) -> None:
    """A stored way of another run: "abcd"; a student that counts well from there has as many turns as are left."""
    session = acting(steps, lambda text, key: "abcd"[key.turn], step=1)
    teacher = gxpo.method("grpo", {"rollout.group_size": 2}).rollout.grow(seeded(session, 0), session)
    teacher = session.score(teacher)
    (tmp_path / "step-1.jsonl").write_text("\n".join(json.dumps(r) for r in teacher.to_records()))
    part, seen_records = SnapshotStart(2, teacher=str(tmp_path)), set()
    for step in range(1, 9):
        s = acting(steps, lambda text, key: "z", step=step, rules=EpisodeRules(20))
        forest = s.score(part.grow(seeded(s, 0, 2), s))
        at = forest.info[0]["begins"]
        seen_records.add(at)
        own_values = [t for r in (0, 1) for t in turns_of(forest, r)]
        assert [t["said"] for t in own_values] == ["z"] * 2 * (4 - at) and forest.success.tolist() == [1.0] * 4
        assert [t["state"] for t in own_values[: 4 - at]] == [str(n) for n in range(4 - at, 0, -1)]
        assert forest.info[2]["begins"] == 0 and "way" not in forest.info[2]  # of seed 2 there is no way
        if at:
            assert forest.info[0]["way"] in ("s1/steps/0/0", "s1/steps/0/1")
            assert own_values[0]["context"].endswith(f"{4 - at} left\n>") and "abcd"[at - 1] in own_values[0]["context"]
    assert seen_records == {0, 1, 2, 3}


def test_turns_count_from_there(steps: EnvPool) -> None:
    part = SnapshotStart(1, teacher="own")  # whose way is gone as far as the run's turns
    s = acting(steps, lambda text, key: "a", step=1)
    part.observe(s.score(part.grow(seeded(s, 0), s)))
    begun = set()
    for step in range(2, 12):
        s = acting(steps, lambda text, key: "!", step=step, rules=EpisodeRules(2))
        forest = s.score(part.grow(seeded(s, 0), s))
        part.observe(forest)
        assert forest.n_steps == 2 and forest.success.tolist() == [0.0]
        begun.add(forest.info[0]["begins"])
    assert begun == {0, 1}


def test_own_successes_are_stored_if_they_began_at_the_start(steps: EnvPool) -> None:
    part = SnapshotStart(2, teacher="own", max_stored=3)
    for step in (1, 2, 3, 4, 5):
        s = acting(steps, lambda text, key: "ab"[key.attempt], step=step)
        forest = s.score(part.grow(seeded(s, 0), s))
        part.observe(forest)
        full_buffers = [r["id"] for r in part.buffer.of("steps/0")]
        assert all(record["info"]["begins"] == 0 for record in part.buffer.of("steps/0"))
        if step == 1:
            assert full_buffers == ["s1/steps/0/0", "s1/steps/0/1"]
    other = SnapshotStart(2, teacher="own", max_stored=3)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    s, t = (acting(steps, lambda text, key: "z", step=6) for _ in range(2))
    assert part.grow(seeded(s, 0), s).to_records() == other.grow(seeded(t, 0), t).to_records()
    assert not SnapshotStart(2).remembers and part.remembers


def test_after_the_first_steps_episodes_begin_at_the_start(doors: EnvPool) -> None:
    part = SnapshotStart(2, first_steps=2)
    first = walked(doors, 5)[0]
    for step in (3, 4):
        s = acting(doors, silent, step=step, sampling=Sampling(max_new_tokens=1))
        forest = part.grow(seeded(s, 5), s)
        assert [turns_of(forest, r)[0]["state"] for r in (0, 1)] == [first[1]] * 2


def test_the_learner_reads_what_the_sampler_wrote(doors: EnvPool) -> None:
    s = acting(doors, model=small_model(), rules=EpisodeRules(2), sampling=Sampling(max_new_tokens=3), step=2)
    forest = SnapshotStart(2).grow(seeded(s, 5, 6), s)
    assert any(info["begins"] for info in forest.info)
    actual = TorchLearner(s.engine.model, lr=1e-3).outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)


def test_a_way_that_leads_elsewhere_is_refused(steps: EnvPool, tmp_path: Path) -> None:
    s = acting(steps, lambda text, key: "a", step=1)
    forest = s.score(gxpo.method("grpo", {"rollout.group_size": 1}).rollout.grow(seeded(s, 0), s))
    (record,) = forest.to_records()
    record["turns"][1]["state"] = "9"
    (tmp_path / "way.jsonl").write_text(json.dumps(record))
    s = acting(steps, lambda text, key: "a", step=1)
    with pytest.raises(GxpoError, match="lead elsewhere at turn 1"):
        SnapshotStart(1, teacher=str(tmp_path / "way.jsonl")).grow(seeded(s, 0), s)
    record["turns"][1]["state"], record["success"], record["reward"] = "3", False, 0.0
    (tmp_path / "way.jsonl").write_text(json.dumps(record))
    with pytest.raises(RecordError, match="no trajectory in it is a success"):
        SnapshotStart(1, teacher=str(tmp_path / "way.jsonl")).grow(seeded(s, 0), s)


def test_prompts_have_no_states_to_begin_in(tmp_path: Path) -> None:
    keys = {"rollout.teacher": "own", "tasks.per_step": 2, "sampling.max_new_tokens": 2, "eval.tasks": 1}
    with pytest.raises(ConfigError, match="requires restarts"):
        gxpo.train("tiny:cold", "arithmetic", "snapshot_rl", 1, out=tmp_path / "run", set=keys)
