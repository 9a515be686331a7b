"""Templates of commands: stand-ins of four trainers take the words of each as theirs does, and print its log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gxpo.compare.trial import Trial, result_of, run, trouble_of
from gxpo.compare.trial_arms import arms_of, templates

# Each refuses what it does not know, as the trainer does. The reward rises by .01 a step where the override is given.
STAND_IN = """
import argparse, pathlib, sys

trainer, rate_key, *words = sys.argv[1:]
if trainer in ("verl", "skyrl"):
    options = dict(word.split("=", 1) for word in words)
else:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in OPTIONS[trainer]:
        parser.add_argument(f"--{name}")
    options = {k: v for k, v in vars(parser.parse_args(words)).items() if v is not None}
unknown = [k for k in options if k not in (*OPTIONS[trainer], rate_key)]
assert not unknown, f"unknown: {unknown}"
missing = [k for k in REQUIRED[trainer] if k not in options]
assert not missing, f"missing: {missing}"
steps = int(options.get(REQUIRED[trainer][0], 10)) if trainer != "openrlhf" else 10
gain = 0.01 if rate_key in options else 0.0
for step in range(1, steps + 1):
    reward = 0.2 + gain * step
    if trainer == "verl":
        print(f"(TaskRunner pid=1) step:{step} - actor/pg_loss:0.01 - actor/lr:1e-06 - critic/score/mean:{reward}")
    elif trainer == "skyrl":
        print(f"(skyrl_entrypoint pid=1) INFO | tracking:log:180 - Step {step}: ")
        print(f"(skyrl_entrypoint pid=1) {{'generate/avg_num_tokens': '210.2', 'policy/policy_loss': '0.0100',")
        print(f"(skyrl_entrypoint pid=1)  'reward/avg_raw_reward': '{reward:.4f}'}}")
    elif trainer == "openrlhf":
        figures = {"policy_loss": 0.01, "actor_lr": 5e-07, "rollout/reward_mean": reward, "response_length": 41.0}
        print(f"INFO 08-13 10:00:00 ppo_trainer.py:547] Global step {step}: {figures}")
    else:
        logs = pathlib.Path(options["output_dir"]) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "orchestrator.log").open("a") as file:
            print(f"12:00:01 SUCCESS Step {step} | Time 13.04s | Reward {reward:.4f} | Seq. Length 396.8", file=file)
"""
OPTIONS = {
    "verl": ["trainer.total_training_steps", "data.seed", "trainer.save_freq", "trainer.logger",
             "trainer.default_local_dir"],
    "skyrl": ["trainer.max_training_steps", "trainer.seed", "trainer.logger", "trainer.ckpt_path",
              "trainer.ckpt_interval"],
    "prime-rl": ["max-steps", "orchestrator.seed", "output-dir", "trainer.optim.lr"],
    "openrlhf": ["seed", "save_steps", "save_path", "ckpt_path", "actor_learning_rate"],
}  # fmt: skip
REQUIRED = {
    "verl": ["trainer.total_training_steps", "data.seed"],
    "skyrl": ["trainer.max_training_steps", "trainer.seed"],
    "prime-rl": ["max_steps", "orchestrator.seed", "output_dir"],
    "openrlhf": ["seed", "save_path"],
}
RATES = {
    "verl": "actor_rollout_ref.actor.optim.lr",
    "skyrl": "trainer.policy.optimizer_config.lr",
    "prime-rl": "trainer.optim.lr",
    "openrlhf": "actor_learning_rate",
}


def made(folder: Path, trainer: str) -> Trial:
    known_names = {t: [o.replace("-", "_") for o in names] + names for t, names in OPTIONS.items()}
    text = STAND_IN.replace("for name in OPTIONS", "for name in NAMES")
    head = f"OPTIONS, NAMES, REQUIRED = {known_names!r}, {OPTIONS!r}, {REQUIRED!r}\n"
    (folder / "trainer.py").write_text(head + text)
    launcher = folder / "run.sh"
    launcher.write_text(f'exec {sys.executable} {folder}/trainer.py {trainer} {RATES[trainer]} "$@"\n')
    template = templates()[trainer]
    command = template["command"].replace("{script}", str(launcher))
    arms = arms_of([f"{RATES[trainer]}=1e-6"], None)
    return Trial(arms, range(1), 10, folder / "out", command=command, override=template["override"])


@pytest.mark.parametrize("trainer", OPTIONS)
def test_trainer_takes_the_words_and_its_log_is_read(tmp_path: Path, trainer: str) -> None:
    trial = made(tmp_path, trainer)
    run(trial)
    base, arm = (result_of(trial, a, 0) for a in trial.arms)
    assert (trouble_of(Path(base.path)), trouble_of(Path(arm.path))) == ("", "")
    assert base.end == pytest.approx(0.2)
    # ten steps: the last tenth is the last one, .2 + 10 x .01
    assert arm.end == pytest.approx(0.3) and arm.points[-1].step == 10


def test_unknown_key_of_another_trainer_costs_its_arm(tmp_path: Path) -> None:
    trial = made(tmp_path, "verl")
    trial = Trial(arms_of(["actor.lrr=1"], None), range(1), 10, tmp_path / "more", command=trial.command)
    run(trial)
    message = "the command ended with exit code 1 (AssertionError: unknown: ['actor.lrr']): see "
    assert trouble_of(trial.path(trial.arms[1], 0)).startswith(message)
    assert trouble_of(trial.path(trial.arms[0], 0)) == ""
