"""How many files of the package a GRPO step passes, how long its files are, and whether any import each other."""

import ast
import gc
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gxpo
from gxpo.training import config

PACKAGE = Path(gxpo.__file__).parent
SOURCES = {".".join(("gxpo", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in sorted(PACKAGE.rglob("*.py"))}
SOURCES = {name.removesuffix(".__init__"): path for name, path in SOURCES.items()}
KEYS = ["model=tiny:cold", "method=grpo", "tasks.per_step=2", "rollout.group_size=4", "sampling.max_new_tokens=6"]
LOAD_FILES, LOAD_SWITCHES = 13, 160
FILES, LINES = 46, 500  # six of them are the decoder's, four check prompts, pictures in them and what parts give


def calls_by_file(run: Callable[[], object]) -> list[str]:
    """The file of the package of each function that is called, in order, in this thread."""
    names: list[str] = []

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            names.append(frame.f_code.co_filename)

    gc.collect()  # what earlier tests have left would be closed while this one looks
    gc.disable()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return [str(Path(name).relative_to(PACKAGE)) for name in names if name.startswith(f"{PACKAGE}/")]


@pytest.mark.slow
def test_a_warm_step_passes_few_files(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resolved = config.load(None, [*KEYS, "credit.scale=none"])
        trainer = gxpo.Trainer(resolved, out=tmp_path, reward=lambda completion: float(sum(map(ord, completion)) % 2))
        trainer.step()
        files = set(calls_by_file(trainer.step))
        trainer.close()
    assert len(files) <= FILES, sorted(files)


def test_a_load_of_a_configuration_goes_through_few_files_once(tmp_path):
    (tmp_path / "run.yaml").write_text("model: tiny\ntasks: {per_step: 32}\noptim: {lr: 1.0e-4}\neval: {every: 25}\n")
    config.load(tmp_path / "run.yaml", KEYS)
    names = calls_by_file(lambda: config.load(tmp_path / "run.yaml", KEYS))
    switches = sum(a != b for a, b in itertools.pairwise(names))
    assert len(set(names)) <= LOAD_FILES and switches <= LOAD_SWITCHES, (sorted(set(names)), switches)


def test_no_file_is_long():
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in SOURCES.values()}
    assert not {name for name, lines in lengths.items() if lines > LINES}


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports anywhere: at its top, in a function, for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{x.name}" for x in node.names):
                yield name if name in SOURCES else node.module
        elif isinstance(node, ast.Import):
            yield from (x.name for x in node.names)


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """What can be reached from a node along at least one edge."""
    actual: set[str] = set()
    new = [start]
    while new:
        further = graph[new.pop()] - actual
        actual |= further
        new += further
    return actual


@pytest.mark.slow
def test_no_imports_go_in_a_circle():
    graph = {name: {x for x in imports(path) if x in SOURCES and x != name} for name, path in SOURCES.items()}
    below = {name: reached(graph, name) for name in graph}
    circles = {frozenset({x for x in below[name] if name in below[x]}) for name in graph if name in below[name]}
    assert circles == set()
