"""Every Python block of README and docs runs, and so does every command of README and the first one of each page, as
typed; the other commands resolve; pages keep to their length."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser
from tests import command_line, started
from tests.compare.stub_trl import write_stub
from tests.thorough import ALL, SLOW

from gxpo.compare import worker
from gxpo.compare.jobs import Local

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
AFTERNOON = ROOT / "docs" / "commands.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "errata").glob("*.md"))]
CHECKS = ("check-reward", "check-template", "check-env")
OF_THE_READER = ("resume", "demo", "bench", "signal", "serve", "eval", "export", "best-of", "verify", *CHECKS)
FOLLOWED = ("tutorial.md", "tutorial-2.md")  # tests/properties/test_tutorial.py does what they say, block by block
# Added to what is typed, so that it is quick: by default as many steps as can be and few tasks.
QUICK = {
    "train": "--set trainer.steps=2 --set eval.tasks=2 --set tasks.per_step=2",
    "plan": "--set tasks.per_step=2",
    "signal": "--tasks 4",
    "eval": "--tasks 4",
    "check-env": "--episodes 2",
    "try": "--seeds 1 --steps 4",
    "bench": "--help",  # it refuses to measure on a busy machine
}
COLD = " --set model=tiny:cold"  # instead of a model that would have to be downloaded, or warmed up for a task


def commands(page):
    """The lines of its blocks of commands, in order."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)
    lines = [line for language, block in blocks if language in ("", "bash") for line in block.splitlines()]
    return [line.split(" #")[0].strip() for line in lines if line.strip()]


FIRST = {page: commands(page)[0] for page in PAGES[1:]}
SAVED = {page: re.findall(r"[Ss]ave this as `([^`]+)`", page.read_text()) for page in PAGES}  # files of the reader's
OTHERS = sorted(
    {
        c.split("&&")[0].strip()
        for page in PAGES[1:]
        if page.name not in FOLLOWED
        for c in commands(page)[1:]
        if c.startswith("gxpo ") and not any(name in c for name in SAVED[page])
    }
    - {*commands(README), *commands(AFTERNOON)}
    - set(FIRST.values())
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory to type commands in."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "scripts", "tests"):
        os.symlink(ROOT / name, tmp_path / name)
    # what `gxpo compare --plan` measures in a process of its own
    monkeypatch.setattr(Local, "probe", lambda self, keys: [worker.probe(k) for k in keys])
    return tmp_path


def gxpo(arguments, monkeypatch):
    """(exit code, stdout, stderr) of the command line."""
    return command_line.run(arguments)


def typed(line, monkeypatch, more=""):
    """Runs a line as it is typed, with what makes it quick behind it. gxpo itself runs in this process."""
    for command in line.split("&&"):
        words = shlex.split(command)
        if words[0] == "gxpo":
            added = "" if "--dry-run" in words else QUICK.get(words[1], "")
            if words[1] in ("train", "plan") and added and "examples/flow_grpo.yaml" not in words:
                added += more
            if words[1] == "signal" and more:
                words[2] = "tiny:cold"
            code, out, err = gxpo([*words[1:], *added.split()], monkeypatch)
        elif words[0] == "pytest" and Path(words[-1]).exists():
            continue  # the suite runs it
        else:
            if words[0] == "python":
                done = started.run([words[1], "--help"])  # they take minutes to hours
            elif words[0] == "pytest":
                done = started.run(["-m", *words, "--collect-only"])
            else:
                done = subprocess.run(words, capture_output=True, text=True, check=False)
            code, out, err = done.returncode, done.stdout, done.stderr
        actual = words[:2] == ["gxpo", "doctor"] and code == 1  # two steps of an untrained model have no signal
        assert code == 0 or actual, f"{command}: {err or out}"
        assert out, command


TRAIN = (
    "add-an-environment.md",
    "checks.md",
    "episodes.md",
    "mcp.md",
    "own-train-engine.md",
    "python.md",
    "task-files.md",
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[SLOW] * (p == README or p.name in TRAIN)) for p in PAGES if p.name not in FOLLOWED],
    ids=lambda p: p.name,
)
@pytest.mark.filterwarnings("ignore:reward")
def test_python_blocks_run(page, here, hardly_warm):
    """Those of a page one after the other."""
    for example in Document.parse(str(page), PythonCodeBlockParser()).examples():
        example.evaluate()


@pytest.mark.slow
def test_commands_of_readme_and_an_afternoon_run_in_order(here, hardly_warm, monkeypatch):
    for line in [*commands(README), *commands(AFTERNOON)]:
        typed(line, monkeypatch, "" if "examples/arithmetic.yaml" in line else COLD)
    assert (here / "models" / "arithmetic" / "config.json").is_file()


