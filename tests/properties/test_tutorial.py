"""The tutorial, block by block in one directory: whole in small sizes, and (in the main suite) without training."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from tests import command_line

from gxpo.parts.definition import SettingValue
from gxpo.training import config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "tutorial-2.md"]
BLOCK = re.compile(r"(?:[Ss]ave this as `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.S | re.M)
TRAINS = re.compile(r"gxpo\.train\(|from transformers")  # blocks that train, or need what was trained
RUNS = ("demo", "resume", "eval", "export", "doctor", "explain", "compare")  # need what was trained before

SMALL = {
    "train": "--set trainer.steps=2 --set tasks.per_step=2 --set eval.tasks=4",
    "eval": "--tasks 4 --samples 2",
    "demo": "--steps 1",
    "compare": "--seeds 2 --budget 2updates --set tasks.per_step=2 --set eval.tasks=4 --no-controls",
}


SICK = " --set trainer.steps=6"  # as many as the doctor needs


def blocks():
    """(kind, code, file) of every block of the tutorial, in order."""
    return [(b["kind"], b["code"], b["file"]) for page in PAGES for b in BLOCK.finditer(page.read_text())]


def gxpo(line, monkeypatch, more):
    """Runs a command in this process; gives what it prints."""
    allowed = {0, 1} if line.endswith("|| true") else {0}
    words = shlex.split(line.removesuffix("|| true"))
    code, out, err = command_line.run([*words[1:], *more])
    assert code in allowed, f"{line}: {err or out}"
    assert out, f"{line}: {err}"
    return out


def follow(monkeypatch, whole):
    """Does what the tutorial says; what each command has printed."""
    gxpos, names = {}, {}
    for kind, code, file in blocks():
        if file is not None:
            Path(file).write_text(code)
        elif kind == "python" and (whole or not TRAINS.search(code)):
            exec(compile(code, "tutorial", "exec"), names)
        elif kind == "bash":
            for line in code.splitlines():
                command = line.split()[1]
                if whole:
                    more = SMALL.get(command, "") + (SICK if "runs/sick" in line and command == "train" else "")
                elif command == "train":
                    more = "--dry-run"
                else:
                    more = "--help" if command in RUNS and "--list" not in line else ""
                if not whole:
                    line = line.replace("tiny:arithmetic", "tiny:cold")
                gxpos[line] = gxpo(line, monkeypatch, more.split())
    return gxpos


def begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_method", raising=False)


def of(said, *words):
    """What the first command with these words has printed."""
    return next(text for line, text in said.items() if all(w in line.split() for w in words))


@pytest.mark.slow
def test_what_is_typed_resolves_and_what_is_checked_is_so(tmp_path, monkeypatch):
    begun(tmp_path, monkeypatch)
    message = follow(monkeypatch, whole=False)
    assert "no finding" in of(message, "check-reward", "my_rewards.py:tidy")
    assert "pays for a wrong answer written as 'hash'" in of(message, "check-reward", "generous.py:generous")
    (tasks,) = (text for line, text in message.items() if line.startswith("gxpo tasks sums.jsonl"))
    assert "duplicate" in tasks
    assert "silent" not in "".join(message.values())


@pytest.mark.thorough
@pytest.mark.warm_start
@pytest.mark.filterwarnings("ignore")
def test_the_whole_of_it(tmp_path, monkeypatch):
    begun(tmp_path, monkeypatch)
    small = config.demo_settings
    monkeypatch.setattr(
        config, "demo_settings", lambda **given: small(**given) | {"eval.tasks": SettingValue(8, "test")}
    )
    message = follow(monkeypatch, whole=True)
    assert "(proved)" in of(message, "doctor", "runs/sick").splitlines()[0]  # of two groups a step it can't tell more
    assert "zero_signal" in of(message, "explain", "--json")
    assert (tmp_path / "models" / "mine" / "README.md").is_file()
    assert (tmp_path / "runs" / "compare-sums" / "compare.html").is_file()


def test_the_tutorial_says_only_what_it_can_show():
    kinds = {kind for kind, _, _ in blocks()}
    assert kinds == {"bash", "python", "yaml", "text"}
    for page in PAGES:
        assert len(page.read_text().splitlines()) <= 150
