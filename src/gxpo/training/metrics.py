"""`metrics.jsonl`: one flat JSON object per step, under documented names.

Every key that depends on the clock or the machine begins `time_` or `memory_`; all others are equal between equal runs,
also after a resume.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import CheckpointError, RecordError
from gxpo.training.checkpoint import write_atomic
from gxpo.training.tool_figures import TOOLS

Value = int | float | str | None


@dataclass(frozen=True)
class Metric:
    """Description of a metric: its meaning, its unit, and the set that the statistic is over."""

    meaning: str
    unit: str
    over: str

    def __str__(self) -> str:
        return f"{self.meaning} ({self.unit}, over {self.over})"


_UPDATES = "of an optimiser step, then the mean over the step's optimiser steps"

# K and NAME stand for a number and a reward's name.
NAMES: dict[str, Metric] = {
    "step": Metric("number of the step, from 1", "steps", "the run"),
    "phase": Metric("number of the phase, from 1, of a run with phases", "phases", "the run"),
    "reward_mean": Metric(
        "mean outcome, the method's own rewards included", "reward", "scored rollouts made in the step"
    ),
    "reward_std": Metric(
        "mean standard deviation of the outcomes of a group (n - 1)",
        "reward",
        "groups with two scored rollouts or more made in the step",
    ),
    "reward_min": Metric("smallest outcome", "reward", "scored rollouts made in the step"),
    "reward_max": Metric("largest outcome", "reward", "scored rollouts made in the step"),
    "reward_NAME": Metric("mean of the reward component NAME", "reward", "rollouts made in the step that have it"),
    "success_rate": Metric("share of successes", "share", "rollouts made in the step, with a verdict"),
    "zero_signal_groups": Metric(
        "share of groups whose advantage is 0 on every trained token: nothing is learned from them",
        "share",
        "groups of the step",
    ),
    "zero_signal_all_right": Metric("zero-signal groups whose verdicts are all right", "share", "groups of the step"),
    "zero_signal_all_wrong": Metric("zero-signal groups whose verdicts are all wrong", "share", "groups of the step"),
    "tasks_mixed": Metric("share of tasks with right and wrong answers, filtered ones included", "1", "the step"),
    "tasks_known": Metric("tasks or levels with a measured success rate", "1", "those of tasks.sampler"),
    "tasks_coverage": Metric("share of tasks or levels with a measured success rate", "1", "those of tasks.sampler"),
    "tasks_effective": Metric("exp of the entropy of the next draw", "1", "those of tasks.sampler"),
    "tasks_left": Metric("tasks or levels that have a chance in the next draw", "1", "those of tasks.sampler"),
    "prompts_left": Metric("texts that are still tried", "1", "those of tasks.prompts"),
    "prompt_best": Metric("the text of the highest mean reward so far, from 1", "1", "those of tasks.prompts"),
    "prompt_reward": Metric("its mean reward", "reward", "the training tasks that it was tried on"),
    "groups": Metric("groups in the step", "groups", "the step"),
    "trajectories": Metric("rollouts in the step", "rollouts", "the step"),
    "unscored": Metric("rollouts whose score is missing; they are in no statistic and no loss", "rollouts", "the step"),
    "scoring_raised": Metric("scores missing because the reward raised an exception", "scores", "the step"),
    "scoring_nonsense": Metric("scores missing because the reward gave no finite number", "scores", "the step"),
    "scoring_timeout": Metric("scores missing because the reward took longer than it may", "scores", "the step"),
    "scoring_died": Metric("scores missing because the reward's process ended", "scores", "the step"),
    "scoring_limit": Metric(
        "answers too large to be checked, or to be checked in scoring.timeout of processor time; they count as wrong",
        "scores",
        "the step",
    ),
    "discarded_rollouts": Metric("rollouts sampled and then filtered out", "rollouts", "the run so far"),
    "generated_tokens": Metric("tokens sampled for training, discarded rollouts included", "tokens", "the run so far"),
    "judge_tokens": Metric(
        "tokens that judges generated in training, as far as their server tells", "tokens", "the run so far"
    ),
    "cost": Metric("price of these tokens, where logging.prices has one", "currency of the prices", "the run so far"),
    "length_mean": Metric("mean number of action tokens per rollout", "tokens", "rollouts made in the step"),
    "truncated_rate": Metric("share of rollouts cut at the length limit", "share", "rollouts made in the step"),
    "untagged_turns": Metric(
        "share of turns in which segment.patterns match nothing, where a part reads labels",
        "share",
        "turns of the step",
    ),
    "turns_mean": Metric("mean number of turns of an episode, summaries not counted", "turns", "episodes of the step"),
    "malformed_rate": Metric(
        "share of turns in which no action could be read; of answers that `match` or `consistency` could not read",
        "share",
        "turns of the step; without an environment, rollouts made in the step",
    ),
    "illegal_rate": Metric("share of turns with an action that was not possible there", "share", "turns of the step"),
    "cut_action_rate": Metric("share of actions cut at sampling.max_new_tokens", "share", "actions of the step"),
    "turn_limit_rate": Metric("share of episodes that a limit on turns ended", "share", "episodes of the step"),
    "context_limit_rate": Metric("share of episodes that ran out of context", "share", "episodes of the step"),
    "summaries": Metric("summaries that the policy wrote of its episode", "turns", "the step"),
    "rewritten_contexts": Metric(
        "contexts built anew because the chat template rewrites earlier turns", "contexts", "the step"
    ),
    "kept_against_template": Metric(
        "turns whose context the chat template would have rewritten (chat.rewrites=keep)", "turns", "the step"
    ),
    "env_raised": Metric("episodes whose environment raised an exception; unscored", "episodes", "the step"),
    "env_nonsense": Metric("episodes whose environment returned no valid TimeStep; unscored", "episodes", "the step"),
    "env_timeout": Metric("episodes whose environment took longer than env.timeout; unscored", "episodes", "the step"),
    "env_died": Metric("episodes whose environment's process ended; unscored", "episodes", "the step"),
    **{name: Metric(*entry) for name, entry in TOOLS.items()},
    "agent_calls_mean": Metric("mean number of replies of an episode", "replies", "episodes of the agent in the step"),
    "agent_contexts_mean": Metric(
        "mean number of contexts of an episode: 1 where no call rewrites or leaves the conversation",
        "contexts",
        "episodes of the agent in the step",
    ),
    "agent_overridden_calls": Metric(
        "calls that asked for another temperature, top_p or top_k; the run's were used", "calls", "the step"
    ),
    "agent_call_limit_rate": Metric(
        "share of episodes that broke where rollout.max_calls was reached; scored 0",
        "share",
        "episodes of the agent in the step",
    ),
    "agent_context_limit_rate": Metric(
        "share of episodes that broke where their messages were too long; scored 0",
        "share",
        "episodes of the agent in the step",
    ),
    "agent_raised": Metric("episodes whose agent raised or ended with an error", "episodes", "the step"),
    "agent_timeout": Metric("episodes whose agent took longer than rollout.timeout", "episodes", "the step"),
    "agent_died": Metric("episodes whose agent's process was killed", "episodes", "the step"),
    "agent_nonsense": Metric("episodes whose agent returned what is no reward", "episodes", "the step"),
    "agent_silent": Metric("episodes whose agent asked the policy for nothing", "episodes", "the step"),
    "staleness_mean": Metric(
        "versions of the policy between sampling a token and training on it", "steps", "trained sampled tokens"
    ),
    "staleness_max": Metric("the largest of them", "steps", "trained sampled tokens"),
    "mismatch_kl": Metric(
        "mean r - 1 - log r, r = proximal / behaviour probability: an estimate of KL(behaviour, proximal); with "
        "async.max_staleness alone",
        "nats",
        "trainable tokens of the step's first optimiser step",
    ),
    "dropped_groups": Metric("groups that were over age: async.over_age", "groups", "the step"),
    "failed_groups": Metric("groups whose rollout raised; nothing of them is trained", "groups", "the step"),
    "origin_NAME": Metric("share of rollouts of that origin, where not all are the policy's", "share", "rollouts"),
    "prefilled_tokens": Metric("context tokens that went through the sampler's model", "tokens", "the step"),
    "reused_tokens": Metric("context tokens that did not, because an earlier turn's were kept", "tokens", "the step"),
    "positive_nll": Metric(
        "mean -log p of the tokens of positive advantage, before its coefficient", "nats", f"trained tokens {_UPDATES}"
    ),
    "clip_fraction": Metric(
        "share of tokens whose gradient the surrogate cuts, shrinks or reverses, against that of the unclipped loss",
        "share",
        f"trainable tokens {_UPDATES}",
    ),
    "approx_kl": Metric(
        "mean of ratio - 1 - log ratio: how far the policy moved within the step",
        "nats",
        f"trainable tokens {_UPDATES}",
    ),
    "ratio_max": Metric("largest ratio of current to proximal policy", "ratio", f"trainable tokens {_UPDATES}"),
    "ratio_variance": Metric("mean of (ratio - 1)^2", "ratio squared", f"tokens of non-zero advantage {_UPDATES}"),
    "ratio_penalty": Metric("coefficient of (ratio - 1)^2 after the step", "of the objective", "the step"),
    "on_policy": Metric(
        "share of optimiser steps in which every ratio is exactly 1, so that no clip can bind",
        "share",
        "optimiser steps of the step",
    ),
    "kl": Metric(
        "mean estimated KL divergence from the reference, before its coefficient", "nats", f"trained tokens {_UPDATES}"
    ),
    "future_factor": Metric(
        "mean factor on a token's loss from the drift of what follows it", "factor", f"trained tokens {_UPDATES}"
    ),
    "dual_clip_dropped": Metric(
        "share of tokens in trajectories that are dropped for their dual-clipped tokens",
        "share",
        f"trained tokens {_UPDATES}",
    ),
    "mirror_kl": Metric(
        "mean of ratio log ratio - ratio + 1: how far the policy moved within the step, as a penalty",
        "nats",
        f"trained tokens {_UPDATES}",
    ),
    "mirror_kl_coef": Metric("its coefficient", "of the objective", "the step's optimiser steps, mean"),
    "kl_coef": Metric(
        "coefficient of the KL in force, where a control moves it", "coefficient", "the step's optimiser steps, mean"
    ),
    "entropy_coef": Metric(
        "coefficient of the entropy bonus in force, where a control moves it",
        "coefficient",
        "the step's optimiser steps, mean",
    ),
    "kl_factor": Metric("what the adaptive control has multiplied the KL's coefficient by", "factor", "the run so far"),
    "schedule_progress": Metric("share of its schedule that a coefficient has gone", "share", "the run so far"),
    "scheduled_KEY": Metric("the number of the setting KEY, which has a schedule", "of the setting", "the step"),
    "accuracy_factor": Metric("what the success rate multiplies the next coefficient by", "factor", "the step"),
    "entropy_below_target": Metric(
        "1 where the entropy is below its target, so that the bonus is in force next", "flag", "the step"
    ),
    "kl_over_budget": Metric("KL less its budget", "nats", "the step"),
    "entropy_band": Metric(
        "mean of entropy less the penalty for leaving its band", "nats", f"trained tokens {_UPDATES}"
    ),
    "entropy_band_coef": Metric(
        "coefficient of the penalty for leaving the entropy band in force",
        "coefficient",
        "the step's optimiser steps, mean",
    ),
    "entropy_turn_K": Metric("mean entropy of the policy in turn K", "nats", f"trained tokens of the turn {_UPDATES}"),
    "teacher_divergence": Metric(
        "mean divergence of policy and teacher, before ratio and weights",
        "nats",
        f"tokens that have a teacher {_UPDATES}",
    ),
    "teacher_entropy": Metric("mean entropy of the teacher", "nats", f"tokens that have a teacher {_UPDATES}"),
    "taught_share": Metric("share of the tokens that have a teacher", "share", f"trained tokens {_UPDATES}"),
    "centring_share": Metric("tokens with a sampler's distribution", "share", f"trained tokens {_UPDATES}"),
    "centring_mass": Metric("probability of the recorded ids under the sampler", "share", f"trained tokens {_UPDATES}"),
    "inner_layer": Metric("1 while an inner layer's policy is trained, 0 afterwards", "flag", "the step"),
    "shaped_share": Metric(
        "share of tokens whose loss is shaped because their rollout policy is unknown",
        "share",
        f"trained tokens {_UPDATES}",
    ),
    "value_loss": Metric("mean of (value - target)^2 / 2", "reward squared", f"tokens with a target {_UPDATES}"),
    "value_explained": Metric(
        "1 - mean (target - value)^2 / variance of the target", "share", f"tokens with a target {_UPDATES}"
    ),
    "implicit_reward_gap": Metric(
        "root mean square of what the centred implicit rewards miss the centred rewards by",
        "reward",
        f"rollouts {_UPDATES}",
    ),
    "score_gap": Metric("mean score of right rollouts less that of wrong ones", "of the score", f"groups {_UPDATES}"),
    "constraint_kl": Metric("KL divergence that the constraint bounds", "nats a token", f"rollouts {_UPDATES}"),
    "pair_accuracy": Metric(
        "share of pairs whose better member the policy, against the reference, prefers", "share", f"pairs {_UPDATES}"
    ),
    "pair_margin": Metric("mean difference of the two implicit rewards", "nats", f"pairs {_UPDATES}"),
    "pairs": Metric("pairs of a better and a worse rollout", "pairs", f"groups {_UPDATES}"),
    "masked_kl": Metric(
        "mean k3 of the policy with hidden observations to the policy without", "nats", "trained tokens of the step"
    ),
    "value_loss@NAME": Metric(
        "mean of (value - target)^2 / 2 of the value head NAME", "reward squared", f"tokens with a target {_UPDATES}"
    ),
    "value_explained@NAME": Metric(
        "1 - mean (target - value)^2 / variance of the target, of the value head NAME",
        "share",
        f"tokens with a target {_UPDATES}",
    ),
    "steps_rows": Metric(
        "steps and merged pairs of earlier steps that the reward model of steps is fitted on", "rows", "its buffer"
    ),
    "steps_used": Metric("1 where steps are rewarded by it, 0 as long as it has seen too little", "flag", "the step"),
    "steps_error": Metric(
        "mean square of a step's reward less what came of the step", "reward squared", "scored, compared steps"
    ),
    "steps_spread": Metric("variance of what came of the steps", "reward squared", "scored, compared steps"),
    "belief_start": Metric(
        "mean belief in the right answer before the first turn or segment",
        "probability",
        "rollouts whose answer is known",
    ),
    "belief_end": Metric(
        "mean belief in the right answer after the last turn or segment that is asked",
        "probability",
        "rollouts whose answer is known",
    ),
    "belief_moved": Metric(
        "mean change of the belief by a turn or segment, either way; 1e-5 is noise",
        "probability",
        "action tokens whose belief is known",
    ),
    "belief_unknown": Metric("share of rollouts whose task has no answer that can be asked for", "share", "the step"),
    "effective_rank": Metric("mean effective rank of a rollout's hidden states", "directions", "scored rollouts"),
    "rank_velocity": Metric(
        "mean growth of the effective rank over prefixes, against all before", "directions", "scored rollouts"
    ),
    "rank_acceleration": Metric("mean change of that growth from prefix to prefix", "directions", "scored rollouts"),
    "progress_loss": Metric(
        "mean square of outcome less the sum of the turns' shares in it", "reward squared", "scored, compared rollouts"
    ),
    "progress_explained": Metric("1 - progress_loss / variance of the outcomes", "share", "scored, compared rollouts"),
    "progress_used": Metric(
        "1 where turns are paid by the estimator of progress, 0 as long as it has seen too little", "flag", "the step"
    ),
    "progress_fit": Metric("progress_loss on the estimator's own buffer", "reward squared", "the estimator's buffer"),
    "progress_spread": Metric("standard deviation of the turns' shares in the outcome", "reward", "turns of the step"),
    "judge_asked": Metric("different rollouts whose steps were judged", "rollouts", "the step"),
    "judge_failures": Metric("answers of the judge of steps that are missing or can't be read", "answers", "the step"),
    "steps_unscored": Metric("steps (segments, or turns) of scored rollouts that have no score", "steps", "the step"),
    "probe_rows": Metric(
        "rollouts of earlier steps that the value probe is fitted on", "rollouts", "the probe's buffer"
    ),
    "probe_used": Metric(
        "1 where baselines are the probe's, 0 where they are the other rollouts' mean", "flag", "the step"
    ),
    "baseline_error": Metric("mean square of outcome less baseline", "reward squared", "groups of several"),
    "group_mean_error": Metric(
        "the same of the mean of the group's other rollouts", "reward squared", "groups of several"
    ),
    "prm_loss": Metric("loss of the implicit reward model on pairs of the step", "nats", "pairs of the step"),
    "prm_accuracy": Metric(
        "weight of the pairs that the implicit reward model orders rightly", "share", "pairs of the step"
    ),
    "prm_pairs": Metric("pairs that the implicit reward model was trained on", "pairs", "the step"),
    "prm_nonfinite_steps": Metric(
        "steps of the implicit reward model that were skipped, where any were", "optimiser steps", "the step"
    ),
    "entropy": Metric("mean entropy of the policy", "nats", f"trained tokens {_UPDATES}"),
    "entropy_sampled": Metric(
        "mean -log p by the sampler's own distribution, an estimate of its entropy also where nothing is trained",
        "nats",
        "trainable tokens that it drew in the step",
    ),
    "sampler_gap": Metric(
        "largest difference between the learner's and the sampler's log-prob of a token",
        "nats",
        "trainable tokens of the step's first optimiser step",
    ),
    "sampler_gap_mean": Metric(
        "mean of these differences without sign", "nats", "trainable tokens of the step's first optimiser step"
    ),
    "loss": Metric("value minimised", "of the objective", "the step's optimiser steps, mean"),
    "grad_norm": Metric(
        "length of the gradient before clipping", "of the gradient", "the step's optimiser steps, mean"
    ),
    "lr": Metric("learning rate at the beginning of the step", "per optimiser step", "the step"),
    "weights_moved": Metric(
        "share of the weights that changed, by a sample of 65536; of bfloat16 ones all are counted, and float32 copies "
        "keep what is rounded away",
        "share",
        "trained weights, mean over the step's optimiser steps",
    ),
    "optimiser_steps": Metric("optimiser steps taken", "optimiser steps", "the step"),
    "empty_steps": Metric(
        "steps in which no coefficient differed from 0, so that nothing moved", "steps", "the run so far"
    ),
    "nonfinite_steps": Metric(
        "optimiser steps that were skipped because their gradient was not finite", "optimiser steps", "the run so far"
    ),
    "tokens_forward": Metric("tokens through the learner's forward pass with gradient", "tokens", "the step"),
    "unique_token_ratio": Metric("tokens of the flattened rollouts per token of the forward pass", "ratio", "the step"),
    "weights_fingerprint": Metric(
        "fingerprint of the trained parameters after the step, equal for equal bits in any number of processes",
        "checksum",
        "trained parameters",
    ),
    "eval_accuracy": Metric("mean verdict; what could not be scored counts as wrong", "share", "held-out tasks"),
    "eval_low": Metric("lower end of the 95% interval of eval_accuracy", "share", "held-out tasks"),
    "eval_high": Metric("upper end of the 95% interval of eval_accuracy", "share", "held-out tasks"),
    "eval_pass_at_K": Metric(
        "probability that one of K samples of a task is right, unbiased", "share", "held-out tasks"
    ),
    "eval_vote_NAME": Metric("NAME of the votes of a task's samples, see eval.vote", "share", "held-out tasks"),
    "eval_pool_accuracy": Metric(
        "as eval_accuracy, on the training instances of a pool (tasks.options.pool)", "share", "instances of the pool"
    ),
    "eval_picture_kl": Metric(
        "mean KL from the policy to itself with its pictures hidden; below 0.001 it answers from the text",
        "nats",
        "tokens of up to 256 evaluated attempts",
    ),
    "eval_turns": Metric("mean number of turns", "turns", "evaluated attempts"),
    "eval_tasks": Metric("held-out tasks evaluated", "tasks", "the evaluation"),
    "eval_unscored": Metric("evaluated completions whose score is missing", "rollouts", "the evaluation"),
    "eval_length": Metric("mean number of tokens of the completions", "tokens", "evaluated completions"),
    "eval_NAME": Metric("mean of the reward component NAME, 0 where it is missing", "reward", "evaluated completions"),
    "time_sample_s": Metric("sampling; with async.max_staleness also environments and rewards", "seconds", "the step"),
    "time_wait_s": Metric("waiting for groups that are sampled beside the updates", "seconds", "the step"),
    "time_publish_s": Metric("publishing weights to the sampling servers", "seconds", "the step"),
    "time_wait_servers_s": Metric(
        "waiting for sampling servers, fewer than min_replicas being ready", "seconds", "the step"
    ),
    "time_score_s": Metric("scoring", "seconds", "the step"),
    "time_tools_s": Metric("calls of MCP tools, within sampling", "seconds", "the step"),
    "time_update_s": Metric("advantages, gradients and optimiser", "seconds", "the step"),
    "time_step_s": Metric("the whole step, evaluation and checkpoint not included", "seconds", "the step"),
    "sampler_failures": Metric("times that a sampling server stopped answering as it should", "failures", "the step"),
    "sampler_misread": Metric("rollouts whose pictures vLLM read as other ids; unscored", "samples", "the step"),
    "time_eval_s": Metric("the evaluation", "seconds", "the evaluation"),
    "time_sample_tokens_per_s": Metric("tokens sampled per second of sampling", "tokens/second", "the step"),
    "time_update_tokens_per_s": Metric("the learner's tokens per second of updating", "tokens/second", "the step"),
    "memory_peak_mb": Metric("largest resident memory of the process", "MiB", "the process so far"),
}


PREFIXES = (
    ("eval_pass_at_", "K"),
    ("scheduled_", "KEY"),
    *((prefix, "NAME") for prefix in ("eval_vote_", "eval_", "reward_", "origin_", "value_loss@", "value_explained@")),
)


def metric(name: str) -> Metric | None:
    """The entry of `NAMES` for a key of a line, with its own number or reward in it; None if unknown."""
    if name in NAMES:
        return NAMES[name]
    for prefix, word in PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            entry = NAMES[prefix + word]
            return replace(entry, meaning=entry.meaning.replace(word, name.removeprefix(prefix)))
    return None


def meaning(name: str) -> str | None:
    """Describe a metric with unit and set in one line; None if unknown."""
    return None if (entry := metric(name)) is None else str(entry)


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop metrics that depend on the clock or the machine; equal runs have equal rows."""
    return {k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))}


