"""Credit, weights and losses need torch and little else; what is optional is imported where it is used."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = ("transformers", "tokenizers", "safetensors", "peft", "math_verify", "reasoning_gym", "datasets",
            "huggingface_hub", "scipy", "matplotlib", "tensorboard", "gymnasium", "bm25s",
            "pettingzoo", "gguf", "httpx2")  # fmt: skip
CORE = ("gxpo", "gxpo.forest.forest", "gxpo.forest.grouped", "gxpo.forest.records", "gxpo.algorithms.credit",
        "gxpo.algorithms.weighting", "gxpo.algorithms.objectives",
        "gxpo.methods", "gxpo.methods.compose", "gxpo.training.config", "gxpo.adapters.trl",
        "gxpo.adapters.verl", "gxpo.conformance")  # fmt: skip

# Heavier than what they are for, and in nobody's way who composes a method, weighs tokens or reads --help: torch itself
# may bring some of them, so what is asked is what gxpo brings beside.
HEAVY = (*OPTIONAL, "pandas", "sympy", "networkx", "PIL", "torchvision", "torchaudio", "IPython", "sklearn",
         "accelerate", "trl", "vllm", "verl", "ray", "statsmodels", "requests", "httpx", "aiohttp",
         "openai", "minigrid", "textarena", "wandb", "trackio",
         "verifiers", "textworld_express", "websockets", "torch._dynamo", "torch._inductor", "torch._export",
         "torch.onnx", "torch.distributed.fsdp", "torch.utils.tensorboard", "torch.utils.cpp_extension",
         "torch.testing")  # fmt: skip
# Only the command line and configuration files need these.
COMMAND_LINE = ("typer", "click", "rich", "pygments", "ruamel", "rapidfuzz")

USES = {  # one after the other in one process, after torch
    "a forest": "forest = gxpo.Forest.from_completions([[1, 2]], [[[3], [4]]], [1.0, 0.0])",
    "a method": "m = gxpo.method('gigpo+gspo')",
    "advantages": "advantages = m.advantages(forest)",
    "a loss": "x = torch.zeros(2, requires_grad=True); "
    "m.loss(forest, gxpo.PolicyTokens(x, x.detach()), advantages=advantages).value.backward()",
}

LOADED = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"

EVERY = "import json, sys; print(json.dumps(sorted(sys.modules)))"

VERLS_OWN = "gxpo.learning.remote.verl_worker"  # a subclass of verl's worker, imported in its processes alone

# A module that is None in sys.modules can't be imported: as if it were not installed.
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"


def run(*lines: str) -> str:
    """The last line that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_core_imports_nothing_optional() -> None:
    loaded = set(json.loads(run(f"import {', '.join(CORE)}", LOADED)))
    assert loaded & set(OPTIONAL) == set()


@pytest.mark.slow
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


def test_importing_gxpo_loads_only_the_standard_library() -> None:
    actual = set(json.loads(run("import gxpo", EVERY))) - set(json.loads(run(EVERY)))
    assert {name.partition(".")[0] for name in actual} - set(sys.stdlib_module_names) == {"gxpo"}
    assert [name for name in actual if name.startswith("gxpo.")] == []


@pytest.fixture(scope="module")
def brought() -> dict[str, set[str]]:
    """What each of `USES` has loaded when it is done that `import torch` did not."""
    lines = ["import json, sys, torch", "before, found = set(sys.modules), {}", "import gxpo"]
    for use, code in USES.items():
        lines += [code, f"found[{use!r}] = sorted(set(sys.modules) - before)"]
    return {use: set(names) for use, names in json.loads(run(*lines, "print(json.dumps(found))")).items()}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_first_uses_load_nothing_heavy_beside_torch(brought: dict[str, set[str]], use: str) -> None:
    forbidden = {*HEAVY, *COMMAND_LINE, "pydantic"}
    assert "gxpo.forest.forest" in brought[use] and brought[use] & forbidden == set()
    own_texts = (
        "gxpo.sampling.engines.",
        "gxpo.training.",
        "gxpo.environments.envs.",
        "gxpo.bench",
        "gxpo.training.models",
        "gxpo.environments.tasks",
    )
    assert [name for name in brought[use] if name.startswith(own_texts)] == []


