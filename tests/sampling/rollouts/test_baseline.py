"""Rollouts that are only measured: who draws them, what they are in the forest, what is remembered of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.replay_session import UNSCORED, StepSession, tasks, train
from tests.sampling.rollouts.resumed import check_resumed, parity

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey
from gxpo.sampling.rollouts.baseline import BaselineRollouts
from gxpo.sampling.rollouts.rounds import Independent

ALWAYS = lambda stream: 1  # noqa: E731


class Asked(StepSession):
    """Notes what is sampled: policy, temperature, top-k and streams of every request."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.asked: list[tuple[str, float, int, tuple[StreamKey, ...]]] = []

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        how = sampling or self.sampling
        self.asked += [(r.policy, how.temperature, how.top_k, r.streams) for r in requests]
        return super().sample(requests)


def grown(part: BaselineRollouts, script: Any = ALWAYS, names: Sequence[str] = ("a", "b"), **more: Any) -> tuple:
    session = Asked(script, **more)
    return session.score(part.grow(tasks(*names), session)), session


# ---------------------------------------------------------------- what stands beside a group
def test_greedy_rows_are_there_and_nowhere_else() -> None:
    forest, session = grown(BaselineRollouts(3, temperature=0.0))
    assert forest.group == ["s3/a"] * 4 + ["s3/b"] * 4
    assert forest.origin == (["policy"] * 3 + ["baseline"]) * 2
    assert forest.id[3] == "s3/a/baseline/0" and len(set(forest.id)) == 8
    assert forest.compared.tolist() == [True, True, True, False] * 2 == (forest.weight == 1).tolist()
    assert forest.lengths().tolist()[3::4] == [0, 0] and bool(forest.scored.all())
    policy, temperature, top_k, streams = session.asked[2]
    assert (policy, temperature, top_k) == ("main", 0.0, 0) and streams == (StreamKey(5, 3, "a", 3),)
    assert len(set(session.streams)) == 8 == session.budget.rollouts
    samples = StepSession(ALWAYS)
    plain = samples.score(Independent(3).grow(tasks("a", "b"), samples))
    rows = [r for r, origin in enumerate(forest.origin) if origin == "policy"]
    assert forest.select(rows).to_records() == plain.to_records()
    assert Forest.from_records(forest.to_records()).to_records() == forest.to_records()


def test_learner_reads_greedy_rows_and_samples_keep_support() -> None:
    forest, session = grown(BaselineRollouts(2, temperature=0.0), sampling=Sampling(0.7, top_k=5, max_new_tokens=3))
    assert [row["temperature"] for row in forest.sampling] == [0.7] * 6
    assert [row["top_k"] for row in forest.sampling] == [5, 5, 0] * 2
    assert [a[1:3] for a in session.asked] == [(0.7, 5), (0.7, 5), (0.0, 0), (0.0, 0)]


def test_reference_rows_are_sampled_by_the_reference_policy() -> None:
    part = BaselineRollouts(3, 0, "reference")
    forest, session = grown(part, names=["a", "a"])
    assert part.policies == {"main": "trained", "reference": "frozen"} and BaselineRollouts(3).policies is None
    assert [a[0] for a in session.asked] == ["main", "main", "reference", "reference"]
    assert [s.attempt for s in session.asked[3][3]] == [3, 4, 5] and session.asked[3][3][0].task == "a#1"
    assert forest.group == ["s3/a"] * 6 + ["s3/a#1"] * 6
    names = [forest.policy_names[int(forest.policy[n])] for n in forest.last_action]
    assert names == (["main"] * 3 + ["reference"] * 3) * 2


def test_nothing_changes_for_the_rows_that_are_trained() -> None:
    """GRPO's credit, loss and gradient with the rows beside them and without."""
    script = lambda s: (1, 0, 0, 1)[s.attempt]  # noqa: E731
    forest, _ = grown(BaselineRollouts(3, temperature=0.0), script)
    rows = torch.tensor([o == "policy" for o in forest.origin])
    sub, entries, m = forest.select(rows), forest.entries_of(rows), gxpo.method("grpo")
    logprob = (forest.path_behaviour_logprob + 0.1 * torch.arange(forest.n_entries) % 0.7).requires_grad_()
    loss = m.loss(forest, gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)).value
    part = m.loss(sub, gxpo.PolicyTokens(logprob[entries], sub.path_behaviour_logprob)).value
    assert torch.equal(m.advantages(forest)[entries], m.advantages(sub))
    assert loss.item() == pytest.approx(part.item(), abs=1e-14)
    one, other = (torch.autograd.grad(x, logprob, retain_graph=True)[0] for x in (loss, part))
    assert torch.allclose(one, other, rtol=0, atol=1e-15) and float(one.norm()) > 0


