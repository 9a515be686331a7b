"""The policy as its own teacher: who is shown what, ids kept, what it says, how it follows, that it is restored."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest
from tests.sampling.rollouts.team_session import Letters, encoded

import gxpo
from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.algorithms.signals.self_teacher import SelfTeacher, first_other, with_peer_shown
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Sampling, Task
from gxpo.training.session import Session

F64 = torch.float64


def policy(seed: int = 0, **options: Any) -> TorchLearner:
    return TorchLearner(clean_llama(seed), lr=1e-2, **options)


def bound(learner: Any, **fields: Any) -> tuple[SelfTeacher, SignalTools]:
    part, tools = (
        SelfTeacher(**{"top_k": 4, **fields}),
        SignalTools(learner, lambda ids: "", 2, 1, 0, reword=lambda *_: None),
    )
    part.bind(tools)
    return part, tools


def written_out(forest: Forest, p: int) -> list[int]:
    """All token ids before entry p, walked node by node."""
    token = int(forest.path_token[p])
    node = int(forest.token_node[token])
    return forest.context(int(forest.parent[node])) + forest.token[int(forest.first_token[node]) : token].tolist()


# ---------------------------------------------------------------- who is shown
def test_worked_peers() -> None:
    """Group 0: wrong, right, wrong, right; group 1: right alone; group 2: all wrong."""
    good = torch.tensor([False, True, False, True, True, False, False])
    group = torch.tensor([0, 0, 0, 0, 1, 2, 2])
    assert first_other(good, group).tolist() == [1, 3, 1, 1, -1, -1, -1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
def test_peers_equal_a_loop(rows) -> None:
    actual = first_other(torch.tensor([g for _, g in rows]), torch.tensor([k for k, _ in rows])).tolist()
    for i, (group, _) in enumerate(rows):
        others = [j for j, (g, good) in enumerate(rows) if g == group and good and j != i]
        assert actual[i] == (others[0] if others else -1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_only_the_opening_of_each_context_changes(seed) -> None:
    """On forks, rebuilt contexts and agents: ids before each token are the peer's whole path and those of before."""
    forest, rng = random_forest(seed), random.Random(seed)
    n = forest.n_trajectories
    rows = torch.tensor(sorted(rng.sample(range(n), rng.randrange(1, n + 1))))
    peer = torch.tensor([rng.randrange(n) for _ in rows])
    read, order = with_peer_shown(forest, rows, peer)
    assert sorted(order.tolist()) == rows.tolist() and read.n_trajectories == len(rows)
    of = dict(zip(rows.tolist(), peer.tolist(), strict=True))
    entries = forest.entries_of(order)
    assert torch.equal(read.token[read.path_token], forest.token[forest.path_token[entries]])
    for p, own_value in enumerate(entries.tolist()):
        messages = forest.context(int(forest.last_action[of[int(forest.path_trajectory[own_value])]]))
        assert written_out(read, p) == messages + written_out(forest, own_value)
    assert read.sampling == [forest.sampling[r] for r in order.tolist()]


def test_a_peer_is_stored_once_for_all_that_are_shown_it() -> None:
    forest = Forest.from_completions([[1, 2, 3]], [[[4, 5], [6], [7], [8, 9]]], [0.0] * 4)
    read, _ = with_peer_shown(forest, torch.tensor([1, 2, 3]), torch.tensor([0, 0, 0]))
    assert read.n_tokens == 5 + 3 + 4  # the peer's prompt and answer, the prompt again, four action tokens


