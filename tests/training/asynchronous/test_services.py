"""Services of asynchronous runs: published weights, samples of two versions, and their records."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import gxpo
from gxpo.base.errors import ModelError, RecordError
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.build import action
from gxpo.training import models
from gxpo.training.asynchronous.group import Group
from gxpo.training.asynchronous.routines import Call
from gxpo.training.asynchronous.services import Environments, PublishedPolicy, Sampler, SharedLock


# ---------------------------------------------------------------- weights
def learner_of(**keys: Any) -> tuple[Any, TorchLearner]:
    loaded = models.load("tiny:cold", task="arithmetic", device="cpu", dtype="float32")
    return loaded.tokenizer, TorchLearner(loaded.model, lr=1e-3, **keys)


@torch.no_grad()
def shake(learner: TorchLearner, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    for p in learner.model.parameters():
        if p.requires_grad:
            p += 0.05 * torch.randn(p.shape, generator=noise)


def test_a_published_version_keeps_its_weights() -> None:
    _, learner = learner_of()
    policy = PublishedPolicy(learner)
    policy.publish(0)
    old = copy.deepcopy(learner.model.state_dict())
    shake(learner, 1)
    policy.publish(1)
    for version, weights in ((1, learner.model.state_dict()), (0, old), (1, learner.model.state_dict())):
        policy.use(version)
        assert all(torch.equal(x, weights[name]) for name, x in policy.model.state_dict().items())
    policy.retire({1})
    assert set(policy.tensors_by_version) == {1}
    assert not any(p.requires_grad for p in policy.model.parameters())
    with pytest.raises(ModelError, match="no policy 'other'"):
        policy.acting("other")


def test_with_lora_a_version_has_only_the_adapters() -> None:
    _, learner = learner_of(lora=LoraSettings(2, 4.0, "all-linear"))
    policy = PublishedPolicy(learner)
    policy.publish(0)
    theirs, own_value = (dict(m.named_parameters()) for m in (learner.model, policy.model))
    trained = {name for name, p in theirs.items() if p.requires_grad}
    assert trained and set(policy.tensors_by_version[0]) == trained
    assert all((own_value[name] is theirs[name]) == (name not in trained) for name in theirs)


# ---------------------------------------------------------------- samples of two versions
def test_each_token_has_the_log_prob_of_the_version_that_drew_it() -> None:
    tokenizer, learner = learner_of()
    policy = PublishedPolicy(learner)
    weights = {}
    for version in (1, 2):
        shake(learner, version)
        policy.publish(version)
        weights[version] = copy.deepcopy(learner.model).eval()
    engine = TorchEngine(policy.model, tokenizer, acting=policy.acting)
    newest, asked_policy_versions = [1], []

    def interrupted() -> bool:
        asked_policy_versions.append(engine.policy_version)
        newest[0] = 2 if len(asked_policy_versions) >= 3 else 1
        return newest[0] > engine.policy_version

    engine.should_interrupt = interrupted
    group = Group(0, 1, [Task("t", "?")], 2)
    prompts = ((1, 2, 3), (4, 5))
    keys = [StreamKey(0, 1, "t", i) for i in range(4)]
    requests = [Request(prompts[0], tuple(keys[:2])), Request(prompts[1], tuple(keys[2:]))]
    sampling = Sampling(temperature=1.0, max_new_tokens=8, top_k=5)
    call = Call("engine", "sample", (requests, sampling), group)
    Sampler(engine, policy, lambda: newest[0])([call])
    actual = [(request.prompt, c) for request, own_value in zip(requests, call.answer, strict=True) for c in own_value]
    assert group.version == 1 and any(c.versions for _, c in actual)
    for prompt, c in actual:
        assert c.versions == (((3, 2),) if len(c.tokens) > 3 else ()) and c.policy_version == 1
        assert len(c.tokens) == len(c.logprobs) == len(c.support) <= 8
        assert c.finish == ("length" if len(c.tokens) == 8 else "stop")
        for at, (token, logprob) in enumerate(zip(c.tokens, c.logprobs, strict=True)):
            model = weights[1 if at < 3 else 2]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *c.tokens[:at]]])).logits[0, -1]
            allowed = logits.double().topk(5)
            place = allowed.indices.tolist().index(token)
            assert logprob == pytest.approx(float(allowed.values.log_softmax(0)[place]), abs=1e-5)
    cut = next(c for _, c in actual if c.versions).truncate(2)
    assert cut.versions == () and len(cut.tokens) == 2


# ---------------------------------------------------------------- records
TURN = {"action": [7, 8, 9, 10], "logprob": [-1.0, -2.0, -3.0, -4.0], "policy_version": 3, "versions": [[1, 4], [3, 6]]}
LINE = {"schema": "gxpo.rollouts/1", "group": "g", "id": "g/0", "prompt": [1, 2], "reward": 1.0, "turns": [TURN]}


def test_an_action_of_three_versions_is_nodes_of_one_turn() -> None:
    forest = gxpo.Forest.from_records([LINE])
    acted = [n for n in range(forest.n_nodes) if int(forest.turn[n]) == 0]
    assert [int(forest.policy_version[n]) for n in acted] == [3, 4, 6]
    first = forest.first_token.tolist()
    assert [forest.token[first[n] : first[n + 1]].tolist() for n in acted] == [[7], [8, 9], [10]]
    assert forest.parent[acted].tolist() == [int(forest.prompt_node[0]), *acted[:2]]
    assert forest.n_steps == 1 and forest.path_step.tolist() == [0] * 4
    (again,) = forest.to_records()
    assert again["turns"] == [{"agent": "agent", "policy": "main", **TURN}]


def test_a_fork_within_such_an_action_survives_a_round_trip(tmp_path: Path) -> None:
    turn = {"action": [5, 6], "logprob": [-1.0, -1.0], "policy_version": 6, "versions": [[1, 7]]}
    fork = {**LINE, "id": "g/1", "fork": {"of": "g/0", "turn": 0, "token": 2}, "turns": [turn]}
    del fork["prompt"]
    forest = gxpo.Forest.from_records([LINE, fork])
    version = forest.policy_version[forest.token_node[forest.path_token]]
    assert version[forest.path_of(0)].tolist() == [3, 4, 4, 6] and version[forest.path_of(1)].tolist() == [3, 4, 6, 7]
    gxpo.records.dump(forest, tmp_path / "a.jsonl")
    gxpo.records.dump(gxpo.records.load(tmp_path / "a.jsonl"), tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    saved_datas = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert saved_datas[1]["fork"]["token"] == 2 and saved_datas[1]["turns"][0]["versions"] == [[1, 7]]
    flat = gxpo.Forest.from_records(gxpo.records.render(forest, share=False))
    assert flat.policy_version[flat.token_node[flat.path_token]].tolist() == version.tolist()


@pytest.mark.parametrize("versions", [[[0, 4]], [[2, 4], [1, 5]], [[4, 5]]])
def test_impossible_versions_are_refused(versions: list[list[int]]) -> None:
    with pytest.raises(RecordError, match=r"turns\[0\].versions"):
        gxpo.Forest.from_records([{**LINE, "turns": [{**TURN, "versions": versions}]}])


def test_pieces_of_an_action_keep_their_versions() -> None:
    from gxpo.parts.protocols import Completion

    one = Completion([1, 2], [-1.0, -1.0], "stop", policy_version=3, versions=((1, 4),))
    two = Completion([3], [-1.0], "stop", policy_version=5)
    built_action = action(one, two)
    assert built_action["policy_version"] == 3 and built_action["versions"] == [[1, 4], [2, 5]]
    assert "versions" not in action(two)


# ---------------------------------------------------------------- one lock, one batch
def test_an_exclusive_holder_waits_for_the_others() -> None:
    lock, order = SharedLock(), []
    entered = threading.Event()

    def alone() -> None:
        entered.set()
        with lock.exclusive():
            order.append("alone")

    with lock.shared(), lock.shared():
        thread = threading.Thread(target=alone)
        thread.start()
        assert entered.wait(10)
        order.append("shared")
    thread.join(10)
    assert order == ["shared", "alone"]
    with lock.shared():  # and opens it again
        pass


def test_environments_are_called_once_for_all_groups() -> None:
    calls_made: list[tuple[str, Any]] = []

    class Envs:
        def reset(self, seeds: dict[str, int]) -> dict[str, str]:
            calls_made.append(("reset", dict(seeds)))
            return {name: f"world {seed}" for name, seed in seeds.items()}

        def finish(self, names: list[str]) -> None:
            calls_made.append(("finish", names))

    batch = [
        Call("envs", "reset", ({"0:a": 1},), None),
        Call("envs", "finish", ({"1:b": None},), None),
        Call("envs", "reset", ({"2:c": 3, "2:d": 4},), None),
    ]
    Environments(Envs())(batch)  # type: ignore[arg-type]
    assert calls_made == [("reset", {"0:a": 1, "2:c": 3, "2:d": 4}), ("finish", ["1:b"])]
    assert [call.answer for call in batch] == [{"0:a": "world 1"}, None, {"2:c": "world 3", "2:d": "world 4"}]