class MetricsFile:
    """A file of flat JSON objects, a line each, that grows by whole lines."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line, keys in the order given; a number that is not finite becomes null, a nested value is refused."""
        line = json.dumps({k: _as_json(k, v) for k, v in row.items()}, allow_nan=False).encode() + b"\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    remaining = memoryview(line)
                    while remaining:
                        remaining = remaining[os.write(descriptor, remaining) :]
                    os.fsync(descriptor)  # no checkpoint may be on the disk before the lines of its steps
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} not written: {error.strerror}; free space or check its directory"
            ) from error

    def truncate(self, step: int) -> int:
        """Drop the lines of steps after `step` and a torn last line, in one atomic write; gives how many went."""
        if not self.path.exists():
            return 0
        lines = self.path.read_bytes().splitlines(keepends=True)
        lines_kept = [
            line for line, row in zip(lines, _rows(self.path, lines), strict=False) if row.get("step", 0) <= step
        ]
        if len(lines_kept) < len(lines):
            write_atomic(self.path, b"".join(lines_kept))
        return len(lines) - len(lines_kept)

    def read(self) -> list[dict[str, Any]]:
        """Read the rows, see `read`."""
        return read(self.path)


def read(path: str | Path) -> list[dict[str, Any]]:
    """Read the rows of a metrics file ([] where there is none yet), without a last line that has no end yet."""
    path = Path(path)
    return _rows(path, path.read_bytes().splitlines(keepends=True)) if path.exists() else []


def _rows(path: Path, lines: list[bytes]) -> list[dict[str, Any]]:
    if lines and not lines[-1].endswith(b"\n"):
        lines = lines[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise RecordError(f"{path} line {number} is not a JSON object: restore the file or remove that line")
        rows.append(row)
    return rows


def _as_json(name: str, value: Any) -> Value:
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a scalar of torch or numpy
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, int | str):
        return value
    raise RecordError(
        f"metric {name!r} is a {type(value).__name__}: a line of metrics holds numbers, strings and null only"
    )
