"""Estimate of a run's cost from two real steps of it, in a directory that is deleted afterwards."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gxpo.algorithms.signals import Signals
from gxpo.base.runtime import peak_megabytes
from gxpo.forest.forest import Forest
from gxpo.parts.settings import RunSettings
from gxpo.training import checkpoint
from gxpo.training.config import RunConfig
from gxpo.training.loop import Trainer

MIB = 2**20
SAMPLE = 16 * MIB  # bytes of the checkpoint that is written to see how fast checkpoints are


def probe(resolved: RunConfig, *, notify: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Run the first two steps of a run and extrapolate; times are of the second step, which has nothing to set up.

    The steps are those of the run itself: same tasks, group size and lengths. Where no group of the second step had a
    signal (`update_forced`), the update is that of a third one in which every rollout counts. Nothing is evaluated; an
    evaluation is counted as so many completions, each as fast as the step's. A checkpoint is counted at the speed of
    writing 16 MiB to the directory for temporary files. Later steps cost more where answers grow longer. Reward
    workers' memory is not in `memory_*`. Nothing stays on the disk but what loading the model caches.
    """
    s = resolved.settings
    with tempfile.TemporaryDirectory(prefix="gxpo-probe-") as folder:
        trainer = Trainer(resolved, out=Path(folder) / "run", notify=notify)
        try:
            notify("probing two steps (--no-probe: none)")
            memory = Memory(trainer.device)
            # The first step sets things up (compilation, caches), so times are the second's.
            first, second = trainer.step(), trainer.step()
            update = second if second["optimiser_steps"] else forced_update(trainer)
            peak = memory.peak()
            size = checkpoint_bytes(trainer.learner)
            turns = max(trainer.episode.max_turns, getattr(resolved.method.rollout, "max_turns", 1))
            # The longest that answers may get, for the upper bound.
            longest = s.sampling.max_new_tokens * turns
        finally:
            trainer.close()
        speed = writing_speed(Path(folder), min(size, SAMPLE))
    # Counters are totals since the run began.
    n_generated = second["generated_tokens"] - first["generated_tokens"]
    steps = steps_until_end(s, n_generated, max(1, update["optimiser_steps"]), second["time_step_s"])
    n_evaluations = n_times(steps, s.eval.every) + (s.eval.points - 1 if s.eval.points and has_budget(s) else 0)
    n_checkpoints = n_times(steps, s.trainer.checkpoint_every)
    completions = s.eval.tasks * s.eval.samples
    # An evaluation samples and scores as a step does, and updates nothing.
    per_completion = (second["time_sample_s"] + second["time_score_s"]) / second["trajectories"]
    evaluation_s, checkpoint_s = completions * per_completion, size / speed
    times = {k: second[k] for k in ("time_step_s", "time_sample_s", "time_score_s")}
    times["time_update_s"] = update["time_update_s"]
    # A forced update replaces the one of the second step.
    times["time_step_s"] += update["time_update_s"] - second["time_update_s"]
    totals = {
        "time_steps_s": steps * times["time_step_s"],
        "time_evaluations_s": n_evaluations * evaluation_s,
        "time_checkpoints_s": n_checkpoints * checkpoint_s,
    }
    return {
        "device": trainer.device,
        **times,
        "generated_tokens_per_step": n_generated,
        "generated_tokens_per_step_at_most": second["trajectories"] * longest,
        "rollouts_per_step": second["trajectories"],
        "discarded_rollouts_per_step": second["discarded_rollouts"] - first["discarded_rollouts"],
        "unique_token_ratio": update["unique_token_ratio"],
        "optimiser_steps_per_step": update["optimiser_steps"],
        "update_forced": update is not second,
        "tokens_per_microbatch": trainer.settings.learner.tokens_per_microbatch,  # "auto" has been measured
        "memory_after_loading_mb": memory.floor,
        "memory_peak_mb": peak,
        "memory_above_loading_mb": max(0.0, peak - memory.floor),
        "steps": steps,
        "evaluations": n_evaluations,
        "checkpoints": n_checkpoints,
        **totals,
        "time_run_s": sum(totals.values()),
        "checkpoint_mb": size / MIB,
        # while a checkpoint is written, those that are kept are all still there
        "disk_checkpoints_mb": min(s.trainer.keep_checkpoints + 1, n_checkpoints) * size / MIB,
    }


class Everywhere:
    """Credit of 1 for every token, with the targets that another credit part provides."""

    def __init__(self, credit: Any) -> None:
        self.provides = getattr(credit, "provides", ())
        self.targets = getattr(credit, "targets", None)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> torch.Tensor:
        return torch.ones(forest.n_entries, dtype=torch.float64)


def forced_update(trainer: Trainer) -> dict[str, Any]:
    """Take one more step, with an advantage of 1 for every token, so that there is something to update."""
    trainer.method = dataclasses.replace(trainer.method, credit=Everywhere(trainer.method.credit))
    return trainer.step()


def has_budget(s: RunSettings) -> bool:
    """Return True if a budget may end the run before `trainer.steps`."""
    return any(x is not None for x in (s.trainer.max_tokens, s.trainer.max_updates, s.trainer.max_seconds))


def steps_until_end(s: RunSettings, tokens: int, updates: int, seconds: float) -> int:
    """Steps until the run ends, if each costs as much: by `trainer.steps` or the budget that is spent first."""
    t, limits = s.trainer, [float(s.trainer.steps)]
    for limit, cost in ((t.max_tokens, tokens), (t.max_updates, updates), (t.max_seconds, seconds)):
        if limit is not None and cost > 0:
            limits.append(math.ceil(limit / cost))
    return int(min(limits))


def n_times(steps: int, every: int) -> int:
    """Number of times for something done before the first step, every n-th step (0: never) and after the last."""
    return 2 + ((steps - 1) // every if every else 0)


def checkpoint_bytes(learner: Any) -> int:
    """Size of a checkpoint's tensors: each trained parameter in at least 32 bits, with Adam's two moments."""
    return sum(3 * p.numel() * max(4, p.element_size()) for p in learner.optimiser.parameter_by_name.values())


def writing_speed(folder: Path, size: int) -> float:
    """Bytes a second at which a checkpoint of `size` bytes is written to `folder`."""
    start = time.perf_counter()
    checkpoint.save(folder, 0, {"x": torch.zeros(max(1, size // 4))}, {}, 1)
    return size / (time.perf_counter() - start)


class Memory:
    """Peak memory of the device from now on, MiB: allocated by torch on cuda, otherwise resident of this process."""

    def __init__(self, device: str) -> None:
        self.cuda = str(device).startswith("cuda")
        self.device = device
        self.resettable = False
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(device)
            self.floor = torch.cuda.memory_allocated(device) / MIB
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark falls to what is resident now
            self.floor = resident("VmRSS")
            self.resettable = True
        except OSError:
            # Elsewhere the peak can't be reset: what stays below that of loading does not show.
            self.floor = peak_megabytes()

    def peak(self) -> float:
        """Largest so far; where it can't be reset, the largest of the process, loading included."""
        if self.cuda:
            return torch.cuda.max_memory_allocated(self.device) / MIB
        # the kernel's two counts differ by a little, which must not make the peak lower than what was there before
        return max(self.floor, resident("VmHWM") if self.resettable else peak_megabytes())


def resident(field: str) -> float:
    """A field of /proc/self/status, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