# ---------------------------------------------------------------- what it says
def groups(turns: int = 1) -> Forest:
    """Group 0: wrong, right, wrong, right; group 1: wrong twice; group 2: right, unscored; group 3: wrong, right."""
    rng, records = random.Random(5), []
    verdicts = [[0, 1, 0, 1], [0, 0], [1, None], [0, 1]]
    for g, group in enumerate(verdicts):
        for i, right in enumerate(group):
            actions = [[rng.randrange(3, 22) for _ in range(rng.randrange(1, 4))] for _ in range(turns)]
            records.append(
                {
                    "schema": "gxpo.rollouts/1",
                    "group": f"g{g}",
                    "id": f"{g}.{i}",
                    "prompt": [1, 2 + g],
                    "turns": [{"observation": [20], "action": a, "logprob": [-1.0] * len(a)} for a in actions],
                    "reward": None if right is None else float(right),
                    "success": None if right is None else bool(right),
                    "sampling": {"temperature": 0.8},
                }
            )
    return Forest.from_records(records)


@pytest.mark.parametrize(("of", "rows"), [("all", [0, 1, 2, 3, 8]), ("failed", [0, 2, 8])])
def test_the_teacher_is_the_model_on_the_contexts_written_out(of, rows) -> None:
    forest, learner = groups(turns=2), policy()
    part, tools = bound(learner, rollouts=of)
    actual = part.compute(forest, Signals.of(forest), tools)
    peers = {0: 1, 1: 3, 2: 1, 3: 1, 8: 9}
    taught = torch.isin(forest.path_trajectory, torch.tensor(rows))
    assert torch.equal(actual["teacher_entropy"].isfinite(), taught)
    assert bool((actual["teacher_ids"][~taught] == -1).all())
    assert bool((actual["teacher_logprob"][~taught] == -torch.inf).all())
    for p in taught.nonzero().squeeze(1).tolist():
        peer = peers[int(forest.path_trajectory[p])]
        before = forest.context(int(forest.last_action[peer])) + written_out(forest, p)
        with torch.no_grad():
            log_p = (learner.model(torch.tensor([before])).logits[0, -1] / 0.8).log_softmax(0)
        top = log_p.topk(4)
        assert actual["teacher_ids"][p].tolist() == top.indices.tolist()
        rest = (1 - top.values.exp().sum()).log()
        expected = [*top.values.tolist(), float(rest)]
        assert actual["teacher_logprob"][p].tolist() == pytest.approx(expected, abs=1e-9)
        assert float(actual["teacher_entropy"][p]) == pytest.approx(float(-(log_p.exp() * log_p).sum()), abs=1e-9)


def test_columns_go_through_a_selection_of_rollouts() -> None:
    forest = groups()
    part, tools = bound(policy())
    held_signals = Signals.of(forest, part.compute(forest, Signals.of(forest), tools))
    rows = torch.tensor([8, 9, 2])
    subset = held_signals.select(forest, rows)
    for name in part.provides:
        kept_value = held_signals[name][forest.entries_of(rows)]
        assert torch.equal(subset[name].nan_to_num(nan=-1.0), kept_value.nan_to_num(nan=-1.0))
    assert subset["teacher_ids"].shape[1] == 4 and subset["teacher_logprob"].shape[1] == 5


def test_nobody_to_learn_from() -> None:
    forest = groups().select(torch.tensor([4, 5, 6]))
    part, tools = bound(policy())
    actual = part.compute(forest, Signals.of(forest), tools)
    n = forest.n_entries
    assert {k: tuple(v.shape) for k, v in actual.items()} == {
        "teacher_ids": (n, 1), "teacher_logprob": (n, 2), "teacher_entropy": (n,)
    }  # fmt: skip
    assert bool(actual["teacher_entropy"].isnan().all())


# ---------------------------------------------------------------- how it follows
def push(learner: TorchLearner, forest: Forest) -> None:
    learner.step(forest, lambda x: -x["logprob"].sum())