NEEDED = {"verifiers-library.md": "verifiers"}  # libraries that `dev` does not install
# their first commands train for a while, or judge hundreds of runs
LONG = ("credit-by-state.md", "worlds.md", "add-an-environment.md", "claims.md")
QUICK_PAGES = (
    "adapters.md",
    "doctor.md",
    "equal-bits.md",
    "explain.md",
    "methods.md",
    "models.md",
    "try.md",
    "vision.md",
)
SHARED = [page for n, page in enumerate(FIRST) if FIRST[page] in list(FIRST.values())[:n]]  # an earlier page has them


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[ALL if p.name in LONG or p in SHARED else SLOW] * (p.name not in QUICK_PAGES))
        for p in FIRST
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_the_first_command_of_a_page_runs_as_typed(page, here, hardly_warm, monkeypatch):
    if page.name in NEEDED:
        pytest.importorskip(NEEDED[page.name], reason=f"pip install 'gxpo[{NEEDED[page.name]}]'")
    if FIRST[page].startswith("gxpo try train.py"):
        (here / "train.py").write_text("from trl import GRPOTrainer\nGRPOTrainer().train()\n")
        monkeypatch.setenv("PYTHONPATH", f"{write_stub(here / 'stub')}{os.pathsep}{ROOT / 'src'}")
    if "runs/arithmetic" in FIRST[page]:
        typed("gxpo train examples/arithmetic.yaml", monkeypatch, COLD)
    typed(FIRST[page], monkeypatch, COLD)


# whose tasks are read from disk or drawn as pictures
HEAVY = ("examples/shapes.yaml", "examples/vllm.yaml", "task=tests/questions.jsonl")


@pytest.mark.parametrize("command", [pytest.param(c, marks=[SLOW] * any(h in c for h in HEAVY)) for c in OTHERS])
def test_commands_resolve(command, here, hardly_warm, monkeypatch):
    """Training commands are resolved with --dry-run, plans without a probe; what names a run, a model or a reward of
    the reader's is parsed only."""
    monkeypatch.setenv("GXPO_ALLOW_KEY", "")  # which --allow-key adds to
    cost = {"steps": 10, "generated_tokens_per_step": 300.0, "time_run_s": 1.0}
    monkeypatch.setattr(Local, "probe", lambda self, keys: [cost for _ in keys])
    arguments = shlex.split(command)[1:]
    if arguments[0] == "train":
        arguments.append("--dry-run")
    if arguments[0] == "plan":
        arguments.append("--no-probe")
    if arguments[0] in OF_THE_READER or "--from" in arguments or {"--reward", "--beside"} & set(arguments):
        arguments.append("--help")
    code, out, err = gxpo(arguments, monkeypatch)
    assert code == 0 and out, err


def test_pages_begin_with_a_command_and_are_short():
    for page in PAGES[1:]:
        text = page.read_text()
        assert len(text.splitlines()) <= 150, page
        assert "```" in "".join(text.splitlines()[:4]), page


def test_the_example_is_the_demo():
    demo = (ROOT / "src/gxpo/training/demo.yaml").read_text()
    assert (ROOT / "examples/arithmetic.yaml").read_text() == demo
    assert len(demo.splitlines()) <= 15


@pytest.mark.slow
def test_pages_count_methods_by_evidence():
    from gxpo.adapters.available import available
    from gxpo.explain.catalogue import entries
    from gxpo.methods import METHODS
    from gxpo.parts.definition import EVIDENCE

    rows = entries()
    tiers = {t: sum(r["evidence"] == t for r in rows) for t in EVIDENCE}
    assert sum(tiers.values()) == len(rows)
    read = tiers["reference-code"] + tiers["paper"]
    counts = (
        f"{len(rows)} methods: {read} read at source, {tiers['reference-code']} of them in the authors' code and "
        f"{tiers['paper']} in the paper alone, {len(rows) - read} not: {tiers['secondary']} in other trainers' code or "
        f"summaries, {tiers['reconstruction']} reconstructed"
    )
    assert counts in (ROOT / "docs" / "evidence.md").read_text()
    by_kind = " ".join((ROOT / "docs" / "methods.md").read_text().split())
    assert f"the others not: {read} and {len(rows) - read}." in by_kind
    of_trl = sum(row.works for row in available("trl", sorted(METHODS)))
    for file, message in (
        ("README.md", f"{len(rows)} published variants"),
        ("llms.txt", f"{len(rows)} published GRPO variants"),
        ("README.md", f"{of_trl} of {len(rows)} work: gxpo methods --in trl"),
        ("docs/adapters.md", f"the {of_trl} of {len(rows)} that work"),
        ("docs/migrate.md", f"| | of {len(rows)} methods |"),
    ):
        assert message in " ".join((ROOT / file).read_text().split()), (file, message)


def test_the_methods_page_names_every_method_and_symptom_once():
    from gxpo.explain.symptoms import SYMPTOMS
    from gxpo.methods import METHODS

    text, without = (ROOT / "docs" / "methods.md").read_text().split("## Papers that give no method")
    assert not set(re.findall(r"^\| `(\w+)`", without, re.M)) & set(METHODS)
    table = "\n".join(line for line in text.splitlines() if line.startswith("| "))
    names_in_table = re.findall(r"`(\w+)`", table)
    assert sorted(names_in_table) == sorted(METHODS)
    listed = text[text.index("By what goes wrong") : text.index("A method of your own")]
    assert re.findall(r"`([^`]+)`", listed)[1:] == list(SYMPTOMS)


def test_the_index_leads_to_every_page():
    index = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "index.md").read_text()))
    assert {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md"} <= index
    assert len(README.read_text().splitlines()) <= 75


def test_the_workflow_runs_readmes_commands_and_the_slow_tests():
    from ruamel.yaml import YAML

    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "test.yml")
    steps = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    commands = re.findall(r"^    (make \w+)", README.read_text(), re.M)
    assert sorted(commands) == ["make demo", "make test"] and sorted(steps) == sorted([*commands, "make slow"])
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"demo", "test", "slow"} <= set(targets)
