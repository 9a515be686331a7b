"""Trials of a change in a user's script: child processes on a stub of TRL, and the table of their runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.thorough import ALL

from gxpo.base.errors import ConfigError
from gxpo.compare.trial import (
    Trial,
    conclude_trial,
    environment_of,
    installed_fields,
    refuse_other,
    run,
)
from gxpo.compare.trial_arms import arms_of

SCRIPT = """
from trl import GRPOConfig, GRPOTrainer

class Mine(GRPOTrainer):
    pass

args = GRPOConfig(output_dir="out", learning_rate=1e-3, num_generations=4)
args.report_to = "wandb"
trainer = Mine("model", print, args)
trainer.train()
open("after.txt", "w").write("what follows training is not run")
"""
ARMS = ("learning_rate=1e-6", "learning_rate=5.0", "beta=0.1")


def make_trial(folder: Path, arms: tuple[str, ...] = ARMS, text: str = SCRIPT, seeds: int = 3, **more: object) -> Trial:
    script = folder / "train.py"
    script.write_text(text)
    fields = ["learning_rate", "beta", "num_generations", "reward_weights"]
    options = {"out": folder / "runs", "steps": 10, **more}
    return Trial(arms_of(arms, fields), range(seeds), script=script, **options)  # type: ignore[arg-type]


def failure(folder: Path, text: str, **more: object) -> str:
    with pytest.raises(ConfigError) as error:
        run(make_trial(folder, ("beta=0.1",), text, seeds=1, **more))
    return str(error.value)


@pytest.mark.slow
def test_better_equal_and_exploding_arms_are_told(folder: Path) -> None:
    lines: list[str] = []
    trial = make_trial(folder)
    run(trial, lines.append)
    outcome = conclude_trial(trial)
    verdicts = {d.arm: d.verdict for d in outcome.comparison.differences}
    # the arms differ from the base by .01 a step, by nothing that a figure shows, and by their gradient alone
    assert verdicts == {"learning_rate=1e-6": "better", "learning_rate=5.0": "undecided", "beta=0.1": "equal"}
    assert outcome.recommended == "learning_rate=1e-6"
    assert outcome.comparison.notes[1].startswith("learning_rate=5.0: the gradient norm explodes: 100 at its largest")
    assert [line.split()[0] for line in lines] == [f"{n}/12" for n in range(1, 13)]
    # seed by seed, with the base first
    assert lines[4].split()[1:4] == ["base", "seed", "1:"]
    end = next(a.end.mean for a in outcome.comparison.arms if a.arm.label == "learning_rate=1e-6")
    assert end == pytest.approx(0.2 + 0.01 * 10, abs=0.02)


def test_script_runs_unchanged_and_writes_nothing_of_its_own(folder: Path) -> None:
    trial = make_trial(folder, ("num_generations=*2",), seeds=1)
    run(trial)
    assert sorted(p.name for p in folder.iterdir()) == ["runs", "train.py"]
    settings = json.loads((trial.path(trial.arms[1], 0) / "args.json").read_text())
    # twice the script's own 4, and what the configuration derives from it
    assert (settings["num_generations"], settings["generation_batch_size"]) == (8, 32)
    assert (settings["report_to"], settings["save_strategy"], settings["seed"]) == ([], "no", 0)
    assert settings["output_dir"].startswith(str(folder / "runs"))
    assert settings["max_steps"] == 1000  # a schedule of the script's own length, of which the trial is the beginning


OTHER = """
import json, sys, time
*lr, steps, seed, out = sys.argv[1:]
gain = 0.01 if lr else 0.0
time.sleep(0.02)
with open(f"{out}/metrics.jsonl", "w") as file:
    for step in range(1, int(steps) + 1):
        noise = 0.001 * ((step * 7 + (3 + len(lr)) * int(seed)) % 5)
        row = {"step": step, "reward": 0.1 + gain * step + noise, "timing_s/step": 0.5, "actor/grad_norm": 1.0}
        file.write(json.dumps(row) + "\\n")
