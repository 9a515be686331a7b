"""Everything that a change of layout must leave as it is, as files: `python scripts/freeze.py DIR [--only PART ...]`.

Run it before and after a change and compare the two directories with `diff -r`. Parts: `methods` (each method's
resolved keys, also with the paper's settings; advantages, weights, loss and gradient on four batteries), `commands`
(the options of every command), `names` (parts, signals, methods, rewards), `schema`, `runs` (three steps of
the examples on small models: metrics without clocks, rollouts). Tensors are written as hashes of their bits, so two
directories compare equal on one machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
CLOCK = re.compile(r"seconds|time|_s$|per_s|memory|bytes|share_of|overlap|speed|idle|mfu|waited|date|busy")
SMALL = (
    "model=tiny:cold", "trainer.steps=3", "eval.every=0", "tasks.per_step=4", "sampling.max_new_tokens=12",
    "eval.tasks=4",
)  # fmt: skip
SKIPPED = {"vllm", "gsm8k_qwen", "real"}  # they need a server, or a checkpoint of a hub
MODULES = re.compile(r"gxpo(?:\.\w+)*\.(?=[A-Za-z_]\w*)| at 0x[0-9a-f]+")


def bits_of(x: torch.Tensor) -> str:
    """A tensor's hash, with its first numbers for whoever reads a difference."""
    x = x.detach().cpu().contiguous()
    head = ", ".join(map(repr, x.flatten()[:4].tolist()))
    return f"{tuple(x.shape)} {hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16]} [{head}]"


def without_modules(value: Any) -> str:
    """A key's value as a configuration states it: parts by their names."""
    from gxpo.parts.definition import show

    return MODULES.sub("", show(value))


# ---------------------------------------------------------------- methods
def method_lines(name: str) -> Iterator[str]:
    from tests.battery import ON_BATTERY

    import gxpo

    method = gxpo.method(name, ON_BATTERY.get(name.partition("@")[0], {}))
    for key, entry in sorted(method.keys.items()):
        yield f"{key} = {without_modules(entry.value)}  ({entry.origin})"
    for key, entry in sorted(method.run_keys.items()):
        yield f"run {key} = {without_modules(entry.value)}  ({entry.origin})"
    yield f"needs {method.needs} requires {method.requires} outputs {method.outputs} heads {method.value_heads}"
    yield f"couples {method.couples} axes {sorted(method.axes.items())} targets {method.credit_targets}"
    if "@" not in name:
        method = method.fill(horizon=12.0, max_length=12, total_steps=4)
        for seed in range(4):
            try:
                yield from (f"battery {seed}: {line}" for line in battery_lines(method, seed))
            except Exception as e:
                yield f"battery {seed}: {type(e).__name__}: {e}"


def battery_lines(method: Any, seed: int) -> Iterator[str]:
    from tests.battery import battery, made_up, policy_of

    from gxpo.base.errors import GxpoError

    forest = battery(seed)
    with contextlib.suppress(GxpoError):  # shapes that read texts or calls, which the battery has not
        forest = method.shaped(forest)
    signals = made_up(method, forest, seed)
    noise_P = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(9 + seed), dtype=torch.float64)
    logprob_P = (signals["proximal_logprob"] + 0.9 * noise_P).requires_grad_()
    advantages_P = method.advantages(forest, signals)
    yield f"advantages {bits_of(advantages_P)}"
    yield f"weights {bits_of(method.token_weights(forest, advantages_P, signals))}"
    others = {name: 0.1 * noise_P + 1.0 for name in method.outputs if name not in ("logprob", "value")}
    others |= {n: x + 0.25 * logprob_P for n, x in others.items() if "@" in n or n == "mean_logprob"}
    policy = policy_of(forest, {"logprob": logprob_P, "value": 0.1 * noise_P, **others}, signals)
    loss = method.loss(forest, policy, advantages=advantages_P, signals=signals)
    (gradient_P,) = torch.autograd.grad(loss.value, logprob_P)
    yield f"loss {bits_of(loss.value)} gradient {bits_of(gradient_P)}"
    yield f"metrics {sorted(loss.metrics.items())!r}"


