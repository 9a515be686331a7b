"""Launches of TRL and ms-swift: their words, the files that they name, and the number of processes."""

from pathlib import Path

import pytest

from gxpo.adapters.convert import convert_trl
from gxpo.base.errors import ConfigError

SCRIPT = """
import argparse
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--lr", type=float, default=1e-5)
args = parser.parse_args()
GRPOTrainer(args.model, None, GRPOConfig(learning_rate=args.lr, max_steps=4), None).train()
"""


def test_a_script_gets_the_words_and_processes_of_its_launch(here):
    Path("train.py").write_text(SCRIPT)
    Path("run.sh").write_text(
        "LR=${LR:-3e-5}\naccelerate launch --num_processes 4 --mixed_precision bf16 \\\n"
        '  train.py --model org/base --lr "$LR"\n'
    )
    actual = convert_trl("run.sh")
    assert (actual.keys["model"], actual.keys["optim.lr"], actual.keys["tasks.per_step"]) == ("org/base", 3e-5, 4)
    assert actual.origins["tasks.per_step"].endswith("4 processes")
    assert "unless" not in actual.origins["optim.lr"]


def test_a_word_that_the_caller_sets_is_open(here):
    Path("train.py").write_text(SCRIPT)
    Path("run.sh").write_text("python train.py --model $MODEL\n")
    actual = convert_trl("run.sh")
    assert "$MODEL" in actual.open["model"] and actual.keys["optim.lr"] == 1e-5
    assert any("--processes" in message for _, message in actual.notes)


def test_words_of_trl_grpo_come_before_its_file(here):
    Path("c.yaml").write_text("model_name_or_path: org/base\nlearning_rate: 1.0e-6\nmax_steps: 4\n")
    actual = convert_trl(
        "trl grpo --config c.yaml --learning_rate 2e-6 --reward_funcs accuracy_reward --dataset_name a/b"
    )
    assert (actual.keys["model"], actual.keys["optim.lr"], actual.keys["trainer.steps"]) == ("org/base", 2e-6, 4)
    assert actual.keys["reward"] == "math" and not actual.open
    assert actual.origins["trainer.steps"] == "max_steps, line 3 of c.yaml"


def test_a_launch_of_rloo_has_its_defaults(here):
    actual = convert_trl("trl rloo --model_name_or_path org/base --max_steps 2")
    assert (actual.keys["method"], actual.keys["rollout.group_size"]) == ("rloo@trl", 2)


def test_ms_swift_has_its_own_names_and_defaults(here):
    Path("run.sh").write_text(
        "CUDA_VISIBLE_DEVICES=0 swift rollout --model org/base &\n"
        "NPROC_PER_NODE=2 \\\nswift rlhf --rlhf_type grpo --model org/base --dataset 'org/data:main#500' \\\n"
        "  --reward_funcs accuracy external_f1 --reward_weights 1 0.5 --num_generations 4 --max_steps 6 \\\n"
        "  --per_device_train_batch_size 4 --stop_words '</a>' --enable_thinking false --overlong_filter true\n"
    )
    actual = convert_trl("run.sh")
    expected = {
        "model": "org/base", "task": "dataset:org/data", "tasks.options.config": "main", "rollout.group_size": 4,
        "scoring.weights": {"math": 1.0, "my_rewards.py:external_f1": 0.5}, "tasks.per_step": 2, "trainer.steps": 6,
        "optim.lr": 1e-4, "optim.weight_decay": 0.1, "optim.betas": [0.9, 0.95], "optim.schedule": "cosine",
        "objective.kl.coef": 0.04, "objective.aggregate": "sequence_mean", "sampling.temperature": 0.9,
        "sampling.stop": ["</a>"], "chat.kwargs": {"enable_thinking": False}, "learner.lora_rank": 8,
    }  # fmt: skip
    assert {key: actual.keys[key] for key in expected} == expected
    assert actual.origins["optim.lr"] == "learning_rate, ms-swift's default" and not actual.open
    text = "\n".join(note for _, note in actual.notes)
    assert "500 rows of the data" in text and "cut-off completions" in text


def test_methods_of_ms_swift_that_were_not_read_are_open(here):
    words = "swift rlhf --rlhf_type grpo --model m/n --dataset a/b --reward_funcs accuracy --max_steps 1"
    for more in ("--advantage_estimator rloo", "--loss_type fipo", "--chord_sft_dataset x/y", "--teacher_model o/p"):
        assert set(convert_trl(f"{words} {more}").open) == {"method", "tasks.per_step"}


def test_a_command_line_is_longer_than_names_of_files_can_be() -> None:
    datasets = " ".join(f"d{i}" for i in range(1500))
    line = f"swift rlhf --rlhf_type grpo --model some/model --reward_funcs accuracy --dataset {datasets}"
    assert convert_trl(line).keys["model"] == "some/model"


def project(launch):
    """A project whose script is below src/r1, and a launch beside it."""
    script = Path("project/src/r1/open/train.py")
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    Path("project/scripts").mkdir()
    Path("project/scripts/run.sh").write_text(launch)
    return convert_trl("project/scripts/run.sh")


@pytest.mark.parametrize(
    ("directory", "is_certain"),
    [
        ("cd src/r1\n", True),
        ("cd src && cd r1 || exit 1\n", True),
        ("cd lib/src/r1\n", False),
        ("cd /home/someone/project/src/r1\n", False),
        ('cd "${PROJECT_HOME}/src/r1"\n', False),
        ('ROOT=$(cd "$(dirname "$0")/.." && pwd)\ncd "$ROOT/src/r1"\n', False),
    ],
)
def test_a_launch_is_followed_to_its_directory(here, directory, is_certain):
    actual = project(f"{directory}torchrun --nproc_per_node=4 open/train.py --model org/base\n")
    assert (actual.keys["model"], actual.keys["optim.lr"]) == ("org/base", 1e-5)
    notes = [message for _, message in actual.notes if "is taken, for its directory" in message]
    assert bool(notes) is not is_certain


def test_a_directory_is_left_with_its_subshell(here):
    with pytest.raises(ConfigError, match=r"open/train\.py: no such file"):
        project("(cd src/r1 && echo there)\npython open/train.py --model org/base\n")


def test_what_is_none_stays_known_where_branches_agree(here):
    """open-r1's end: a checkpoint is resumed or not, and the trainer's adapter is None in both branches."""
    Path("train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config\n"
        "_, training_args, model_args = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()\n"
        "trainer = GRPOTrainer(model_args.model_name_or_path, [len], training_args,\n"
        "                      peft_config=get_peft_config(model_args))\n"
        "if training_args.resume_from_checkpoint is not None:\n"
        "    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)\n"
        "else:\n"
        "    trainer.train()\n"
    )
    Path("run.sh").write_text("torchrun --nproc_per_node=4 train.py --model_name_or_path org/base --max_steps 4\n")
    actual = convert_trl("run.sh")
    assert not [key for key in (*actual.keys, *actual.open) if key.startswith("learner.lora")]