@pytest.mark.parametrize("options", [{}, {"lora": LoraSettings(rank=2)}, {"value_heads": ("value",)}])
def test_the_teacher_is_an_average_of_the_policy(options) -> None:
    forest, learner = groups(), policy(**options)
    part, tools = bound(learner, rate=0.05)
    expected = [x.clone() for n, x in learner.snapshot().items() if not n.startswith("value_head")]
    for _ in range(3):
        push(learner, forest)
        assert part.learn(forest, Signals.of(forest), tools) == {}
        now = [x for n, x in learner.snapshot().items() if not n.startswith("value_head")]
        expected = [0.95 * t + 0.05 * s for t, s in zip(expected, now, strict=True)]
    actual = list(part.model.snapshot().values())
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(actual, expected, strict=True))
    assert any(float((a - b).abs().max()) > 1e-3 for a, b in zip(actual, now, strict=True))


def test_the_ends_of_the_rate() -> None:
    forest, learner = groups(), policy()
    still, tools = bound(learner, rate=0.0)
    close, _ = bound(learner, rate=1.0)
    start = learner.outputs(forest)["logprob"]
    push(learner, forest)
    for part in (still, close):
        part.learn(forest, Signals.of(forest), tools)
    assert torch.equal(still.model.outputs(forest)["logprob"], start)
    assert torch.equal(close.model.outputs(forest)["logprob"], learner.outputs(forest)["logprob"])


def test_a_restored_teacher_goes_on_alike() -> None:
    forest, learner = groups(), policy()
    part, tools = bound(learner)
    for _ in range(2):
        push(learner, forest)
        part.learn(forest, Signals.of(forest), tools)
    other, _ = bound(policy(seed=7))
    other.load_tensors({k: v.clone() for k, v in part.tensors().items()})
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    push(learner, forest)
    for one in (part, other):
        one.learn(forest, Signals.of(forest), tools)
    assert all(torch.equal(a, b) for a, b in zip(part.tensors().values(), other.tensors().values(), strict=True))
    a, b = (one.compute(forest, Signals.of(forest), tools) for one in (part, other))
    assert all(torch.equal(a[k].nan_to_num(nan=9.0), b[k].nan_to_num(nan=9.0)) for k in a)
    with pytest.raises(CheckpointError, match="is it of this model"):
        other.load_tensors({"wrong": torch.zeros(1)})


def test_what_is_wrong_is_said() -> None:
    unread = [{"template": x} for x in ("{prompt}", "{prompt}{solution}{more}", "{prompt", "{}")] + [
        {"hidden_pattern": "("}
    ]
    for wrong in ({"rate": 1.5}, {"top_k": 0}, {"rollouts": "some"}, *unread):
        with pytest.raises(ConfigError, match="self_teacher"):
            SelfTeacher(**wrong)  # type: ignore[arg-type]
    with pytest.raises(GxpoError, match="bind"):
        _ = SelfTeacher().model
    part, tools = bound(policy())
    forest = groups()
    with pytest.raises(GxpoError, match="needs verdicts"):
        part.compute(forest.replace(success=torch.full_like(forest.success, torch.nan)), Signals.of(forest), tools)
    with pytest.raises(ModelError, match="of its own kind"):
        TorchLearner(clean_llama(num_hidden_layers=1), lr=0.0).follow(policy(), 0.5)


