"""Frozen roles with the weights of another checkpoint: who samples, what a checkpoint holds, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.models.tiny import character_tokenizer, tiny_model
from gxpo.sampling.rollouts.graph import Graph, Role
from gxpo.sampling.rollouts.team import Team
from gxpo.training import checkpoint

SMALL = {
    "rollout": "team", "rollout.graph": "second_opinion", "rollout.group_size": 2, "tasks.per_step": 2,
    "eval.tasks": 2, "sampling.max_new_tokens": 4, "trainer.rollouts_every": 1,
}  # fmt: skip


def run(path, models, steps=1, **changes):
    keys = {**SMALL, "rollout.models": models, **changes}
    return gxpo.train("tiny:cold", "arithmetic", "grpo", steps=steps, out=str(path), set=keys)


@pytest.fixture
def other(tmp_path):
    """A model directory with the weights of another seed."""
    tiny_model(7).save_pretrained(tmp_path / "other")
    character_tokenizer().save_pretrained(tmp_path / "other")
    return tmp_path / "other"


def distances(path, models, step=1):
    """Largest distance of the recorded log-probs of a role's first action from those of its model: by agent."""
    out = {}
    for line in (path / f"rollouts/step-{step:06d}.jsonl").read_text().splitlines():
        record = json.loads(line)
        context = record.get("prompt")
        for turn in record.get("turns", ()):
            context = turn.get("context", context)
            with torch.no_grad():
                logits = models[turn["agent"]](torch.tensor([[*context, *turn["action"]]])).logits[0].double()
            logprob = logits.log_softmax(-1)[len(context) - 1 : -1]
            own = logprob[range(len(turn["action"])), turn["action"]]
            gap = (own - torch.tensor(turn["logprob"], dtype=torch.float64)).abs().max().item()
            out[turn["agent"]] = max(out.get(turn["agent"], 0.0), gap)
    return out


def test_a_role_speaks_with_the_weights_of_a_directory(tmp_path, other):
    ended = run(tmp_path / "run", {"verifier": str(other)})
    solver, verifier = tiny_model(0), AutoModelForCausalLM.from_pretrained(other)
    gaps = distances(ended.path, {"solver": solver, "verifier": verifier})
    assert set(gaps) == {"solver", "verifier"} and max(gaps.values()) < 1e-4
    turns = [t for line in (ended.path / "rollouts/step-000001.jsonl").open() for t in json.loads(line)["turns"]]
    assert {t["agent"] for t in turns if t.get("trainable", True)} == {"solver"}


def test_a_role_speaks_with_the_weights_of_a_run(tmp_path):
    keys = {"optim.lr": 0.01, "objective.entropy.coef": 1.0}
    first = run(tmp_path / "first", {}, 2, **keys)
    ended = run(tmp_path / "run", {"verifier": str(first.path)})
    verifier = tiny_model(0)
    learned = {n[10:]: x for n, x in load_file(checkpoint.latest(first.path) / "tensors.safetensors").items()}
    verifier.load_state_dict(learned, strict=False)
    assert distances(ended.path, {"solver": tiny_model(0), "verifier": verifier})["verifier"] < 1e-4
    assert distances(ended.path, {"solver": tiny_model(0), "verifier": tiny_model(0)})["verifier"] > 1e-2


def test_a_checkpoint_holds_its_name_and_fingerprint_alone(tmp_path, other):
    path = checkpoint.latest(run(tmp_path / "run", {"verifier": str(other)}).path)
    plain = checkpoint.latest(run(tmp_path / "plain", {}).path)
    assert load_file(path / "tensors.safetensors").keys() == load_file(plain / "tensors.safetensors").keys()
    inputs = checkpoint.state_of(path)["inputs"]
    assert [Path(name).name for name in inputs] == ["model.safetensors"] and len(next(iter(inputs.values()))) == 64


def test_other_weights_than_the_checkpoints_are_refused(tmp_path, other):
    ended = run(tmp_path / "run", {"verifier": str(other)})
    tiny_model(8).save_pretrained(other)
    with pytest.raises(CheckpointError, match=r"changed since the checkpoint of .*other/model\.safetensors"):
        gxpo.resume(ended.path, steps=2)


def test_a_player_is_missing_or_reads_other_tokens(tmp_path, other):
    with pytest.raises(ModelError, match=r"rollout\.models\.verifier: .*gone: no such model directory"):
        run(tmp_path / "run", {"verifier": str(tmp_path / "gone")})
    character_tokenizer("<more>").save_pretrained(other)
    with pytest.raises(ModelError, match=r"rollout\.models\.verifier: .*has another tokenizer than the policy"):
        run(tmp_path / "run", {"verifier": str(other)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": {"critic": "x"}}, r"rollout\.models: the team has no role 'critic'"),
        ({"models": {"a": "x", "b": "y"}}, r"rollout\.models names every role of the team"),
        ({"models": {"b": "x"}, "frozen_roles": ["b"]}, r"rollout\.models: 'b' is in rollout\.frozen_roles, too"),
    ],
)
def test_players_that_contradict_the_team_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Team(graph=Graph((Role("a", answer="{a}"), Role("b"))), **options)


def test_policies_of_players_are_not_the_learners():
    team = Graph((Role("a", answer="{a}"), Role("b"), Role("c")))
    assert Team(graph=team, models={"b": "x"}).policies == {"main": "trained"}
    several = Team(graph=team, models={"b": "x"}, policy="per_role")
    assert several.policies == {"a": "trained", "c": "trained", "b": "frozen"}