"""
COMMAND = f"{sys.executable} other.py {{overrides}} {{steps}} {{seed}} {{out}}"


def test_killed_trial_of_a_command_has_the_same_table(folder: Path) -> None:
    (folder / "other.py").write_text(OTHER)

    def made(out: str) -> Trial:
        arms = arms_of(["lr=2"], None)
        return Trial(arms, range(3), 20, folder / out, command=COMMAND, sequential=True)

    run(made("whole"))
    process = os.fork()
    if not process:
        try:
            run(made("killed"))
        finally:
            os._exit(0)
    while not (folder / "killed/lr=2/seed-1/job.json").exists():
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert not (folder / "killed/lr=2/seed-1/done.json").exists()
    before = (folder / "killed/lr=2/seed-0/metrics.jsonl").stat().st_mtime_ns
    lines: list[str] = []
    run(made("killed"), lines.append)
    # runs that were finished are not made again
    assert (folder / "killed/lr=2/seed-0/metrics.jsonl").stat().st_mtime_ns == before
    assert not any("seed 0" in line for line in lines)
    whole, again = (conclude_trial(made(out)).comparison for out in ("whole", "killed"))
    assert repr(again.differences) == repr(whole.differences) and again.notes == whole.notes
    assert [d.verdict for d in whole.differences] == ["better"]


@ALL
def test_killed_trial_continues_to_the_same_table(folder: Path) -> None:
    trial = make_trial(folder, ("learning_rate=1e-6",), seeds=2)
    run(trial)
    full_comparison = conclude_trial(trial).comparison
    shutil.rmtree(trial.out)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom tests.compare.test_trial import *\n"
        "run(trial(Path.cwd(), ('learning_rate=1e-6',), seeds=2))"
    )
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", program, root])
    while process.poll() is None and not (trial.out / "base/seed-1/job.json").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = (trial.out / "base/seed-0/metrics.jsonl").stat().st_mtime_ns
    run(trial)
    assert (trial.out / "base/seed-0/metrics.jsonl").stat().st_mtime_ns == before
    again = conclude_trial(trial).comparison
    # as text, since two nan are not equal
    assert repr(again.differences) == repr(full_comparison.differences)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('nothing')", "the script never builds a GRPOTrainer or RLOOTrainer: --command tries other trainers"),
        ("from trl import GRPOTrainer as T\nT()", "the script builds a trainer and never calls its train()"),
        ("from trl import GRPOTrainer as T\nT(), T()", "the script builds two trainers: try one at a time (the second: "
         "train.py line 2)"),
        ("from trl import GRPOTrainer as T, GRPOConfig as C\nT(args=C(max_steps=0)).train()",
         "the training ended before its first step"),
        ("input('model? ')", "the script asks at the terminal, where nobody answers in a trial (EOFError: EOF when "
         "reading a line (train.py line 1))"),
        ("import os\nif not os.fork():\n    from trl import GRPOTrainer as T\n    T()\nos.wait()",
         "the script forks, and trains in the new process: train in the script's own process"),
        ("import os\nfrom trl import GRPOTrainer as T\nt = T()\nif not os.fork():\n    t.train()\nos.wait()",
         "the script forks, and trains in the new process: train in the script's own process"),
        ("open('log.txt', 'w')", "the script writes to log.txt, which a trial leaves alone: --writes DIR allows a "
         "folder"),
        ("import os\nos.makedirs('out/logs')", "the script writes to out, which a trial leaves alone: --writes DIR "
         "allows a folder"),
        ("import subprocess\nsubprocess.run(['accelerate', 'launch', 'x.py'])",
         "the script starts several processes (accelerate launch x.py): try what it starts, in one"),
        ("1 / 0", "ZeroDivisionError: division by zero (train.py line 1)"),
    ],
)  # fmt: skip
def test_script_that_cannot_be_tried_is_one_line(folder: Path, text: str, said: str) -> None:
    assert failure(folder, text) == said
    assert not (folder / "out").exists() and not (folder / "log.txt").exists()


def test_failed_arm_costs_itself(folder: Path) -> None:
    trial = make_trial(folder, ("learning_rate=1e-6", "num_generations=*0.5", "reward_weights=*2"), seeds=1)
    run(trial)
    comparison = conclude_trial(trial).comparison
    why = "the script's own value is None, no number that *2 could change: give a value"
    assert comparison.arm("reward_weights=*2").failed == {0: why}
    assert comparison.arm("learning_rate=1e-6").failed == {}


def test_unknown_metric_names_those_that_there_are(folder: Path) -> None:
    message = failure(folder, SCRIPT, metric="rewards")
    assert message == "--metric rewards: no log has it; did you mean 'reward'? it has reward, grad_norm, learning_rate"


@pytest.mark.slow
def test_folder_of_other_runs_is_refused(folder: Path) -> None:
    run(make_trial(folder, seeds=1))
    with pytest.raises(ConfigError, match="seed-0 was made with steps=10: give another --out"):
        refuse_other(make_trial(folder, seeds=1, steps=20))
    with pytest.raises(ConfigError, match="was made with another version of the script"):
        refuse_other(make_trial(folder, seeds=1, text=f"{SCRIPT}\n"))


@pytest.mark.slow
def test_other_trainers_run_by_a_command(folder: Path) -> None:
    (folder / "other.py").write_text("import sys\n_, steps, seed, out = sys.argv[1:]\n")
    trial = Trial(arms_of(["lr=2"], None), range(3), 20, folder / "runs", command=COMMAND)
    # the base has no override: its word is missing, and the program fails
    with pytest.raises(
        ConfigError, match=r"the command ended with exit code 1 \(ValueError: not enough values.*\): see .*log\.txt"
    ):
        run(trial)
    trial = Trial(arms_of(["lr=2"], None), range(3), 20, folder / "more", command=COMMAND)
    (folder / "other.py").write_text(OTHER)
    run(trial)
    assert [d.verdict for d in conclude_trial(trial).comparison.differences] == ["better"]


def test_children_get_no_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "secret")
    environment = environment_of(tmp_path)
    assert "secret" not in environment.values() and environment["WANDB_MODE"] == "disabled"


def test_fields_are_those_of_the_installed_trl(folder: Path) -> None:
    assert "learning_rate" in installed_fields(sys.executable)
    with pytest.raises(ConfigError, match=r"can't load trl .*No module named 'trl'.*pip install"):
        os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].split(os.pathsep)[1]
        installed_fields(sys.executable)
