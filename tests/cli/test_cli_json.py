"""Every command that reports prints JSON on request: nothing else on standard output, whatever it is asked."""

import json
import shlex
import sys

import pytest
import typer
from tests import command_line

from gxpo.cli import app as cli

SMALL = (
    "model: tiny:cold\ntask: arithmetic\ntasks.per_step: 2\nrollout.group_size: 2\nsampling.max_new_tokens: 4\n"
    "eval.tasks: 4\ntrainer: {steps: 2, checkpoint_every: 1, rollouts_every: 1}\n"
)

# command -> arguments, in a directory with run.yaml, rewards.py, data.jsonl and the runs runs/a and runs/b
ARGUMENTS = {
    "train": "run.yaml --out runs/new",
    "demo": "--help",  # the whole of it takes minutes; it prints what train prints
    "resume": "runs/a --steps 3",
    "eval": "runs/b --tasks 2",
    "methods": "gspo",
    "parts": "relative",
    "schema": "",
    "plan": "run.yaml --no-probe",
    "export": "runs/b model",
    "bench": "--help",  # it measures nothing on a busy machine; tests/bench has its JSON
    "doctor": "runs/b",
    "explain": "runs/b --methods grpo,dr_grpo",
    "triage": "runs/b",
    "verify": "runs/b",
    "check-reward": "rewards.py:exact --task data.jsonl --n 4",
    "check-template": "tiny:cold --template chat.jinja",
    "check-env": "sokoban --episodes 1",
    "check-model": "tiny:cold",
    "signal": "tiny:cold arithmetic --sizes 2 --tasks 4 --set sampling.max_new_tokens=4",
    "compare": "a=runs/a b=runs/b",
    "try": "--template list",
    "tasks": "data.jsonl",
    "best-of": "--help",  # of runs with a value head: test_best_of.py has its JSON
    "filter-tasks": "run.yaml --n 4 --rollouts 2 --out kept.jsonl",
    "convert": "trl trl.yaml",
    "serve": "--help",  # needs the extra of its own; tests/sampling/serve has its JSON
}
PLAN = "compare dr_grpo --base grpo --no-controls --task run.yaml --seeds 2 --budget 2updates --plan --out plans"
MORE = [
    PLAN,
    "compare --suite list",
    "doctor --list",
    "methods --for 'length growth'",
    "explain runs/b --out page.html",
    "signal --run runs/b --methods dr_grpo",
    "train run.yaml --dry-run",
    "eval runs/b --tasks 2 --samples 3 --vote correct",
    "eval runs/b --tasks 2 --samples 2 --necessity drop",
]
WITHOUT: dict[str, str] = {}  # commands that have nothing to report, and why


def commands():
    return {c.name: c for c in typer.main.get_group(cli.app).commands.values()}


def run(line):
    """(exit code, stdout) of a command."""
    code, out, _ = command_line.run(shlex.split(line))
    return code, out


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with two runs, made as a user would."""
    local_mktemp = tmp_path_factory.mktemp("json")
    (local_mktemp / "run.yaml").write_text(SMALL)
    (local_mktemp / "rewards.py").write_text("def exact(completion, answer):\n    return float(completion == answer)\n")
    rows = [{"prompt": f"{i}+1", "answer": i + 1} for i in range(20)]
    (local_mktemp / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (local_mktemp / "trl.yaml").write_text("learning_rate: 1.0e-6\nnum_generations: 8\n")
    (local_mktemp / "chat.jinja").write_text("{% for m in messages %}{{ m.content + eos_token }}{% endfor %}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(local_mktemp)
        for name in ("a", "b"):
            patch.setattr(sys, "argv", ["gxpo", "train", "run.yaml", "--out", f"runs/{name}", "--json"])
            with pytest.raises(SystemExit, match="0"):
                cli.main()
    return local_mktemp


def test_every_command_has_json_and_is_tried():
    command_names = commands()
    assert set(ARGUMENTS) | set(WITHOUT) == set(command_names)
    for name, command in command_names.items():
        options = {o for p in command.params for o in p.opts}
        assert ("--json" in options) == (name not in WITHOUT), name


@pytest.mark.parametrize("line", [*(f"{name} {args}" for name, args in ARGUMENTS.items() if args != "--help"), *MORE])
def test_it_is_json_and_nothing_else(line, place, monkeypatch):
    monkeypatch.chdir(place)
    code, out = run(f"{line} --json")
    assert code in (0, 1) if line.startswith("doctor") else code == 0
    assert json.loads(out)


def test_the_advantages_of_a_step_as_data(place, monkeypatch):
    monkeypatch.chdir(place)
    _, out = run("explain runs/b --methods grpo,dr_grpo --json")
    actual = json.loads(out)
    assert [m["name"] for m in actual["methods"]] == ["grpo", "dr_grpo"]
    for group in actual["groups"]:
        rewards = [r["reward"] for r in group["rollouts"]]
        mean = sum(rewards) / len(rewards)
        assert group["reward_mean"] == pytest.approx(mean) and len(rewards) == 2
        assert [r["advantage"]["dr_grpo"]["mean"] for r in group["rollouts"]] == pytest.approx(
            [x - mean for x in rewards]
        )
        assert group["zero_signal"]["dr_grpo"] == (rewards[0] == rewards[1])
    assert not (place / "explain.html").exists()