# ---------------------------------------------------------------- in a run
def parity(completion: str) -> dict[str, float]:
    return {"correct": float(sum(map(ord, completion)) % 2)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
@pytest.mark.parametrize("name", ["sdpo_self", "srpo_routing"])
def test_two_steps_move_the_policy_and_the_teacher_after_it(name, tmp_path) -> None:
    keys = {"tasks.per_step": 4, "rollout.group_size": 4, "sampling.max_new_tokens": 6, "eval.tasks": 4,
            "update.minibatches": 2}  # fmt: skip
    run = gxpo.train("tiny:cold", "arithmetic", name, 2, lambda completion: parity(completion), out=tmp_path, set=keys)
    assert run.metrics[0]["weights_fingerprint"] != run.metrics[1]["weights_fingerprint"]
    for row in run.metrics:
        assert row["grad_norm"] > 0 and 0 < row["taught_share"] <= 1
        assert row["teacher_divergence"] > 0 and row["teacher_entropy"] > 0
    trainer = run.trainer
    teacher, own_snapshot = trainer.method.signals["self_teacher"].model.snapshot(), trainer.learner.snapshot()
    assert all(bool(x.isfinite().all()) for x in own_snapshot.values())
    far = max(float((teacher[n] - own_snapshot[n]).abs().max()) for n in own_snapshot)
    assert far > 0 and {f"signal/self_teacher/{n}" for n in own_snapshot} == set(trainer.method.tensors())


# ---------------------------------------------------------------- a task in other words
def session(**fields: Any) -> Session:
    rollout_session = Session(
        source=SimpleNamespace(draw=lambda n, step: []), engine=None, rewards=None, tokenizer=None, sampling=Sampling(),  # type: ignore[arg-type]  # it needs none of them
        seed=0, step=1, chat=Letters(), **fields,
    )  # fmt: skip
    chat = (
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "."},
        {"role": "user", "content": "q"},
    )
    rollout_session.know([Task("text", "1+2="), Task("chat", chat), Task("ids", (5, 6))])
    return rollout_session


def test_a_task_is_asked_in_other_words() -> None:
    asked_reword, fields = session().reword, {"solution": "3 {or} so"}
    assert asked_reword("text", "{prompt}", {}) == encoded("1+2=")
    assert asked_reword("text", "{prompt} ({solution})", fields) == encoded("1+2= (3 {or} so)")
    assert asked_reword("chat", "{prompt} ({solution})", fields) == encoded("first.q (3 {or} so)")
    assert (
        asked_reword("ids", "{prompt} ({solution})", fields) is None
        and asked_reword("unheard of", "{prompt}", {}) is None
    )
    assert session(envs=object()).reword("text", "{prompt}", {}) is None  # an episode


def grown(*texts: str, context: str = "1+2=") -> Forest:
    """Attempts at "text" of one group, the second and third right."""
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "task": "text",
            "id": str(i),
            "prompt": list(encoded(context)),
            "turns": [{"action": list(encoded(text)), "logprob": [-1.0] * len(text)}],
            "reward": float(i in (1, 2)),
            "success": i in (1, 2),
        }
        for i, text in enumerate(texts)
    ]
    return Forest.from_records(records)


@pytest.mark.parametrize(
    ("fields", "context", "told"),
    [
        ({"template": "{prompt}[{solution}]"}, "1+2=", "1+2=[3]"),
        ({"template": "{prompt}[{solution}]", "hidden_pattern": ""}, "1+2=", "1+2=[<think>x</think> 3]"),
        ({"template": ""}, "1+2=", "1+2=<think>x</think> 31+2="),
        # what stands before the rollouts is not the task's prompt: it can't be put into other words
        ({"template": "{prompt}[{solution}]"}, "a draft, 1+2=", "a draft, 1+2=<think>x</think> 3a draft, 1+2="),
    ],
)
def test_where_the_right_answer_stands(fields: dict[str, str], context: str, told: str) -> None:
    read = []

    class Model:
        def outputs(self, forest: Forest, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
            read.append(forest)
            n = forest.n_entries
            return dict(zip(names, (torch.zeros(n, 1), torch.zeros(n, 2), torch.zeros(n)), strict=True))

    part = SelfTeacher(rollouts="failed", **fields)  # type: ignore[arg-type]
    part.memory["model"] = Model()
    forest = grown("4", "<think>x</think> 3", "three", context=context)
    tools = SignalTools(None, lambda ids: "".join(map(chr, ids)), 0, reword=session().reword)  # type: ignore[arg-type]
    actual = part.compute(forest, Signals.of(forest), tools)
    assert "".join(map(chr, written_out(read[0], 0))) == told
    assert actual["teacher_entropy"].isfinite().sum() == 1
    used = {chr(t) for t in read[0].token.tolist()}
    assert used == {*told, "4"}  # and nothing else is read
