"""Automatic micro-batch size, measured once on rollouts as long as the run's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from gxpo.base import runtime
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest

SIZES = tuple(2**k for k in range(10, 18))  # 1,024 to 131,072 tokens
ENOUGH = 0.95  # of the best speed: the smallest size that reaches it is taken
ROOM = 0.6  # of the free memory that a size may be expected to take


def tokens_per_microbatch(
    learner: Any,
    prompt: int,
    action: int,
    group_size: int,
    *,
    seconds: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Find the smallest size whose speed is within 5% of the best; `learner` is left as it was.

    learner     a `TorchLearner`; its `tokens_per_microbatch` is changed while this runs
    prompt, action, group_size   lengths of the made-up rollouts, as in the run at their longest
    seconds     no larger size is tried after this long

    Sizes are doubled until one does not fit, is expected not to fit, or the last two brought nothing. Speeds depend on
    the machine and the moment, so the caller keeps the answer.
    """
    original_size, speed_by_size = learner.tokens_per_microbatch, {}
    start_time = clock()
    try:
        # doubled from the smallest: speed levels off, and larger sizes only take memory
        for size in SIZES:
            learner.tokens_per_microbatch = size
            forest = _synthetic_forest(size, prompt, action, group_size)
            forest = forest.replace(policy_names=tuple(getattr(learner, "policies", {"main": "trained"}))[:1])
            memory_before = _memory_in_use(learner.device, mark=True)
            try:
                _gradient(learner, forest)  # the first pass allocates memory and is not timed
                pass_start = clock()
                _gradient(learner, forest)
            except ModelError:
                break
            speed_by_size[size] = forest.n_tokens / (clock() - pass_start)
            # the next size is twice as large: stop before it runs out of memory
            memory_used = _memory_in_use(learner.device) - memory_before
            if (
                2 * memory_used > ROOM * _free_memory(learner.device)
                or clock() - start_time > seconds
                or _has_levelled(speed_by_size)
            ):
                break
    finally:
        learner.tokens_per_microbatch = original_size
    if not speed_by_size:
        raise ModelError(
            f"not even {SIZES[0]} tokens fit into memory: shorten prompts or lower sampling.max_new_tokens"
        )
    best = max(speed_by_size.values())
    return next(size for size, speed in speed_by_size.items() if speed >= ENOUGH * best)


def _has_levelled(speed_by_size: dict[int, float]) -> bool:
    """Return True if the last two doublings brought no more speed."""
    speeds = list(speed_by_size.values())
    return len(speeds) > 2 and max(speeds[-2:]) * ENOUGH <= max(speeds[:-2])


def _synthetic_forest(size: int, prompt: int, action: int, group_size: int) -> Forest:
    """Synthetic groups of token 0 with `size` tokens in total; at least one trajectory."""
    groups = max(1, size // (prompt + group_size * action))
    members = max(1, min(group_size, (size - prompt) // action))
    return Forest.from_completions(
        [[i % 7, *[0] * (max(prompt, 2) - 1)] for i in range(groups)],
        [[[0] * action for _ in range(members)] for _ in range(groups)],
        [[float(i) for i in range(members)] for _ in range(groups)],
    )


def _gradient(learner: Any, forest: Forest) -> None:
    learner.gradient(forest, lambda x: x["logprob"].mean() + 0 * x["entropy"].mean(), names=("logprob", "entropy"))


def _memory_in_use(device: torch.device, *, mark: bool = False) -> float:
    """Memory in bytes: on a GPU allocated now (`mark`) or the peak since; on a CPU the process's peak."""
    if device.type == "cuda":
        if mark:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) if mark else torch.cuda.max_memory_allocated(device)
    return runtime.peak_resident()


def _free_memory(device: torch.device) -> int:
    """Free memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # the first on Windows
        return 4 << 30
