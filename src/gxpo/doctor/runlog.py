"""`RunLog`: what a training run left, under one set of names, whichever trainer wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Names of series. NAME is a reward function or component; every name but `step` may also stand behind `eval/`.
NAMES: dict[str, str] = {
    "reward": "mean total reward of the rollouts made in the step",
    "reward_std": "spread of the total reward, as the trainer reports it (TRL 1.16: over all rollouts of the step)",
    "reward_max": "largest total reward of the step",
    "reward_min": "smallest total reward of the step",
    "success": "share of rollouts that the verifier accepts",
    "component/NAME": "mean of one reward function",
    "component_std/NAME": "deviation of one reward function over the step's rollouts",
    "zero_signal": "share of zero-signal groups",
    "zero_right": "share of groups that are all right",
    "zero_wrong": "share of groups that are all wrong",
    "groups": "groups in the step",
    "rollouts": "rollouts in the step",
    "unscored": "rollouts without a score",
    "advantage_mean": "mean advantage over tokens",
    "advantage_max": "largest advantage",
    "advantage_min": "smallest advantage",
    "loss": "value minimised",
    "grad_norm": "length of the gradient before clipping",
    "lr": "learning rate",
    "entropy": "mean entropy of the policy, nats",
    "kl": "divergence from the reference, nats a token",
    "kl_coef": "its coefficient in force",
    "approx_kl": "divergence from the policy at the start of the step, nats a token",
    "clip_fraction": "share of tokens that the ratio clip cuts",
    "clip_low": "share of tokens cut at the lower side",
    "clip_high": "share of tokens cut at the upper side",
    "ratio_max": "largest ratio of current to proximal policy",
    "weights_moved": "share of the weights that the step changed",
    "weights_crc": "checksum of the weights after the step",
    "empty_steps": "steps so far in which nothing moved",
    "nonfinite_steps": "optimiser steps so far that were skipped, gradient not finite",
    "optimiser_steps": "optimiser steps taken in the step",
    "length": "mean completion length, tokens",
    "length_max": "longest completion, tokens",
    "length_min": "shortest completion, tokens",
    "terminated_length": "mean length of completions that ended by themselves, tokens",
    "truncated": "share of completions cut at the length limit",
    "gap_mean": "mean |log-prob of learner - of sampler|, nats",
    "gap_max": "largest |log-prob of learner - of sampler|, nats",
    "gap_probability": "mean |probability of learner - of sampler|",
    "gap_pearson": "correlation of learner's and sampler's token probabilities",
    "gap_kl": "divergence of the sampler from the learner, nats a token",
    "gap_ratio": "mean importance ratio learner / sampler",
    "staleness_mean": "updates between sampling and training, mean",
    "staleness_max": "updates between sampling and training, largest",
    "tool_calls": "tool calls per completion",
    "tool_failures": "share of tool calls that fail",
    "malformed": "share of turns without a readable action",
    "illegal": "share of turns with an impossible action",
    "turns": "mean number of turns",
    "epoch": "passes over the data so far",
    "seconds": "duration of the step",
    "seconds_sampling": "of it sampling",
    "eval/accuracy": "held-out accuracy",
    "eval/reward": "held-out mean reward",
    "eval/low": "lower end of the 95% interval of eval/accuracy",
    "eval/high": "upper end of the 95% interval of eval/accuracy",
    "eval/tasks": "held-out tasks",
    "eval/pool_accuracy": "accuracy on training tasks, measured as eval/accuracy",
}

# Names of settings in `RunLog.config`; unknown ones are absent.
SETTINGS: dict[str, str] = {
    "lr": "learning rate asked for",
    "schedule": "name of its schedule",
    "warmup_steps": "steps over which it rises",
    "max_steps": "steps of the run",
    "group_size": "rollouts a prompt",
    "beta": "coefficient of the KL to the reference",
    "epochs": "updates on the same rollouts (TRL num_iterations, verl ppo_epochs, gxpo update.epochs)",
    "clip": "clip range of the ratio",
    "temperature": "of sampling",
    "top_k": "of sampling",
    "top_p": "of sampling",
    "max_tokens": "limit of a completion, tokens",
    "mask_truncated": "whether cut completions are left out of the loss",
    "max_grad_norm": "the gradient is clipped to this length",
    "dtype": "of the weights that the optimiser moves: float32, bfloat16, float16",
    "scale": "what advantages are divided by: group, batch, none",
    "loss_type": "the trainer's own name of the objective",
    "reward_weights": "list of the weights of the reward functions",
    "method": "gxpo: the composition",
    "eval_samples": "samples a held-out task",
    "eval_temperature": "of the held-out samples",
    "sync_every": "steps between deliveries of the weights to the sampler",
    "lora": "whether an adapter is trained",
}


@dataclass
class Series:
    """One figure over the run.

    steps   [n] step numbers in the order of the file; a run that was resumed wrongly may go back
    values  [n] float64; nan where the trainer wrote a value that is not finite (a missing key is no entry at all)
    key     the trainer's own name, which findings quote
    """

    steps: Floats
    values: Floats
    key: str

    def __len__(self) -> int:
        return len(self.values)

    @property
    def finite(self) -> Series:
        """Without entries that are not finite."""
        known = np.isfinite(self.values)
        return self if known.all() else Series(self.steps[known], self.values[known], self.key)


@dataclass
class Rollouts:
    """A sample of single rollouts, a row each; rows of one group are adjacent.

    step        [n] training step (-1: unknown)
    group       [n] dense id of the rollouts that were compared, unique over the whole sample; -1: unknown
    prompt      [n] texts
    completion  [n] texts (several turns joined by a blank line)
    score       [n] total reward; nan: unscored
    components  name -> [n]; nan: missing
    advantage   [n] mean advantage; nan: not recorded
    tokens      [n] completion length in tokens; nan: unknown
    truncated   [n] 1: cut at the limit, 0: ended by itself, nan: unknown
    success     [n] the verifier's verdict; nan: unknown
    reference   [n] reference answers; None: not recorded
    held_out    [n] whether the row is of an evaluation
    temperature [n] it was sampled at; nan: unknown
    where       [n] "file:row" of each, for evidence
    kept, of    rows in the sample, rows there are
    grouped_by  "recorded", "blocks" (consecutive rows) or "prompt" (equal prompts: two groups of one prompt merge)
    """

    step: NDArray[np.int64]
    group: NDArray[np.int64]
    prompt: list[str]
    completion: list[str]
    score: Floats
    components: dict[str, Floats]
    advantage: Floats
    tokens: Floats
    truncated: Floats
    success: Floats
    reference: list[str | None]
    held_out: NDArray[np.bool_]
    temperature: Floats
    where: list[str]
    of: int
    grouped_by: str = "recorded"

    def __len__(self) -> int:
        return len(self.score)

    @property
    def kept(self) -> int:
        return len(self)

    def select(self, rows: Any) -> Rollouts:
        """The rows of a boolean mask or index array, in order."""
        index = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        lists = {n: [getattr(self, n)[i] for i in index] for n in ("prompt", "completion", "reference", "where")}
        arrays = {
            n: getattr(self, n)[index]
            for n in (
                "step",
                "group",
                "score",
                "advantage",
                "tokens",
                "truncated",
                "success",
                "held_out",
                "temperature",
            )
        }
        components = {k: v[index] for k, v in self.components.items()}
        return Rollouts(**lists, **arrays, components=components, of=self.of, grouped_by=self.grouped_by)


@dataclass
class RunLog:
    """All that was read of one run.

    source     trl, verl, gxpo, openrlhf, prime-rl, unsloth or unknown
    read       files, relative to the path that was asked for
    series     name (`NAMES`) -> figures, training rows only but for names under `eval/`
    rollouts   a sample of them; None: none were found
    config     name (`SETTINGS`) -> value, from a configuration beside the run
    messages   warnings of the trainer that a console text holds
    notes      what was odd in reading: unreadable lines, rows that were left out, files that were not opened
    raw        the trainer's own keys that have no name here -> figures
    """

    source: str = "unknown"
    read: list[str] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    rollouts: Rollouts | None = None
    config: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Series] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.series and len(self.series[name].finite) > 0

    def values(self, name: str) -> Floats:
        """Finite values of a series by step; empty where it was not recorded. A repeated step counts once, as last
        written."""
        return self._sorted(name)[1]

    def steps(self, name: str) -> Floats:
        """Steps of `values(name)`."""
        return self._sorted(name)[0]

    def key(self, name: str) -> str:
        """The trainer's own key of a series."""
        return self.series[name].key if name in self.series else name

    def components(self) -> list[str]:
        """Names of the reward functions whose means were recorded."""
        return [n.removeprefix("component/") for n in self.series if n.startswith("component/")]

    @property
    def last_step(self) -> int:
        """The largest step of any training series; 0 where there is none."""
        ends = [s.steps.max() for n, s in self.series.items() if len(s) and not n.startswith("eval/")]
        return int(max(ends, default=0))

    def _sorted(self, name: str) -> tuple[Floats, Floats]:
        if name not in self.series:
            return np.empty(0), np.empty(0)
        found = self.series[name].finite
        last = dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))
        steps = np.array(sorted(last))
        return steps, np.array([last[s] for s in steps.tolist()])


def series(rows: Iterable[tuple[float, Mapping[str, float]]], names: Mapping[str, str]) -> dict[str, Series]:
    """Series from rows (step, {trainer's key: value}); `names` maps the trainer's keys to `NAMES`."""
    found: dict[str, tuple[list[float], list[float], str]] = {}
    for step, row in rows:
        for key, value in row.items():
            if key in names:
                steps, values, _ = found.setdefault(names[key], ([], [], key))
                steps.append(step)
                values.append(value)
    return {n: Series(np.array(s, dtype=float), np.array(v, dtype=float), k) for n, (s, v, k) in found.items()}
