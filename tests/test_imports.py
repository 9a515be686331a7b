"""Credit, weights and losses need torch and little else; what is optional is imported where it is used."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

OPTIONAL = ("transformers", "tokenizers", "safetensors", "peft", "math_verify", "reasoning_gym", "datasets",
            "huggingface_hub", "scipy", "matplotlib", "tensorboard", "gymnasium", "bm25s",
            "pettingzoo", "gguf")  # fmt: skip
CORE = ("gxpo", "gxpo.forest", "gxpo.levels", "gxpo.records", "gxpo.credit", "gxpo.weighting", "gxpo.objectives",
        "gxpo.methods", "gxpo.compose", "gxpo.config")  # fmt: skip

LOADED = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"

# A module that is None in sys.modules can't be imported: as if it were not installed.
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"


def run(*lines: str) -> str:
    """The last line that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_core_imports_nothing_optional() -> None:
    loaded = set(json.loads(run(f"import {', '.join(CORE)}", LOADED)))
    assert loaded & set(OPTIONAL) == set()


def test_methods_compute_without_the_extras() -> None:
    """Two completions with rewards 1 and 0 about their mean: +0.5 and -0.5."""
    printed = run(
        WITHOUT,
        "import gxpo",
        "from gxpo.methods import METHODS",
        "made = [gxpo.method(name) for name in METHODS]",
        "forest = gxpo.Forest.from_completions([[1, 2]], [[[3], [4]]], [1.0, 0.0])",
        "print(gxpo.method('grpo', {'credit.scale': 'none'}).advantages(forest).tolist())",
    )
    assert json.loads(printed) == [0.5, -0.5]


def test_importing_gxpo_loads_no_torch() -> None:
    assert "torch" not in json.loads(run("import gxpo", LOADED))


def test_help_loads_no_torch() -> None:
    loaded = run(
        "import sys",
        "from gxpo.cli import main",
        "sys.argv = ['gxpo', '--help']",
        "try:",
        "    main()",
        "except SystemExit as stop:",
        "    assert stop.code in (0, None), stop.code",
        LOADED,
    )
    assert "torch" not in json.loads(loaded)


def test_no_code_of_the_trainer_names_a_method():
    """Beside the default of a run: names of methods stand in docstrings alone."""
    from gxpo.methods import METHODS

    found = []
    for path in sorted((Path(__file__).parents[1] / "src/gxpo/trainer").glob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found += [(path.name, w) for w in re.findall(r"[a-z_0-9]+", node.value) if w in set(METHODS) - {"real"}]
    assert set(found) <= {("run.py", "grpo")}
