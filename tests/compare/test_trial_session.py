"""`gxpo try` from its command line: plans, remedies of a run, and what is refused before anything runs."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from tests import command_line
from tests.compare.stub_trl import write_stub


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script of TRL and the log of a run of it whose entropy and reward collapsed."""
    monkeypatch.chdir(tmp_path)
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{write_stub(tmp_path / 'stub')}{os.pathsep}{source}")
    Path("train.py").write_text("from trl import GRPOTrainer\nGRPOTrainer().train()\n")
    noise = random.Random(0)
    healthy = {
        "reward": 0.6,
        "frac_reward_zero_std": 0.2,
        "reward_std": 0.3,
        "entropy": 1.0,
        "grad_norm": 0.5,
        "kl": 0.01,
    }
    collapsed = {
        "reward": 0.02,
        "frac_reward_zero_std": 0.9,
        "reward_std": 0.01,
        "entropy": 0.01,
        "grad_norm": 50.0,
        "kl": 9.0,
    }
    rows = [
        {"step": s, "learning_rate": 1e-3, "step_time": 2.0}
        | {k: v * noise.uniform(0.9, 1.1) for k, v in (healthy if s < 20 else collapsed).items()}
        for s in range(1, 61)
    ]
    for name in ("out/checkpoint-40", "out/checkpoint-60"):
        Path(name).mkdir(parents=True)
    state = {"log_history": rows, "global_step": 60, "max_steps": 60}
    Path("out/checkpoint-60/trainer_state.json").write_text(json.dumps(state))
    return tmp_path


def test_dry_run_prints_arms_and_runs_nothing(folder: Path) -> None:
    code, out, _ = command_line.run(["try", "train.py", "--arm", "beta=0.1", "--seeds", "2", "--dry-run", "--json"])
    plan = json.loads(out)
    assert code == 0 and not (folder / "runs").exists()
    assert [a["label"] for a in plan["arms"]] == ["base", "beta=0.1"]
    assert (plan["runs"], plan["steps"], plan["metric"], plan["time_s"]) == (4, 60, "reward", None)


def test_remedies_of_a_run_are_arms_with_their_cost(folder: Path) -> None:
    arguments = ["try", "train.py", "--remedies", "out", "--dry-run", "--seeds", "1", "--steps", "10"]
    code, out, err = command_line.run(arguments)
    assert code == 0, err
    # of the remedies, those in settings that the stub has; in others they are work for a person
    assert "learning_rate=/3: learning_rate = the script's own divided by 3" in out
    assert "work for a person (lr_too_high): max_grad_norm=0.2" in out
    # 10 steps of 2 s for each run
    assert "at 2 s a step" in out
    # the checkpoints are of a policy that has collapsed already
    assert "not from out/checkpoint-60: a remedy is to begin before the run went wrong" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py"], "nothing to try: give --arm KEY=VALUE, or --remedies RUN"),
        (["train.py", "--arm", "betta=1"], "TRL has no setting 'betta'; did you mean 'beta'?"),
        (["accelerate", "--arm", "beta=1"], "accelerate starts several processes"),
        (["none.py", "--arm", "beta=1"], "none.py: no such script"),
        (["--arm", "beta=1"], "give a SCRIPT of TRL, or --command for another trainer"),
        (["run.sh", "--template", "ver", "--arm", "a=1"], "--template ver: there is none; did you mean 'verl'?"),
        (["train.py", "--from", "nowhere", "--arm", "beta=1"], "--from nowhere: no such folder"),
    ],
)
def test_what_cannot_be_tried_is_refused_first(folder: Path, arguments: list[str], said: str) -> None:
    code, _, err = command_line.run(["try", *arguments])
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1


def test_process_of_several_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2: this is a process of several" in command_line.run(["try", "train.py", "--arm", "beta=1"])[2]
