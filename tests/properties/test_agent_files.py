"""What is written for coding agents: the skill's commands run as typed, their JSON has the keys that it names; links of
llms.txt lead somewhere; the glossary's names exist."""

import contextlib
import io
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser
from tests import command_line

import gxpo
from gxpo.cli import app as cli
from gxpo.parts.settings import RUN_KEYS
from gxpo.training.metrics import metric

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "gxpo" / "SKILL.md"
LLMS = ROOT / "llms.txt"
GLOSSARY = ROOT / "docs" / "glossary.md"
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", SKILL.read_text(), re.S) for line in block.splitlines()]
CAN_BE_1 = ("doctor",)  # a finding is exit code 1


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with examples/ and a run in runs/arithmetic."""
    local_mktemp = tmp_path_factory.mktemp("skill")
    os.symlink(ROOT / "examples", local_mktemp / "examples")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()):
        patch.chdir(local_mktemp)
        small = {"tasks.per_step": 2, "sampling.max_new_tokens": 4, "eval.tasks": 4, "trainer.rollouts_every": 1}
        with pytest.warns(UserWarning, match="nothing is learned"):
            gxpo.train("tiny:cold", "arithmetic", steps=6, out="runs/arithmetic", set=small)
    return local_mktemp


def typed(line, monkeypatch):
    code, out, err = command_line.run(shlex.split(line)[1:])
    assert code == 0 or (code == 1 and line.split()[1] in CAN_BE_1), f"{line}: {err}"
    return out


@pytest.mark.parametrize(
    "line", [pytest.param(c, marks=[pytest.mark.thorough] * c.startswith("gxpo compare")) for c in COMMANDS]
)
def test_a_command_of_the_skill_runs_as_typed(line, place, monkeypatch):
    monkeypatch.chdir(place)
    message = typed(line, monkeypatch)
    assert json.loads(message) if "--json" in line else (place / "step.html").is_file()


def test_the_json_has_the_keys_that_the_skill_names(place, monkeypatch):
    monkeypatch.chdir(place)
    actual = json.loads(typed("gxpo doctor runs/arithmetic --json", monkeypatch))
    assert {"findings", "unchecked"} <= actual.keys() and actual["findings"]
    assert {"evidence", "remedy", "follows_from", "grade"} <= actual["findings"][0].keys()
    groups = json.loads(typed("gxpo explain runs/arithmetic --json", monkeypatch))["groups"]
    assert all(g["zero_signal"] == {"grpo": True} for g in groups)  # an untrained policy gets no sum right
    tasks = json.loads(typed("gxpo tasks examples/arithmetic.yaml --n 8 --json", monkeypatch))
    assert {"warnings", "leaks"} <= tasks.keys() and tasks["reward"]["unpaid"] == []


def test_skill_is_short_and_described_and_its_python_runs():
    text = SKILL.read_text()
    assert len(text.splitlines()) <= 100
    head = re.match(r"---\nname: (\w+)\ndescription: (.+)\n---\n", text)
    assert head and head[1] == "gxpo" and len(head[2]) < 1024
    for example in Document.parse(str(SKILL), PythonCodeBlockParser()).examples():
        example.evaluate()
    for page in re.findall(r"`(docs/[\w-]+\.md)`", text):
        assert (ROOT / page).is_file(), page


def test_links_of_llms_txt_lead_somewhere_and_its_commands_exist():
    text = LLMS.read_text()
    assert text.startswith("# gxpo\n\n> ")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+|^- \[[^\]]+\]\(([^)]+)\)$", text, re.M)
    assert len(links) == len(re.findall(r"^- ", text, re.M)) >= 15
    for pair in links:
        assert (ROOT / "".join(pair)).is_file(), pair
    for command in re.findall(r"`gxpo ([a-z-]+)", text):
        assert command in ("COMMAND", *cli.typer.main.get_group(cli.app).commands), command


def rows(page):
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in page.splitlines() if line.startswith("| ")][
        1:
    ]


def test_the_glossary_has_thirty_terms_with_three_names_each():
    table = rows(GLOSSARY.read_text())
    assert len(table) == 30 and all(len(row) == 5 and all(row) for row in table)
    keys = {*RUN_KEYS, *gxpo.method("grpo").keys, *gxpo.method("grpo+tis").keys}
    for term, _, local_value, *_ in table:
        names = re.findall(r"`([^`]+)`", local_value)
        assert names and all(n in keys or metric(n) is not None for n in names), term
