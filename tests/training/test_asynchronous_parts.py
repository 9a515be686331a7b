"""Parts of asynchronous runs: routines and their services, published weights, samples of several versions, records."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
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
from gxpo.training.asynchronous.routines import Call, Cancelled, Rounds, Routine
from gxpo.training.asynchronous.services import Sampler
from gxpo.training.asynchronous.weights import PublishedPolicy


# ---------------------------------------------------------------- routines
def asking(times: int) -> Any:
    """A routine's work: it asks so many times, and gives what it was told."""
    return lambda routine: [routine.ask("sums", "add", routine.owner * 10 + i) for i in range(times)]


def test_calls_that_wait_together_are_served_together() -> None:
    seen: list[list[int]] = []

    def sums(calls: Sequence[Call]) -> None:
        seen.append([call.arguments[0] for call in calls])
        for call in calls:
            call.answer = call.arguments[0] + 100

    rounds = Rounds({"sums": sums}, barrier=True)
    for owner, times in ((1, 3), (2, 1), (3, 2)):
        rounds.add(Routine(owner, asking(times)))
    over: list[Routine] = []
    while rounds.routines:
        over += rounds.round()
    rounds.close()
    assert seen == [[10, 20, 30], [11, 31], [12]]
    assert {r.owner: r.result for r in over} == {1: [110, 111, 112], 2: [120], 3: [130, 131]}


def test_service_error_is_raised_in_the_routines_that_wait() -> None:
    def failing(calls: Sequence[Call]) -> None:
        raise ValueError("no sums today")

    def caught(routine: Routine) -> str:
        try:
            return routine.ask("sums", "add", 1)
        except ValueError as error:
            return str(error)

    rounds = Rounds({"sums": failing}, barrier=True)
    rounds.add(Routine("caught", caught))
    rounds.add(Routine("raised", lambda routine: routine.ask("sums", "add", 1)))
    over: list[Routine] = []
    while rounds.routines:
        over += rounds.round()
    rounds.close()
    assert {r.owner: (r.result, str(r.error)) for r in over} == {
        "caught": ("no sums today", "None"),
        "raised": (None, "no sums today"),
    }


def test_closing_ends_routines_where_they_stand() -> None:
    tidied: list[str] = []

    def work(routine: Routine) -> None:
        try:
            routine.ask("sums", "add", 1)
            routine.ask("sums", "add", 2)
        finally:
            tidied.append("tidied")
            with pytest.raises(Cancelled):
                routine.ask("sums", "add", 3)

    rounds = Rounds({"sums": lambda calls: None}, barrier=True)
    routine = Routine("one", work)
    rounds.add(routine)
    rounds.round()
    rounds.close()
    assert tidied == ["tidied"] and routine.over and isinstance(routine.error, Cancelled)


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


def test_a_published_version_is_that_of_its_time() -> None:
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
    assert set(policy.published) == {1}
    assert not any(p.requires_grad for p in policy.model.parameters())
    with pytest.raises(ModelError, match="no policy 'other'"):
        policy.acting("other")


def test_with_lora_a_version_is_the_adapters_alone() -> None:
    _, learner = learner_of(lora=LoraSettings(2, 4.0, "all-linear"))
    policy = PublishedPolicy(learner)
    policy.publish(0)
    theirs, own = (dict(m.named_parameters()) for m in (learner.model, policy.model))
    trained = {name for name, p in theirs.items() if p.requires_grad}
    assert trained and set(policy.published[0]) == trained
    assert all((own[name] is theirs[name]) == (name not in trained) for name in theirs)


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
    newest, asked = [1], []

    def interrupted() -> bool:
        asked.append(engine.policy_version)
        newest[0] = 2 if len(asked) >= 3 else 1
        return newest[0] > engine.policy_version

    engine.interrupted = interrupted
    group = Group(0, 1, [Task("t", "?")], 2)
    prompts = ((1, 2, 3), (4, 5))
    keys = [StreamKey(0, 1, "t", i) for i in range(4)]
    requests = [Request(prompts[0], tuple(keys[:2])), Request(prompts[1], tuple(keys[2:]))]
    sampling = Sampling(temperature=1.0, max_new_tokens=8, top_k=5)
    call = Call("engine", "sample", (requests, sampling), group)
    Sampler(engine, policy, lambda: newest[0])([call])
    found = [(request.prompt, c) for request, own in zip(requests, call.answer, strict=True) for c in own]
    assert group.version == 1 and any(c.versions for _, c in found)
    for prompt, c in found:
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
    cut = next(c for _, c in found if c.versions).within(2)
    assert cut.versions == () and len(cut.tokens) == 2


