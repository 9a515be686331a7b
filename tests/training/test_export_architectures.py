"""A run on a model of each architecture: the sampler is the learner's policy, what is exported is what was trained."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import PeftModel
from tests.models.decoder.test_architectures import FORKED, RUN, alone, made
from tests.training.parity_reward import any_text
from transformers import AutoModelForCausalLM

import gxpo
from gxpo.bench.random_models import KINDS, Sizes
from gxpo.models.tiny import character_tokenizer
from gxpo.training import export
from gxpo.training.start import checkpoint_of, parameters_of

SMALL = {
    "tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 5, "eval.tasks": 3, "optim.lr": 0.01,
    "trainer.checkpoint_every": 1,
}  # fmt: skip
WIDE = Sizes(100, 32, 48, 4, 4, 2, 12, 256, 4, 4)


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("name", RUN)
@pytest.mark.thorough
def test_trained_exported_and_loaded_again(name, lora, tmp_path):
    went(name, lora, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lora"), [("gemma3", 0), ("phi3", 4)])
def test_some_of_them(name, lora, tmp_path):
    went(name, lora, tmp_path)


def went(name, lora, tmp_path):
    home = tmp_path / "model"
    made(name, WIDE).save_pretrained(home)
    character_tokenizer().save_pretrained(home)
    targets = {"learner.lora_targets": ["q_proj", "v_proj"]} if name == "falcon-h1" and lora else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = gxpo.train(
            str(home), "arithmetic", "grpo", 2, any_text, out=tmp_path / "run",
            set={**SMALL, "learner.lora_rank": lora, **targets},
        )  # fmt: skip
    assert all(row["sampler_gap"] < 3e-5 for row in run.metrics)
    export.export(run.path, tmp_path / "exported")
    actual = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert actual.config.architectures == [KINDS[name].prefix + KINDS[name].kind]
    one = AutoModelForCausalLM.from_pretrained(home).eval()
    before = alone(one, FORKED)["logprob"].detach()
    if lora:
        one = PeftModel.from_pretrained(one, export.export(run.path, tmp_path / "adapter", adapter=True)).eval()
    else:
        trained, listed_parameters = parameters_of(checkpoint_of(run.path, None)), dict(one.named_parameters())
        assert listed_parameters.keys() == trained.keys()
        for key, p in listed_parameters.items():
            p.data.copy_(trained[key])
    expected, logprob = alone(one, FORKED)["logprob"].detach(), alone(actual, FORKED)["logprob"].detach()
    assert float((expected - before).abs().max()) > 1e-3
    assert torch.allclose(logprob, expected, rtol=0, atol=1e-5 if lora else 0)
