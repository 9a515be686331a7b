"""A converted configuration computes what TRL's did, passes the plan, and says what it leaves out."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gxpo
from gxpo.adapters.convert import convert_trl
from gxpo.adapters.trl_config import DEFAULTS
from gxpo.base.errors import ConfigError
from gxpo.cli.app import app

SCRIPT = """
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

LR, G = 1e-5, 2 * 4
EXTRA = {"epsilon_high": 0.28, "temperature": 0.9}

def correct(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def main(rate):
    args = GRPOConfig(
        learning_rate=LR,
        num_generations=G,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        loss_type="dr_grpo",
        scale_rewards=False,
        max_steps=20,
        weight_decay=rate,
        seed=chosen(),
        **EXTRA,
    )
    args.beta = 0.04
    GRPOTrainer("Qwen/Qwen2-0.5B-Instruct", correct, args, load_dataset("openai/gsm8k", "main", split="train"))

if __name__ == "__main__":
    main(0.1)
"""


def test_a_script_is_read_with_its_constants_and_never_run(here):
    Path("train.py").write_text("open('it_ran', 'w')\n" + SCRIPT)
    actual = convert_trl("train.py")
    assert not Path("it_ran").exists()
    keys = dict(actual.keys)
    assert keys["model"] == "Qwen/Qwen2-0.5B-Instruct" and keys["task"] == "dataset:openai/gsm8k"
    assert keys["tasks.options.config"] == "main" and keys["reward"] == "train.py:correct"
    assert keys["method"] == "grpo@trl" and keys["objective.aggregate"] == "sequence_sum"
    assert keys["credit.scale"] == "none" and keys["objective.kl.coef"] == 0.04
    assert keys["objective.clip_high"] == 0.28 and keys["sampling.temperature"] == 0.9
    assert (keys["rollout.group_size"], keys["tasks.per_step"], keys["trainer.steps"]) == (8, 4, 20)
    assert keys["optim.lr"] == 1e-5 and keys["optim.weight_decay"] == 0.1
    assert actual.origins["objective.clip_high"] == "epsilon_high, line 24"
    assert actual.open == {"seed": "seed, line 23: `chosen()` is known when the script runs"}
    assert not any("would train" in message for _, message in actual.notes), "it is guarded"


def test_the_printed_configuration_passes_the_plan(here):
    Path("train.py").write_text(SCRIPT.replace("Qwen/Qwen2-0.5B-Instruct", "tiny:cold"))  # the plan looks for the model
    printed = CliRunner().invoke(app, ["convert", "trl", "train.py"])
    assert printed.exit_code == 0 and "seed: ??? # seed, line 22: `chosen()`" in printed.output
    Path("tasks.jsonl").write_text("".join(f'{{"prompt": "{i}", "answer": "{i}"}}\n' for i in range(400)))
    own_text = re.sub(r"^task: .*\n|^tasks.options.*\n", "", printed.output, flags=re.M)  # the data set is on the hub
    filled = own_text.replace("seed: ???", "seed: 3")
    Path("run.yaml").write_text(f"{filled}\ntask: tasks.jsonl\n")
    for command in (["plan", "--no-probe"], ["train", "--dry-run"]):
        planned = CliRunner().invoke(app, [*command, "run.yaml", "--json"])
        assert planned.exit_code == 0, planned.output
        assert json.loads(planned.output)["plan"]["rollouts_per_step"] == 32
    messages = json.loads(CliRunner().invoke(app, ["convert", "trl", "train.py", "--json"]).output)
    assert messages["config"]["trainer.steps"] == 20 and {"where", "what"} == set(messages["not_carried_over"][0])


def test_a_yaml_of_trls_command_line_with_lora_and_its_defaults(resolved):
    Path("c.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2-0.5B\ndataset_name: trl-lib/tldr\nuse_peft: true\nlora_r: 4\n"
        "reward_funcs: [accuracy_reward, think_format_reward]\nreward_weights: [1.0, 0.5]\nbf16: false\n"
        "steps_per_generation: 4\ngradient_accumulation_steps: 2\nper_device_train_batch_size: 8\ntop_k: 20\n"
        "num_iterations: 2\nmax_steps: 100\ngradient_checkpointing: false\n"
    )
    actual = convert_trl("c.yaml")
    keys = dict(actual.keys)
    assert keys["scoring.weights"] == {"math": 1.0, "my_rewards.py:think_format_reward": 0.5}
    assert (keys["update.minibatches"], keys["update.epochs"], keys["trainer.steps"]) == (2, 2, 25)
    assert keys["tasks.per_step"] == 4 and keys["rollout.group_size"] == 8 and keys["sampling.top_k"] == 20
    assert keys["learner.lora_rank"] == 4 and keys["learner.lora_alpha"] == 32.0 and keys["learner.dtype"] == "float32"
    # what TRL does without being told
    assert keys["optim.schedule"] == "linear" and keys["optim.lr"] == 1e-6 and keys["seed"] == 42
    assert keys["sampling.max_new_tokens"] == 512 and actual.origins["optim.lr"] == "learning_rate, TRL's default"
    assert any(at == "line 5" and "think_format_reward" in message for at, message in actual.notes)
    assert resolved(actual).settings.tasks.per_step == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1\n", "a mapping of fields"),
        ("a: [\n", "not YAML"),
        ("loss_type: luspo\nscale_rewards: sideways\n", "scale"),
    ],
)
def test_an_unreadable_configuration_is_a_one_line_error(resolved, text, says):
    Path("c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        resolved(convert_trl("c.yaml"))


def test_batches_without_whole_groups_are_open(here):
    Path("c.yaml").write_text("num_generations: 5\n")
    actual = convert_trl("c.yaml")
    assert "a generation batch of 8 rows holds no whole groups of 5: say --processes" in actual.open["tasks.per_step"]
    actual = convert_trl("c.yaml", processes=5)
    assert actual.keys["tasks.per_step"] == 8 and actual.origins["tasks.per_step"].endswith("5 processes")


def test_the_loss_is_trls_formula(resolved):
    """loss_type dr_grpo without scaling: sum of min(r A, clip(r) A) over all tokens / (rows x length)."""
    Path("c.yaml").write_text(
        "loss_type: dr_grpo\nscale_rewards: none\nepsilon: 0.1\nepsilon_high: 0.3\nmax_completion_length: 6\n"
        "num_generations: 4\nmodel_name_or_path: tiny\nbeta: 0.05\nuse_bias_correction_kl: false\nmax_steps: 2\n"
        "dataset_name: a/b\nreward_funcs: [accuracy_reward]\n"
    )
    method = resolved(convert_trl("c.yaml")).method.fill(horizon=6.0)
    rewards, lengths = [1.0, 0.0, 0.0, 0.5], [2, 3, 6, 1]
    forest = gxpo.Forest.from_completions([[1, 2]], [[list(range(n)) for n in lengths]], rewards=rewards)
    old = torch.linspace(-2.0, -0.5, 12, dtype=torch.float64)
    new, ref = old + torch.linspace(-0.5, 0.5, 12, dtype=torch.float64), old * 0.9
    total, t = 0.0, 0
    for r, n in zip(rewards, lengths, strict=True):
        a = r - sum(rewards) / 4
        for _ in range(n):
            ratio, d = math.exp(new[t] - old[t]), float(ref[t] - new[t])
            total += -min(ratio * a, min(max(ratio, 0.9), 1.3) * a) + 0.05 * (math.exp(d) - d - 1)
            t += 1
    policy = gxpo.PolicyTokens(new, old, reference_logprob=ref)
    assert float(method.loss(forest, policy).value) == pytest.approx(total / (4 * 6), abs=1e-12)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
def test_the_defaults_are_those_of_the_installed_trl(tmp_path):
    import dataclasses

    trl = pytest.importorskip("trl")
    defaults = {f.name: f.default for f in dataclasses.fields(trl.GRPOConfig)}
    theirs = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    for name, value in DEFAULTS.items():
        if name in ("bf16", "output_dir", "report_to", "gradient_checkpointing", "warmup_ratio"):
            continue  # set in __post_init__, by where it runs, or a field of former versions
        default = defaults[name] if defaults[name] is not dataclasses.MISSING else getattr(theirs, name)
        assert default == value or getattr(default, "value", default) == value, name


ADAPTED = """
from trl import GRPOConfig
from gxpo.adapters.trl import GRPOTrainer

def correct(completions, answer, **kwargs):
    return [0.0] * len(completions)

args = GRPOConfig(output_dir="outputs/stalled", max_steps=5)
GRPOTrainer("tiny:cold", correct, args, rows(), method="ngrpo", success_at=0.5).train()
"""


def test_a_script_that_uses_our_adapter_keeps_its_method(here):
    Path("train.py").write_text(ADAPTED)
    actual = convert_trl("train.py")
    assert (actual.keys["method"], actual.origins["method"]) == ("ngrpo", "line 9")
    assert any("success_at" in message for _, message in actual.notes)


def test_the_output_overwrites_neither_run_nor_script(here):
    """The old run stays readable; importing the script would train; rows made in code are not guessed at."""
    Path("train.py").write_text(ADAPTED)
    actual = convert_trl("train.py")
    assert actual.keys["out"] == "runs/stalled"
    assert actual.keys["reward"] == "my_rewards.py:correct" and actual.open.keys() == {"task"}
    assert any("would train" in message for _, message in actual.notes)
