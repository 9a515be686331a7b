"""Which changes to the source no test notices: `python scripts/mutation.py algorithms/credit` mutates that folder.

In a working copy of src/ and tests/. mutmut leaves decorated functions alone, so there `@torch.no_grad()`, `@part(...)`
and the like are taken off and applied at the end of the module instead; functions behave as before. A run that was
stopped goes on where it was; `--again` tries the survivors anew, after tests were added.

    python scripts/mutation.py algorithms/credit --files sets.py --share 0.3
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = (".py", ".typed", ".yaml", ".json", ".jsonl", ".txt", ".md", ".toml", ".jinja")
MOVED = ("torch.no_grad(", "part(", "checked_by(", "column(")  # decorators that mutmut would skip a function for
SKIPPED = 34  # mutmut's mark for a mutant that is not to be run

CONFIGURATION = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:unraisableexception"]
timeout_multiplier = 5.0
timeout_constant = 2.0
use_git_change_detection = false
track_dependencies = false
"""

# appended to the copy of tests/conftest.py: a counterexample is enough, the smallest one is not looked for
PROFILE = """
from hypothesis import Phase
settings.register_profile("mutation", settings(), phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutation")
"""

# run inside the copy; `mutmut run` makes the same mutants, but then runs them all
GENERATE = """
from mutmut import __main__ as mutmut
from mutmut.mutation.trampoline import set_mutant_under_test
set_mutant_under_test("mutant_generation")
mutmut.copy_src_dir(); mutmut.copy_also_copy_files(); mutmut.setup_source_paths(); mutmut.create_mutants(1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a folder of src/gxpo, such as algorithms/credit")
    parser.add_argument("--files", nargs="*", default=["*.py"], help="names of files in it, or patterns")
    parser.add_argument("--tests", nargs="*", help="what is run (default: tests/FOLDER)")
    parser.add_argument("--share", type=float, default=1.0, help="of each file's mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument("--again", action="store_true", help="run the mutants that survived or timed out once more")
    parser.add_argument("--children", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="the working copy (default: build/mutation/FOLDER)")
    arguments = parser.parse_args()

    # mutmut would make no mutant of a folder that is not there, and report that none was left
    if not (ROOT / "src" / "gxpo" / arguments.folder).is_dir():
        parser.error(f"src/gxpo/{arguments.folder} is no folder; give one as algorithms/credit")

    out: Path = (arguments.out or ROOT / "build" / "mutation" / arguments.folder).resolve()
    out.mkdir(parents=True, exist_ok=True)
    copy(ROOT, out, arguments.folder)
    settings = CONFIGURATION.format(
        files=json.dumps([f"src/gxpo/{arguments.folder}/{name}" for name in arguments.files]),
        tests=json.dumps(arguments.tests or [f"tests/{arguments.folder}"]),
    )
    write(out / "pyproject.toml", (ROOT / "pyproject.toml").read_text() + settings)

    mutmut(out, "-c", GENERATE)
    select(out, arguments.share, arguments.seed, arguments.again)
    mutmut(out, "-m", "mutmut", "run", "--max-children", str(arguments.children))
    report(out)


def copy(source: Path, out: Path, folder: str) -> None:
    """Copy src and tests; files that are as before keep their time of change, by which mutmut keeps their results."""
    for part in ("src", "tests"):
        names = {p.relative_to(source) for p in (source / part).rglob("*") if p.suffix in COPIED}
        for name in names:
            text = (source / name).read_text()
            if name == Path("tests/conftest.py"):
                text += PROFILE
            write(out / name, without_decorators(text) if name.parent == Path("src/gxpo", folder) else text)
        for stale in (out / part, out / "mutants" / part):
            for path in [p for p in stale.rglob("*.py") if p.relative_to(stale.parent) not in names]:
                path.unlink()


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def without_decorators(text: str) -> str:
    """Return the module without the decorators `MOVED` on its functions, and calls of these at the end."""
    lines, calls = text.splitlines(keepends=True), []
    for node in ast.parse(text).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(inner, ast.FunctionDef):
                continue
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for decorator in reversed(inner.decorator_list):
                if (message := ast.unparse(decorator)).startswith(MOVED):
                    for number in range(decorator.lineno - 1, decorator.end_lineno or decorator.lineno):
                        lines[number] = ""
                    calls.append(f"{owner}{inner.name} = {message}({owner}{inner.name})\n")
    return "".join(lines + calls)


def mutmut(out: Path, *arguments: str) -> None:
    """Run Python in a process whose gxpo is the mutated one: mutmut puts out/mutants/src before what is installed."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH="")
    with open(out / "mutmut.log", "w") as log:
        process = subprocess.run([sys.executable, *arguments], cwd=out, env=environment, stdout=log, stderr=log)
    if process.returncode:
        sys.exit(f"mutmut stopped: {out / 'mutmut.log'} ends in\n{(out / 'mutmut.log').read_text()[-3000:]}")


def select(out: Path, share: float, seed: int, again: bool) -> None:
    """Mark what is not in the draw, and take back the verdict on what is to be run again."""
    for path in sorted((out / "mutants" / "src").rglob("*.meta")):
        meta = json.loads(path.read_text())
        codes = meta["exit_code_by_key"]
        order = sorted(codes)
        random.Random(f"{seed} {path.name}").shuffle(order)  # a larger share has the smaller one's, too
        sample = set(order[: round(share * len(codes))])
        for name, code in codes.items():
            if name not in sample:
                codes[name] = SKIPPED
            elif code == SKIPPED or (again and code != 1):
                codes[name] = None
        path.write_text(json.dumps(meta, indent=4))


def report(out: Path) -> None:
    """Print counts by file; write every mutant that no test noticed, with its change, to survivors.md."""
    os.chdir(out)
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    columns = ("mutants", "run", "killed", "timeout", "survived", "no tests", "other")
    rows: list[tuple[str, Counter[str]]] = []
    sections: list[str] = []
    for path in sorted(Path("mutants", "src").rglob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        if not codes:
            continue
        source = path.relative_to("mutants").with_suffix("")
        states = {name: status_by_exit_code[code] for name, code in codes.items()}
        tally = Counter(state if state in columns else "other" for state in states.values() if state != "skipped")
        rows.append((source.name, Counter({"mutants": len(codes), "run": tally.total(), **tally})))
        for name, state in states.items():
            if state not in ("killed", "skipped", "not checked"):
                sections.append(
                    f"## {name}: {state}\n\n```diff\n{changed_lines(get_diff_for_mutant(name, path=source))}\n```\n"
                )
    print("| file |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name, tally in [*rows, ("all", sum((tally for _, tally in rows), Counter()))]:
        print(f"| {name} |", " | ".join(str(tally[c]) for c in columns), "|")
    Path("survivors.md").write_text("\n".join(sections))
    print(f"{len(sections)} that were not killed: {out / 'survivors.md'}")


def changed_lines(diff: str) -> str:
    """Return the lines of a diff that differ."""
    return "\n".join(line for line in diff.splitlines()[2:] if re.match(r"[-+@]", line))


if __name__ == "__main__":
    main()
