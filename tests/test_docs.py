"""Every Python block of README and docs runs; every gxpo command in them resolves; pages keep to their length."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser

from gxpo import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "errata").glob("*.md"))]
OF_THE_READER = ("resume", "demo", "bench", "signal", "eval", "export", "check-reward", "check-template", "check-env")
COMMANDS = sorted(
    {
        line.split("#")[0].split("&&")[0].strip()
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
        for line in block.splitlines()
        if line.startswith("gxpo ")
    }
)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.warm_start] * (p == PAGES[0])) for p in PAGES], ids=lambda p: p.name
)
@pytest.mark.filterwarnings("ignore:reward")
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "examples", tmp_path / "examples")
    for example in Document.parse(str(page), PythonCodeBlockParser()).examples():
        example.evaluate()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_resolve(command, tmp_path, monkeypatch, capsys):
    """Training commands are resolved with --dry-run, plans without a probe; what names a run, a model or a reward of
    the reader's is parsed only."""
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "examples", tmp_path / "examples")
    arguments = shlex.split(command)
    if arguments[1] == "train":
        arguments.append("--dry-run")
    if arguments[1] == "plan":
        arguments.append("--no-probe")
    if arguments[1] in OF_THE_READER or "--from" in arguments:
        arguments.append("--help")
    monkeypatch.setattr(sys, "argv", arguments)
    try:
        cli.main()
    except SystemExit as stopped:
        assert not stopped.code, capsys.readouterr().err
    assert capsys.readouterr().out


def test_pages_begin_with_a_command_and_are_short():
    for page in PAGES[1:]:
        text = page.read_text()
        assert len(text.splitlines()) <= 150, page
        assert "```" in "".join(text.splitlines()[:4]), page


def test_the_example_is_the_demo():
    demo = (ROOT / "src/gxpo/trainer/demo.yaml").read_text()
    assert (ROOT / "examples/arithmetic.yaml").read_text() == demo
    assert len(demo.splitlines()) <= 15


def test_readme_counts_methods_by_evidence():
    from gxpo.explain.catalogue import entries
    from gxpo.keys import EVIDENCE

    rows = entries()
    tiers = {t: sum(r["evidence"] == t for r in rows) for t in EVIDENCE}
    assert sum(tiers.values()) == len(rows)
    text = " ".join((ROOT / "README.md").read_text().split())
    counts = (
        f"{len(rows)} methods: {tiers['reference-code']} read in the authors' code, {tiers['paper']} in the paper "
        "alone, "
        f"{tiers['secondary']} in other trainers' code or summaries, {tiers['reconstruction']} reconstructed"
    )
    assert counts in text
