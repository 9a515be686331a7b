"""Examples of docs/try.md, on a stub of TRL and a stand-in for another trainer."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests import command_line
from tests.compare.test_trial import OTHER, SCRIPT
from tests.thorough import ALL

PAGE = Path(__file__).parents[2] / "docs/try.md"
EXAMPLES = [
    shlex.split(line, comments=True)[1:] for line in PAGE.read_text().splitlines() if line.startswith("gxpo try ")
]
OF_GXPO = ["try", "--from", "runs/arithmetic", "--arm", "optim.lr=1e-5"]  # takes a run of gxpo: the test below


@pytest.fixture
def page_folder(folder: Path) -> Path:
    """What the examples name: a script, a launcher of another trainer, and an earlier run with a sickness."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "other.py").write_text(OTHER)
    (folder / "run.sh").write_text("exit 0\\n")
    rows = [
        {"step": s, "reward": 0.6 if s < 20 else 0.02, "frac_reward_zero_std": 0.2, "learning_rate": 1e-3,
         "entropy": 1.0 if s < 20 else 0.01, "grad_norm": 0.5 if s < 20 else 50.0, "kl": 0.01, "step_time": 2.0}
        for s in range(1, 61)
    ]  # fmt: skip
    (folder / "out/checkpoint-60").mkdir(parents=True)
    (folder / "out/checkpoint-60/trainer_state.json").write_text(json.dumps({"log_history": rows, "global_step": 60}))
    return folder


def test_page_has_an_example_of_each_way_in() -> None:
    words = [word for example in EXAMPLES for word in example]
    assert len(EXAMPLES) == 7 and OF_GXPO in EXAMPLES
    assert {"--minutes", "--remedies", "--command", "--template", "--from", "--dry-run"} <= {*words}


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e != OF_GXPO], ids=lambda e: " ".join(e)[:50])
def test_example_plans_its_trial(page_folder: Path, example: list[str]) -> None:
    arguments = example[: example.index("--")] if "--" in example else example
    code, out, err = command_line.run([*arguments, *(() if "--dry-run" in example else ("--dry-run",))])
    assert code == 0, err
    assert "base: as it is" in out and "false positives" in out
    assert not (page_folder / "runs").exists()


def test_first_example_runs_at_toy_size(page_folder: Path) -> None:
    example = [*EXAMPLES[0][: EXAMPLES[0].index("--seeds")], "--seeds", "3", "--steps", "4"]
    code, out, err = command_line.run([*example, "--json"])
    assert code == 0, err
    document = json.loads(out)
    # the stub's reward rises by .01 a step at the lower rate, and does not read beta
    assert {d["arm"]: d["verdict"] for d in document["differences"]} == {
        "learning_rate=1e-6": "better",
        "beta=0.0": "equal",
    }
    assert document["recommended"] == "learning_rate=1e-6"
    # four points of a reward tell the doctor nothing
    assert document["doctor"]["base"] == "no verdict: too little was logged of the reward"
    assert (page_folder / "runs/try-train/compare.html").is_file()


def test_limits_of_a_script_are_refused_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, err = command_line.run([*OF_GXPO, "--minutes", "10"])
    assert err == "gxpo: --minutes and --tokens are of a script's trial: a run of gxpo takes --seeds\n"


@ALL
def test_run_of_gxpo_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = "model=tiny:cold task=arithmetic tasks.per_step=2 rollout.group_size=2 sampling.max_new_tokens=4"
    sets = [f"--set={x}" for x in f"{small} eval.tasks=4 trainer.steps=2 trainer.checkpoint_every=1".split()]
    code, _, err = command_line.run(["train", *sets, "--out", "runs/arithmetic"])
    assert code == 0, err
    code, out, err = command_line.run([*OF_GXPO, "--seeds", "1", "--steps", "2", "--json"])
    assert code == 0, err
    assert [a["kind"] for a in json.loads(out)["arms"]] == ["base", "arm"]