def freeze_methods(out: Path) -> None:
    from gxpo.methods import METHODS

    (out / "methods").mkdir()
    for name in sorted(METHODS):
        for full in (name, f"{name}@paper"):
            try:
                text = "\n".join(method_lines(full))
            except Exception as e:
                text = f"{type(e).__name__}: {e}"
            (out / "methods" / f"{full}.txt").write_text(text + "\n")


# ---------------------------------------------------------------- commands, names, schema
def freeze_commands(out: Path) -> None:
    import typer.main

    from gxpo.__main__ import main  # noqa: F401  # loads every command
    from gxpo.cli.app import app

    lines = []

    def walk(command: Any, path: str) -> None:
        for parameter in command.params:
            lines.append(f"{path} {'/'.join([*parameter.opts, *parameter.secondary_opts])} {parameter.required}")
        for name, child in sorted(getattr(command, "commands", {}).items()):
            walk(child, f"{path} {name}")

    walk(typer.main.get_command(app), "gxpo")
    (out / "commands.txt").write_text("\n".join(lines) + "\n")


def output_of(*arguments: str) -> str:
    from typer.testing import CliRunner

    from gxpo.__main__ import main  # noqa: F401
    from gxpo.cli.app import app

    return CliRunner().invoke(app, list(arguments)).output


def freeze_names(out: Path) -> None:
    from gxpo.environments.rewards.metrics import METRICS

    parts = json.loads(output_of("parts", "--json"))
    for row in parts:
        row.pop("file")
    (out / "parts.json").write_text(MODULES.sub("", json.dumps(parts, indent=1)) + "\n")
    (out / "methods.json").write_text(output_of("methods", "--json"))
    (out / "metrics.txt").write_text("\n".join(sorted(METRICS)) + "\n")


def freeze_schema(out: Path) -> None:
    (out / "schema.json").write_text(output_of("schema"))


# ---------------------------------------------------------------- runs
def freeze_runs(out: Path) -> None:
    (out / "runs").mkdir()
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        if path.stem not in SKIPPED:
            (out / "runs" / f"{path.stem}.txt").write_text("\n".join(run_lines(path)) + "\n")
            print(path.stem, flush=True)


def run_lines(path: Path) -> list[str]:
    """One run under a reward that tells the answers of an untrained model apart, and one under the example's own where
    it takes no other."""
    lines = lines_of_run(path, f"reward={ROOT}/scripts/freeze.py:reward")
    return [lines[0], *lines_of_run(path)] if len(lines) == 1 else lines


def reward(completions: list[str], **columns: Any) -> list[float]:
    return [float(hashlib.sha256(str(text).encode()).digest()[0] > 127) for text in completions]


def lines_of_run(path: Path, *further: str) -> list[str]:
    from gxpo import Trainer
    from gxpo.training import config

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = Path(folder) / "run"
        try:
            trainer = Trainer(config.load(path, [*SMALL, *further]), out=str(run))
            trainer.train()
            trainer.close()
        except Exception as e:
            return [f"{type(e).__name__}: {e}".replace(folder, "DIR").replace(str(ROOT), "ROOT")]
        lines = []
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = {k: v for k, v in json.loads(line).items() if not CLOCK.search(k)}
            lines.append(json.dumps(row, sort_keys=True))
        for file in sorted((run / "rollouts").rglob("*")) if (run / "rollouts").exists() else []:
            if file.is_file():
                lines.append(f"{file.relative_to(run)} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}")
        lines.append((run / "config.yaml").read_text().replace(folder, "DIR").replace(str(ROOT), "ROOT"))
        return lines


PARTS = {
    "methods": freeze_methods,
    "commands": freeze_commands,
    "names": freeze_names,
    "schema": freeze_schema,
    "runs": freeze_runs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given.directory.mkdir(parents=True)
    for part in given.only:
        PARTS[part](given.directory)


if __name__ == "__main__":
    main()
