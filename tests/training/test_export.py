"""Leaving: what is exported answers as the trained policy does, and the live one is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.parity_reward import any_digit

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training import config, export, models
from gxpo.training.start import parameters_of

SMALL = {
    "tasks.per_step": 2,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 8,
    "eval.tasks": 3,
    "optim.lr": 0.01,
    "trainer.checkpoint_every": 1,
}
PROMPTS = ("12+34=", "99+1=", "4+5=")


def run(out: Path, steps: int = 3, **more: Any) -> gxpo.Run:
    return gxpo.train("tiny:cold", "arithmetic", "grpo", steps, any_digit, out=out, set={**SMALL, **more})


def greedy(model: Any, tokenizer: Any) -> list[list[int]]:
    engine = TorchEngine(model, tokenizer)
    actual = []
    for prompt in PROMPTS:
        request = Request(tuple(tokenizer.encode(prompt)), (StreamKey(0, 0, prompt, 0),))
        actual.append(engine.sample([request], Sampling(temperature=0.0, max_new_tokens=12))[0][0].tokens)
    return actual


def loaded(directory: Path, dtype: str = "float32") -> models.LoadedModel:
    return models.load(str(directory), task="arithmetic", dtype=dtype)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> gxpo.Run:
    return run(tmp_path_factory.mktemp("full") / "run")


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> gxpo.Run:
    return run(tmp_path_factory.mktemp("lora") / "run", **{"learner.lora_rank": 4})


@pytest.mark.slow
def test_full_training_gives_the_trained_weights_and_answers(full: gxpo.Run, tmp_path: Path) -> None:
    directory = export.export(full.path, tmp_path / "model")
    other = loaded(directory)
    trained = dict(full.trainer.learner.model.named_parameters())
    assert trained.keys() == dict(other.model.named_parameters()).keys()
    assert all(torch.equal(p, trained[name]) for name, p in other.model.named_parameters())
    start = models.load("tiny:cold", task="arithmetic").model
    assert any(not torch.equal(p, trained[name]) for name, p in start.named_parameters())
    assert greedy(other.model, other.tokenizer) == greedy(full.trainer.learner.model, full.trainer.tokenizer)
    assert {p.name for p in directory.iterdir()} == {
        "README.md", "config.json", "generation_config.json", "gxpo.yaml", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    config = (full.path / "config.yaml").read_text()
    assert (directory / "gxpo.yaml").read_text() == config.replace("run:rewards.py", f"{full.path}/rewards.py")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_lora_is_merged_and_the_live_model_is_left_alone(lora: gxpo.Run, tmp_path: Path) -> None:
    learner = lora.trainer.learner
    before, crc = greedy(learner.model, lora.trainer.tokenizer), learner.fingerprint()
    names = [name for name, _ in learner.model.named_modules()]
    directory = lora.save_pretrained(tmp_path / "model")
    other = loaded(directory)
    assert not any("lora" in name for name, _ in other.model.named_modules())
    assert not any(p.name.startswith("adapter") for p in directory.iterdir())
    assert greedy(other.model, other.tokenizer) == before
    assert [name for name, _ in learner.model.named_modules()] == names and learner.fingerprint() == crc
    assert greedy(learner.model, lora.trainer.tokenizer) == before
    # W + (alpha / rank) B A, by hand for one layer
    wrapped = learner.model.base_model.model.model.layers[0].mlp.down_proj
    a, b = (getattr(wrapped, x)["default"].weight for x in ("lora_A", "lora_B"))
    expected = wrapped.base_layer.weight + 16.0 / 4 * b @ a
    assert not torch.equal(expected, wrapped.base_layer.weight)
    assert torch.allclose(other.model.model.layers[0].mlp.down_proj.weight, expected, atol=1e-6)


@pytest.mark.slow
def test_an_adapter_is_what_peft_loads(lora: gxpo.Run, full: gxpo.Run, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    directory = export.export(lora.path, tmp_path / "adapter", adapter=True)
    assert (directory / "adapter_model.safetensors").is_file() and not (directory / "model.safetensors").exists()
    assert "library_name: peft" in (directory / "README.md").read_text()
    base = models.load("tiny:cold", task="arithmetic").model
    model = peft.PeftModel.from_pretrained(base, str(directory)).eval()
    assert greedy(model, lora.trainer.tokenizer) == greedy(lora.trainer.learner.model, lora.trainer.tokenizer)
    with pytest.raises(ConfigError, match="has no adapter"):
        export.export(full.path, tmp_path / "none", adapter=True)
    with pytest.raises(ModelError, match=r"adapter_config.json: an adapter that names no base model: merge it first"):
        loaded(directory)


@pytest.mark.slow
def test_an_adapter_names_its_base(full: gxpo.Run, tmp_path: Path) -> None:
    base = export.export(full.path, tmp_path / "base")
    tuned = gxpo.train(
        str(base), "arithmetic", "grpo", 1, any_digit, out=tmp_path / "run", set={**SMALL, "learner.lora_rank": 2}
    )
    directory = tuned.save_pretrained(tmp_path / "adapter", adapter=True)
    assert json.loads((directory / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(str(directory)).eval()
    assert greedy(model, tuned.trainer.tokenizer) == greedy(tuned.trainer.learner.model, tuned.trainer.tokenizer)


def test_an_exported_model_starts_a_run_where_the_old_one_stood(full: gxpo.Run, tmp_path: Path) -> None:
    directory = full.save_pretrained(tmp_path / "model")
    new = gxpo.train(str(directory), "arithmetic", "grpo", 1, any_digit, out=tmp_path / "new", set=SMALL)
    started, left = parameters_of(new.path, 0), parameters_of(full.path)
    assert started.keys() == left.keys() and all(torch.equal(started[name], left[name]) for name in left)


def test_an_older_step_and_another_dtype(full: gxpo.Run, tmp_path: Path) -> None:
    older = loaded(export.export(full.path, tmp_path / "older", step=2))
    parameters = parameters_of(full.path, 2)
    assert all(torch.equal(p, parameters[name]) for name, p in older.model.named_parameters())
    assert "# tiny:cold after 2 steps" in (tmp_path / "older" / "README.md").read_text()
    half = export.export(full.path, tmp_path / "half", dtype="bfloat16")
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    newest = parameters_of(full.path)
    actual = loaded(half, "bfloat16").model.named_parameters()
    assert all(torch.equal(p, newest[name].to(torch.bfloat16)) for name, p in actual)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7; there is 2, 3"):
        export.export(full.path, tmp_path / "seven", step=7)
    with pytest.raises(ConfigError, match="float8"):
        export.export(full.path, tmp_path / "eight", dtype="float8")


@pytest.mark.slow
def test_a_bfloat16_run_exports_what_it_samples_with(tmp_path: Path) -> None:
    trained = run(tmp_path / "run", 1, **{"learner.dtype": "bfloat16", "learner.lora_rank": 2})
    merged = loaded(trained.save_pretrained(tmp_path / "model"), "bfloat16")
    assert {p.dtype for p in merged.model.parameters()} == {torch.bfloat16}
    adapter = trained.save_pretrained(tmp_path / "adapter", adapter=True)
    from safetensors.torch import load_file

    live = dict(trained.trainer.learner.model.named_parameters())
    for name, x in load_file(adapter / "adapter_model.safetensors").items():
        assert torch.equal(x, live[name.replace(".weight", ".default.weight")]), name


def test_the_card(full: gxpo.Run, tmp_path: Path) -> None:
    text = (export.export(full.path, tmp_path / "model") / "README.md").read_text()
    for line in ("@misc{grpo,", "arXiv 2402.03300", "Evidence: paper", "| `optim.lr` | `0.01` |", "torch 2"):
        assert line in text, line
    first, last = full.evaluations[0], full.evaluations[-1]
    for row in (first, last):
        low, high = row["eval_low"], row["eval_high"]
        assert f"| {row['step']} | {row['eval_accuracy']:.3f} | {low:.3f} to {high:.3f} | 3 |" in text
    assert "base_model:" not in text  # no id of the hub


def test_a_template_of_the_run_goes_with_the_tokenizer(full: gxpo.Run, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    keys = config.read(full.path / "config.yaml") | {"chat.template": config.SettingValue(str(template), "--set")}
    parameters = parameters_of(full.path)
    _, tokenizer = export.load_trained(config.resolve(keys).settings, parameters)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


# ---------------------------------------------------------------- what can go wrong
def test_what_is_there_is_not_written_over(full: gxpo.Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    export.export(full.path, tmp_path / "model")  # empty: fine
    with pytest.raises(ConfigError, match="not empty"):
        export.export(full.path, tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="file"):
        export.export(full.path, tmp_path / "file")
    with pytest.raises(CheckpointError, match="not a run directory"):
        export.export(tmp_path, tmp_path / "new")


def test_a_full_disk_leaves_nothing(full: gxpo.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("No space left on device\n(os error 28)")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", no_room)
    with pytest.raises(CheckpointError, match=r"not written: No space left on device \(os error 28\); free space"):
        export.export(full.path, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_another_model_under_the_same_name(lora: gxpo.Run, tmp_path: Path) -> None:
    keys = config.read(lora.path / "config.yaml") | {"learner.lora_rank": config.SettingValue(8, "--set")}
    with pytest.raises(ModelError, match=r"checkpoint and model differ: base_model.* \(4, \d+\) in the checkpoint"):
        export.load_trained(config.resolve(keys).settings, parameters_of(lora.path))
