"""How many files of the package a GRPO step passes, how long its files are, and whether any import each other."""

import ast
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import gxpo
from gxpo.training import config

PACKAGE = Path(gxpo.__file__).parent
SOURCES = {".".join(("gxpo", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in sorted(PACKAGE.rglob("*.py"))}
SOURCES = {name.removesuffix(".__init__"): path for name, path in SOURCES.items()}
KEYS = ["model=tiny:cold", "method=grpo", "tasks.per_step=2", "rollout.group_size=4", "sampling.max_new_tokens=6"]
FILES, LINES = 40, 500  # seven of them are the decoder's, four check prompts and what parts give


def called_files(run: Callable[[], object]) -> set[str]:
    """The files of the package of which a function is called, in this thread."""
    found: set[str] = set()

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    gc.collect()  # what earlier tests have left would be closed while this one looks
    gc.disable()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return {str(Path(name).relative_to(PACKAGE)) for name in found if name.startswith(f"{PACKAGE}/")}


def test_a_warm_step_passes_few_files(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resolved = config.load(None, [*KEYS, "credit.scale=none"])
        trainer = gxpo.Trainer(resolved, out=tmp_path, reward=lambda completion: float(sum(map(ord, completion)) % 2))
        trainer.step()
        files = called_files(trainer.step)
        trainer.close()
    assert len(files) <= FILES, sorted(files)


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
    found: set[str] = set()
    new = [start]
    while new:
        further = graph[new.pop()] - found
        found |= further
        new += further
    return found


def test_no_imports_go_in_a_circle():
    graph = {name: {x for x in imports(path) if x in SOURCES and x != name} for name, path in SOURCES.items()}
    below = {name: reached(graph, name) for name in graph}
    circles = {frozenset({x for x in below[name] if name in below[x]}) for name in graph if name in below[name]}
    assert circles == set()