@pytest.mark.slow
def test_a_composition_imports_the_families_of_its_methods_alone(brought: dict[str, set[str]]) -> None:
    modules = {name.removeprefix("gxpo.methods.") for name in brought["a method"] if name.startswith("gxpo.methods.")}
    assert modules == {"catalogue", "catalogue.repeated_states", "catalogue.clips", "compose", "method"}


@pytest.mark.slow
def test_grpo_loads_no_part_that_it_does_not_have() -> None:
    """What takes time here is making dataclasses, so modules are counted: a tenth of a second beside torch."""
    loaded = {x for x in json.loads(run("import gxpo", "gxpo.method('grpo')", EVERY)) if x.startswith("gxpo.")}
    assert len(loaded) <= 72, sorted(loaded)
    assert not loaded & {
        "gxpo.methods.compat",
        "gxpo.parts.settings",
        "gxpo.environments.rewards.scoring",
        "gxpo.algorithms.objectives.sequence_score",
    }


@pytest.mark.slow
def test_first_method_makes_no_full_garbage_collection() -> None:
    """A full one walks all that torch has made, and took as long as everything else."""
    printed = run(
        "import gc, json, torch",
        "found = []",
        "gc.callbacks.append(lambda phase, about: found.append(about['generation']))",
        "import gxpo",
        "gxpo.method('grpo')",
        "left = [gc.isenabled()]",
        "gc.disable()",
        "gxpo.method('rloo')",
        "left.append(gc.isenabled())",
        "print(json.dumps([found.count(2), left]))",
    )
    assert json.loads(printed) == [0, [True, False]]


# What Windows does not have, taken away before anything of gxpo is imported; torch keeps what it needs.
WINDOWS = """
import importlib, os, pkgutil, signal, sys, warnings
import torch, transformers
kept = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN"}
for name in dir(signal):
    if name.startswith(("SIG", "ITIMER")) and name not in kept:
        delattr(signal, name)
for name in ("fork", "killpg", "setsid", "getuid", "geteuid", "register_at_fork", "sched_getaffinity", "sysconf",
             "O_DIRECTORY", "O_NOFOLLOW", "fchmod", "WNOHANG", "mkfifo", "nice", "uname"):
    delattr(os, name)
sys.modules.update(dict.fromkeys(["resource", "fcntl", "pwd", "grp", "termios"]))
"""


@pytest.mark.slow
def test_every_module_imports_on_windows_and_processes_refuse() -> None:
    printed = run(
        WINDOWS,
        "warnings.simplefilter('ignore')",
        "import gxpo, gxpo_worlds",
        "for package in (gxpo, gxpo_worlds):",
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):",
        f"        if found.name != {VERLS_OWN!r}:",
        "            importlib.import_module(found.name)",
        "try:",
        "    gxpo.base.processes.Process('worker.py')",
        "except gxpo.base.errors.ConfigError as error:",
        "    print(error)",
    )
    assert "need Linux or macOS: on Windows use WSL" in printed


def test_a_table_of_parts_is_empty_handed_until_it_is_read() -> None:
    loaded = json.loads(run("import gxpo.parts.registry", "from gxpo.parts.registry import CREDITS, REWARDS", EVERY))
    assert "gxpo.parts.registry" in loaded and not {
        "torch",
        "gxpo.algorithms.credit",
        "gxpo.environments.rewards",
    } & set(loaded)


def test_help_loads_no_torch() -> None:
    loaded = run(
        "import sys",
        "from gxpo.cli.app import main",
        "sys.argv = ['gxpo', '--help']",
        "try:",
        "    main()",
        "except SystemExit as stop:",
        "    assert stop.code in (0, None), stop.code",
        EVERY,
    )
    forbidden = {"torch", "numpy", "pydantic", "ruamel", "rapidfuzz", "multiprocessing", "asyncio", *HEAVY}
    assert set(json.loads(loaded)) & forbidden == set()


def test_no_code_of_the_trainer_names_a_method():
    """Beside the default of a run: names of methods stand in docstrings alone."""
    from gxpo.methods import METHODS

    actual = []
    for path in sorted((Path(__file__).parents[2] / "src/gxpo/training").glob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                actual += [
                    (path.name, w) for w in re.findall(r"[a-z_0-9]+", node.value) if w in set(METHODS) - {"real"}
                ]
    files = {(file, "grpo") for file in ("run.py", "config.py", "phase_plan.py")}
    files |= {("cluster.py", "muon"), ("preflight.py", "muon")}  # an optimiser, and the method of its name
    assert set(actual) <= files | {("phase_plan.py", "dpo")}
