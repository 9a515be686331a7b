"""Runs over a base in NF4: adapters alone in checkpoints, equal bits after resume, verify, export; settings refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("bitsandbytes")
from tests.models.test_nf4 import SIZES
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.models import nf4
from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.models import character_tokenizer, load, tiny_model
from gxpo.training.preflight import check_base
from gxpo.training.verify import verify

REWARD = f"{Path(__file__).with_name('parity_reward.py')}:parity"
KEYS = {
    "tasks.per_step": 2, "rollout.group_size": 3, "sampling.max_new_tokens": 5, "eval.every": 0, "eval.tasks": 2,
    "doctor.every": 0, "trainer.checkpoint_every": 1, "trainer.rollouts_every": 1, "trainer.keep_checkpoints": 9,
    "optim.lr": 1e-2, "objective.kl.coef": 0.1, "learner.base": "nf4", "learner.lora_rank": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny_model(3, **SIZES).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return path


def train(folder, out, steps, watch=None):
    return gxpo.train(str(folder), "arithmetic", "grpo", steps, REWARD, out=out, progress="none", set=KEYS, watch=watch)


def lines(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


@pytest.mark.slow
def test_a_run_is_stored_resumed_verified_and_exported(folder, tmp_path):
    whole = train(folder, tmp_path / "whole", 3)
    train(folder, tmp_path / "cut", 3, watch=lambda row: row["step"] == 2)
    resumed = gxpo.resume(tmp_path / "cut")
    for row, expected in zip(lines(resumed.path), lines(whole.path), strict=True):
        assert {k: v for k, v in row.items() if v != expected[k]} == {} and row["grad_norm"] > 0
    tensors = load_file(whole.path / "checkpoints" / "step-000003" / "tensors.safetensors")
    assert all("lora_" in name for name in tensors)
    settings = (whole.path / "config.yaml").read_text()
    assert "nf4" in settings and "bitsandbytes" in settings
    assert verify(whole.path).verdict == "equal"

    with pytest.raises(CheckpointError, match=r"trained over learner.base=nf4: set learner.base=nf4"):
        gxpo.train(from_run=whole.path, steps=1, set={"learner.base": None}, out=tmp_path / "dense")

    # merged: the numbers that products read, and the adapters on top
    directory = whole.save_pretrained(tmp_path / "merged")
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    assert "LoRA, merged into what its linear layers in nf4 compute with" in (directory / "README.md").read_text()
    merged = AutoModelForCausalLM.from_pretrained(directory)
    base = nf4.layers_of(load(str(folder), task="arithmetic", base="nf4").model)
    name = "model.layers.1.mlp.down_proj"
    a, b = (tensors[f"parameter/base_model.model.{name}.lora_{x}.default.weight"] for x in "AB")
    expected = nf4.values_of(base[name].weight) + 16.0 / 4 * b @ a
    assert torch.allclose(merged.get_submodule(name).weight, expected, atol=1e-6)

    # the adapter alone, over the same base again
    adapter = whole.save_pretrained(tmp_path / "adapter", adapter=True)
    with pytest.raises(ModelError, match=r"trained over .* in nf4.*: gxpo export RUN DIR, without --adapter"):
        load(str(adapter), task="arithmetic")
    assert "load it over those" in (adapter / "README.md").read_text()
    quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    bare = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantisation, device_map={"": "cpu"})
    bare.load_adapter(str(adapter))
    ids, learner = torch.arange(9)[None], whole.trainer.learner
    with torch.no_grad():
        logits = learner.model(ids).logits
        assert torch.allclose(merged(ids).logits, logits, atol=1e-4)
        assert torch.allclose(bare.train()(ids).logits, logits, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "keys",
    [
        {"learner.dtype": "bfloat16"},
        {"learner.recompute": True},
        {"learner.layout": "flat", "learner.kernels": "transformers"},
        {"learner.lora_targets": ["q_proj", "v_proj"]},
        {"async.max_staleness": 1, "weight.mismatch": "truncated"},
        {"method": "gae"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_other_settings_train_over_nf4(folder, tmp_path, keys):
    keys = {k: v for k, v in (KEYS | keys).items() if not (keys.get("method") and k.startswith("rollout.group"))}
    method = keys.pop("method", "grpo")
    run = gxpo.train(str(folder), "arithmetic", method, 2, REWARD, out=tmp_path / "run", progress="none", set=keys)
    assert [row["step"] for row in run.metrics] == [1, 2] and all(row["grad_norm"] > 0 for row in run.metrics)
    assert all((row["sampler_gap"] or 0.0) < 0.2 for row in run.metrics)  # None: of earlier weights


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"learner.lora_rank": 0}, "learner.lora_rank=0, which trains every weight: set learner.lora_rank=16"),
        ({"learner.dtype": "float64"}, "set bfloat16 or float32"),
        ({"model": "flow"}, "model flow, which denoises"),
        ({"cluster.backend": "fsdp"}, "cluster.backend=fsdp: set cluster.backend=local"),
        ({"sampling.engine": "vllm"}, "sampling.engine=vllm, which is sent merged weights"),
    ],
)
def test_what_a_base_in_nf4_can_not_have_is_refused_in_a_line(keys, words):
    keys = {"model": "smollm2-135m", "learner.base": "nf4", "learner.lora_rank": 4, **keys}
    settings = config.resolve({key: SettingValue(value, "test") for key, value in keys.items()}).settings
    with pytest.raises(ConfigError) as error:
        check_base(settings)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_float16_is_refused_with_what_to_use():
    with pytest.raises(ConfigError, match=r"learner.dtype: float16 needs a scale of the loss"):
        config.resolve({"model": SettingValue("tiny:cold", "test"), "learner.dtype": SettingValue("float16", "test")})