# ---------------------------------------------------------------- what they measure
def credit_of(name: str, forest: Forest) -> list[float]:
    m = gxpo.method(name)
    signals = m.signals["rollout_baseline"].compute(forest, {}, None)
    credit = m.advantages(forest, signals)
    return [float(credit[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


@pytest.mark.parametrize(("greedy", "expected"), [(1, [0, -1, -1]), (0, [1, 0, 0]), (UNSCORED, [0, 0, 0])])
def test_remax_is_the_reward_less_the_greedy_answers(greedy: int, expected: list[float]) -> None:
    forest, _ = grown(BaselineRollouts(3, temperature=0.0), lambda s: (1, 0, 0, greedy)[s.attempt], ["a"])
    assert credit_of("remax", forest) == [*expected, 0]


def test_pvpo_has_the_cards_numbers_and_measures_a_task_once() -> None:
    # two of four reference answers are right: V = .5, and A = .5, -.5, -.5, -.5
    script = lambda s: (1, 0, 0, 0, 1, 1, 0, 0)[s.attempt] if s.step == 1 else 1  # noqa: E731
    part = BaselineRollouts(4, 4, "reference", cache=True)
    first = train(part, ["a"], Asked(script, step=1))
    assert credit_of("pvpo", first) == [0.5, -0.5, -0.5, -0.5, 0, 0, 0, 0]
    session = Asked(script, step=2)
    later = train(part, ["b", "a"], session)
    assert later.group == ["s2/b"] * 8 + ["s2/a"] * 4 and [a[0] for a in session.asked] == ["main"] * 2 + ["reference"]
    assert later.info[8:] == [{"baseline": 0.5}] * 4
    assert credit_of("pvpo", later) == [0] * 8 + [0.5] * 4  # all right: 1 - V
    assert part.memory == {"a": 0.5, "b": 1.0}


def test_shaped_baselines_are_remembered_and_unscored_remeasured() -> None:
    part = BaselineRollouts(1, 2, "reference", cache=True)
    session = Asked(lambda s: UNSCORED if s.task == "b" and s.attempt else 1, step=1)
    forest = session.score(part.grow(tasks("a", "b"), session))
    part.observe(forest.with_rewards(forest.outcome - 0.25))
    assert part.memory == {"a": 0.75}
    session.step = 2
    part.grow(tasks("a", "b"), session)
    assert [a[3][0].task for a in session.asked if a[0] == "reference"] == ["a", "b", "b"]
    forgetful = BaselineRollouts(1)
    train(forgetful, ["a"], Asked(ALWAYS))
    assert forgetful.memory == {}


def test_aapo_pairs_the_rows() -> None:
    # r = 1 0 1 1, r' = 0 0 1 0: mean .75, std .5: .25 / .500001, -.75 / .500001; gaps .28 0 0 .28
    forest, _ = grown(BaselineRollouts(4, 0, "reference"), lambda s: (1, 0, 1, 1, 0, 0, 1, 0)[s.attempt], ["a"])
    assert credit_of("aapo", forest)[:4] == pytest.approx([0.78, -1.5, 0.5, 0.78], abs=4e-6)


# ---------------------------------------------------------------- memory, settings
def test_read_back_it_goes_on_and_parts_share_no_memory() -> None:
    part, other = (BaselineRollouts(2, 3, "reference", cache=True) for _ in range(2))
    script = lambda s: (s.attempt + s.step) % 3 % 2  # noqa: E731
    train(part, ["a", "b"], Asked(script, step=1))
    assert part == other and other.memory == {} and "memory" not in repr(part)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    for step in (2, 3):
        one, two = (train(p, ["b", "c"], Asked(script, step=step)) for p in (part, other))
        assert one.to_records() == two.to_records() and part.memory == other.memory
    assert set(part.memory) == {"a", "b", "c"} and not math.isnan(part.memory["c"])
    with pytest.raises(CheckpointError, match="baselines"):
        other.load_state_dict({"stored": []})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_size": 0}, "group_size"),
        ({"baselines": -1}, "baselines"),
        ({"policy": "teacher"}, "rollout.policy"),
        ({"temperature": -0.5}, "rollout.temperature"),
        ({"temperature": 0.0, "baselines": 4}, "greedy rollouts are all the same"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BaselineRollouts(**wrong)


# ---------------------------------------------------------------- runs
KEYS = {"tasks.per_step": 3, "rollout.group_size": 3, "sampling.max_new_tokens": 4, "eval.tasks": 2}


@pytest.mark.filterwarnings("ignore:reward")
def test_without_adapters_there_is_no_reference_to_sample_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.lora_rank"):
        gxpo.train("tiny:cold", "arithmetic", "aapo", 1, parity, out=tmp_path / "run", set=KEYS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_the_reference_stays_where_it_was(tmp_path: Path) -> None:
    """One task for ever, a large learning rate: the greedy answer of the reference is the same in every step, that of
    the policy is not."""
    (tmp_path / "pool.jsonl").write_text(json.dumps({"id": "q", "prompt": "1?", "answer": "1"}))
    (tmp_path / "held.jsonl").write_text(json.dumps({"id": "h", "prompt": "9?", "answer": "9"}))
    keys = KEYS | {
        "tasks.per_step": 1, "tasks.options": {"held_out": str(tmp_path / "held.jsonl")}, "rollout.temperature": 0.0,
        "rollout.baselines": 1, "learner.lora_rank": 4, "optim.lr": 0.5, "eval.tasks": 1, "eval.every": 0,
        "trainer.rollouts_every": 1, "signal.rollout_baseline.paired": False,
    }  # fmt: skip
    messages: dict[str, list[list[int]]] = {}
    for of in ("reference", "current"):
        out = tmp_path / of
        gxpo.train(
            "tiny:cold", str(tmp_path / "pool.jsonl"), "aapo", 3, parity, out=out, set=keys | {"rollout.policy": of}
        )
        for path in sorted((out / "rollouts").iterdir()):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            (row,) = [r for r in rows if r.get("origin") == "baseline"]
            messages.setdefault(of, []).append(row["turns"][0]["action"])
    assert len(messages["reference"]) == 3 and all(a == messages["reference"][0] for a in messages["reference"])
    assert messages["current"][0] == messages["reference"][0] and messages["current"] != messages["reference"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(tmp_path: Path) -> None:
    rows = check_resumed("pvpo", tmp_path, '"baselines"', **{"rollout.baselines": 3, "learner.lora_rank": 4})
    assert rows[0]["trajectories"] == 21 and rows[-1]["trajectories"] == 12  # every task has been measured by then