# ---------------------------------------------------------------- records
TURN = {"action": [7, 8, 9, 10], "logprob": [-1.0, -2.0, -3.0, -4.0], "policy_version": 3, "versions": [[1, 4], [3, 6]]}
LINE = {"schema": "gxpo.rollouts/1", "group": "g", "id": "g/0", "prompt": [1, 2], "reward": 1.0, "turns": [TURN]}


def test_action_of_several_versions_is_several_nodes_of_a_turn() -> None:
    forest = gxpo.Forest.from_records([LINE])
    acted = [n for n in range(forest.n_nodes) if int(forest.turn[n]) == 0]
    assert [int(forest.policy_version[n]) for n in acted] == [3, 4, 6]
    first = forest.first_token.tolist()
    assert [forest.token[first[n] : first[n + 1]].tolist() for n in acted] == [[7], [8, 9], [10]]
    assert forest.parent[acted].tolist() == [int(forest.prompt_node[0]), *acted[:2]]
    assert forest.n_steps == 1 and forest.path_step.tolist() == [0] * 4
    (again,) = forest.to_records()
    assert again["turns"] == [{"agent": "agent", "policy": "main", **TURN}]


def test_fork_within_a_multi_version_action_round_trips(tmp_path: Path) -> None:
    turn = {"action": [5, 6], "logprob": [-1.0, -1.0], "policy_version": 6, "versions": [[1, 7]]}
    fork = {**LINE, "id": "g/1", "fork": {"of": "g/0", "turn": 0, "token": 2}, "turns": [turn]}
    del fork["prompt"]
    forest = gxpo.Forest.from_records([LINE, fork])
    version = forest.policy_version[forest.token_node[forest.path_token]]
    assert version[forest.path_of(0)].tolist() == [3, 4, 4, 6] and version[forest.path_of(1)].tolist() == [3, 4, 6, 7]
    gxpo.records.dump(forest, tmp_path / "a.jsonl")
    gxpo.records.dump(gxpo.records.load(tmp_path / "a.jsonl"), tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    written = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert written[1]["fork"]["token"] == 2 and written[1]["turns"][0]["versions"] == [[1, 7]]
    flat = gxpo.Forest.from_records(gxpo.records.render(forest, share=False))
    assert flat.policy_version[flat.token_node[flat.path_token]].tolist() == version.tolist()


@pytest.mark.parametrize("versions", [[[0, 4]], [[2, 4], [1, 5]], [[4, 5]]])
def test_versions_that_can_not_be_are_refused(versions: list[list[int]]) -> None:
    with pytest.raises(RecordError, match=r"turns\[0\].versions"):
        gxpo.Forest.from_records([{**LINE, "turns": [{**TURN, "versions": versions}]}])


def test_pieces_of_an_action_keep_their_versions() -> None:
    from gxpo.parts.protocols import Completion

    one = Completion([1, 2], [-1.0, -1.0], "stop", policy_version=3, versions=((1, 4),))
    two = Completion([3], [-1.0], "stop", policy_version=5)
    made = action(one, two)
    assert made["policy_version"] == 3 and made["versions"] == [[1, 4], [2, 5]]
    assert "versions" not in action(two)
