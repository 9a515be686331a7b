"""Figures of one training step for metrics.jsonl: of its rollouts, episodes and updates, and what they add up to.

`metrics.py` says what each figure means. A figure is None where there is nothing to take it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.segments.base import LABEL
from gxpo.environments.envs.pool import FAILURES
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.learning.base import NoUpdate
from gxpo.methods.method import Method, zero_signal_groups
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.protocols import StepInfo
from gxpo.sampling.engines.openai import OpenAIEngine
from gxpo.sampling.engines.vllm import VllmEngine
from gxpo.sampling.rollouts.logged import LOGGED
from gxpo.training.tool_figures import tool_figures

BORROWED = (
    "replay",
    "demonstration",
    "baseline",
    LOGGED,
)  # origins of rollouts that do not show how good the policy is


def _mean(x: Tensor) -> float | None:
    """Mean of the finite values; None without any."""
    finite = x[x.isfinite()]
    return float(finite.mean()) if finite.numel() else None


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ---------------------------------------------------------------- rollouts
def rollout_figures(forest: Forest, signal_P: Tensor) -> dict[str, Any]:
    """Rewards, verdicts, lengths and failures of the step's rollouts, and the share of groups without signal.

    signal_P  the advantage, or 1 at the tokens that the objective reads where it reads no advantage

    Borrowed rollouts (replayed, demonstrated) are counted, but are in no mean of rewards, verdicts or lengths.
    """
    is_silent_G = zero_signal_groups(forest, signal_P)
    length_R = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).to(torch.float64)
    is_own_R = torch.tensor([origin not in BORROWED for origin in forest.origin], dtype=torch.bool)
    # An episode that its turn limit ended was not cut in the middle of an action.
    has_episodes = any("end" in info for info in forest.info)
    is_cut_R = forest.truncated & ~at_turn_limit(forest) if has_episodes else forest.truncated
    return {
        "reward_mean": _mean(forest.outcome[is_own_R]),
        **reward_spread(forest, is_own_R),
        "success_rate": _mean(forest.success[is_own_R]),
        "zero_signal_groups": _mean(is_silent_G.to(torch.float64)),
        **silent_groups_by_verdict(forest, is_silent_G),
        "groups": is_silent_G.numel(),
        "trajectories": forest.n_trajectories,
        "unscored": int((~forest.scored).sum()),
        "length_mean": _mean(length_R[is_own_R]),
        "truncated_rate": _mean(is_cut_R[is_own_R].to(torch.float64)),
        **{f"reward_{name}": _mean(forest.components[is_own_R, i]) for i, name in enumerate(forest.component_names)},
        **untagged_turns(forest),
        **malformed_answers(forest, is_own_R),
        # after `malformed_answers`: of episodes the rate counts turns, under the same name
        **(episode_figures(forest) if has_episodes else {}),
        **(agent_figures(forest) if any("agent" in info for info in forest.info) else {}),
    }


def malformed_answers(forest: Forest, row_mask_R: Tensor) -> dict[str, Any]:
    """Share of the trajectories in the mask with an answer that some reward could not read."""
    columns = [i for i, name in enumerate(forest.component_names) if name.startswith("malformed_")]
    return {"malformed_rate": _mean(forest.components[row_mask_R][:, columns].amax(1))} if columns else {}


def reward_spread(forest: Forest, row_mask_R: Tensor) -> dict[str, Any]:
    """Spread of the outcomes in the mask: mean standard deviation (n - 1) within groups, smallest and largest."""
    is_scored_R = row_mask_R & forest.scored
    group_R = forest.ids("group", axis="R")
    outcome_R = torch.where(is_scored_R, forest.outcome, 0.0)
    # A group with a single scored member has no spread, and would pull the mean towards 0.
    has_peers_R = is_scored_R & (grouped.count(group_R, is_scored_R) > 1)
    _, group_index = torch.unique(group_R[has_peers_R], return_inverse=True)
    std = grouped.std(outcome_R, group_R, is_scored_R)[has_peers_R]
    std_G = torch.zeros(int(group_index.max()) + 1 if group_index.numel() else 0, dtype=torch.float64)
    std_G[group_index] = std
    scored_outcome = forest.outcome[is_scored_R]
    return {
        "reward_std": _mean(std_G),
        "reward_min": float(scored_outcome.min()) if scored_outcome.numel() else None,
        "reward_max": float(scored_outcome.max()) if scored_outcome.numel() else None,
    }


def silent_groups_by_verdict(forest: Forest, is_silent_G: Tensor) -> dict[str, Any]:
    """Shares of groups without signal whose verdicts are all right, and all wrong; empty without any verdict."""
    has_verdict_R = forest.success.isfinite()
    if not bool(has_verdict_R.any()):
        return {}
    group_R = forest.ids("group", axis="R")
    verdict_R = torch.where(has_verdict_R, forest.success, 0.0)
    worst_R = grouped.min(verdict_R, group_R, has_verdict_R)
    best_R = grouped.max(verdict_R, group_R, has_verdict_R)
    # A group without a verdict is neither.
    all_right_G, all_wrong_G = (torch.zeros(len(is_silent_G), dtype=torch.bool) for _ in range(2))
    all_right_G[group_R[has_verdict_R]] = (worst_R >= 1.0)[has_verdict_R]
    all_wrong_G[group_R[has_verdict_R]] = (best_R <= 0.0)[has_verdict_R]
    return {
        "zero_signal_all_right": _mean((is_silent_G & all_right_G).to(torch.float64)),
        "zero_signal_all_wrong": _mean((is_silent_G & all_wrong_G).to(torch.float64)),
    }


def untagged_turns(forest: Forest) -> dict[str, Any]:
    """Share of turns without a label of the segmenter; empty if it gives no labels."""
    if LABEL not in forest.extras:
        return {}
    is_tagged_S = torch.zeros(forest.n_steps, dtype=torch.float64)
    is_tagged_S[forest.path_step[forest.extras[LABEL][forest.path_token] > 0]] = 1.0
    return {"untagged_turns": _mean(1.0 - is_tagged_S)}


def sampled_by_this_run(forest: Forest) -> Tensor:
    """[R] bool: trajectories whose policy versions count this run's updates; those of logged ones count another's."""
    return torch.tensor([origin != LOGGED for origin in forest.origin], dtype=torch.bool)


def source_figures(forest: Forest, version: int) -> dict[str, Any]:
    """Age of the rollouts in updates, shares of origins, and the sampler's entropy on tokens of this step.

    version  the policy's own at the start of the step

    Tokens without a sampler (demonstrations) have no age.
    """
    has_sampler_P = forest.path_trainable & forest.path_behaviour_logprob.isfinite()
    has_sampler_P &= forest.to_path(sampled_by_this_run(forest), "R")
    node = forest.token_node[forest.path_token[has_sampler_P]]
    age = (version - forest.policy_version[node]).to(torch.float64)
    shares = {f"origin_{name}": forest.origin.count(name) / len(forest.origin) for name in sorted(set(forest.origin))}
    # Each stored token counts once, however many trajectories share it, so this is on T and not on P.
    is_fresh_T = forest.trainable & (forest.policy_version[forest.token_node] == version)
    if LOGGED in forest.origin:
        is_fresh_T &= torch.zeros_like(is_fresh_T).index_fill(0, forest.path_token[has_sampler_P], True)
    return {
        "staleness_mean": _mean(age),
        "staleness_max": float(age.max()) if age.numel() else None,
        "entropy_sampled": _mean(-forest.behaviour_logprob[is_fresh_T]),
        **({} if set(forest.origin) <= {"policy"} else shares),
    }


# ---------------------------------------------------------------- episodes and agents
AGENT_FAILURES = ("raised", "timeout", "died", "nonsense", "silent")
AT_TURN_LIMIT = ("turns", "truncated")  # ends of an episode: the run's limit, the environment's own


def at_turn_limit(forest: Forest) -> Tensor:
    """[R] bool: a limit on turns ended the episode; no action was cut."""
    return torch.tensor([info.get("end") in AT_TURN_LIMIT for info in forest.info], dtype=torch.bool)


def episode_figures(forest: Forest) -> dict[str, Any]:
    """Turns, refused actions and ends of the episodes: the trajectories whose `info` has an `end`."""
    ends = [info["end"] for info in forest.info if "end" in info]
    # Other trajectories are single steps that belong to no episode; summaries and asides are no moves in one.
    is_episode = ["end" in info for info in forest.info]
    steps = zip(forest.step_info, forest.step_trajectory.tolist(), strict=True)
    moves = [info for info, r in steps if is_episode[r] and not {"summary", "aside"} & info.keys()]
    errors = [info.get("action_error") for info in moves]
    return {
        "turns_mean": len(moves) / len(ends),
        "malformed_rate": errors.count("malformed") / max(1, len(moves)),
        "illegal_rate": errors.count("illegal") / max(1, len(moves)),
        "cut_action_rate": forest.step_finish.count("length") / max(1, forest.n_steps),
        "turn_limit_rate": sum(map(ends.count, AT_TURN_LIMIT)) / len(ends),
        "context_limit_rate": ends.count("context") / len(ends),
        "summaries": sum("summary" in info for info in forest.step_info),
        "rewritten_contexts": sum(info.get("rewritten", 0) for info in forest.info),
        "kept_against_template": sum(info.get("kept", 0) for info in forest.info),
        **{f"env_{kind}": ends.count(kind) for kind in FAILURES},
        **result_figures(forest),
        **(tool_figures(forest) if any("tools" in info for info in forest.info) else {}),
    }


def result_figures(forest: Forest) -> dict[str, float]:
    """Share of each way in which games end (win, draw, invalid...), of the trajectories whose `info` has a "result"."""
    results = [info["result"] for info in forest.info if isinstance(info.get("result"), str)]
    return {f"result_{name}": results.count(name) / len(results) for name in sorted(set(results))}


def agent_figures(forest: Forest) -> dict[str, Any]:
    """Calls, contexts and ends of the episodes that the user's agent played."""
    reports = {r: info["agent"] for r, info in enumerate(forest.info) if "agent" in info}
    ends, n = [report["end"] for report in reports.values()], len(reports)
    return {
        "agent_calls_mean": sum(r in reports for r in forest.step_trajectory.tolist()) / n,
        "agent_contexts_mean": sum(report["contexts"] for report in reports.values()) / n,
        "agent_overridden_calls": sum(report["overridden"] for report in reports.values()),
        "agent_call_limit_rate": ends.count("turns") / n,
        "agent_context_limit_rate": ends.count("context") / n,
        **{f"agent_{kind}": ends.count(kind) for kind in AGENT_FAILURES},
    }


def agent_failures(forest: Forest) -> dict[str, str]:
    """First message of each way in which an agent's episode failed, by the name of its metric."""
    failed = [info for info in forest.info if "agent" in info and "failure" in info]
    return {f"agent_{info['agent']['end']}": info["failure"] for info in reversed(failed)}


# ---------------------------------------------------------------- updates and servers
def update_figures(
    infos: Sequence[StepInfo], metrics: Sequence[Mapping[str, float]], gap: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Average the figures of the optimiser steps that were taken.

    infos    of all optimiser steps; empty ones ran nothing, non-finite ones moved nothing
    metrics  of the objective's terms, one mapping for each step that was taken
    gap      largest and mean difference of log-probs between sampler and learner, nats
    """
    computed_infos = [i for i in infos if not i.empty]
    moving_infos = [i for i in computed_infos if not i.nonfinite]
    forward, flat = sum(i.tokens_forward for i in computed_infos), sum(i.tokens_flat for i in computed_infos)
    moved = [i.moved for i in moving_infos if i.moved is not None]
    names = dict.fromkeys(k for m in metrics for k in m)
    return {
        **{name: _average([m[name] for m in metrics if name in m]) for name in names},
        "sampler_gap": gap[0],
        "sampler_gap_mean": gap[1],
        "loss": _average([i.loss for i in moving_infos]),
        "grad_norm": _average([i.grad_norm for i in moving_infos]),
        "optimiser_steps": len(moving_infos),
        **({"weights_moved": _average(moved)} if moved else {}),
        "tokens_forward": forward,
        "unique_token_ratio": flat / forward if forward else None,
    }


def server_figures(engine: Any) -> dict[str, float]:
    """Counts since its start of an engine outside of this process (retries, failures); empty for other engines."""
    return engine.figures() if isinstance(engine, OpenAIEngine | VllmEngine) else {}


# ---------------------------------------------------------------- is there anything to learn from?
PATIENCE = 10  # steps of zero-signal groups before a warning: at first a weak policy may get all of them wrong


@dataclass
class Tally:
    """Counts over the metrics of steps 1 to `steps`; `problem` tells from them that nothing is learned."""

    steps: int = 0
    rollouts: int = 0
    unscored: int = 0
    groups: int = 0
    zero_signal: float = 0.0
    updates: int = 0
    labelled: int = 0  # steps whose turns could have tags
    tagged: float = 0.0  # the sum of their shares of turns that have some

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Tally:
        """Count over these lines of metrics.jsonl."""
        tally = cls()
        for row in rows:
            tally.add(row)
        return tally

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one step's line."""
        self.steps += 1
        self.rollouts += row["trajectories"]
        self.unscored += row["unscored"]
        self.groups += row["groups"]
        self.zero_signal += (row["zero_signal_groups"] or 0.0) * row["groups"]  # None where there are no groups
        self.updates += row["optimiser_steps"]
        if (untagged := row.get("untagged_turns")) is not None:
            self.labelled += 1
            self.tagged += 1.0 - untagged

    @property
    def all_unscored(self) -> bool:
        """True if there were rollouts and none was scored."""
        return self.unscored == self.rollouts > 0

    def problem(self, method: Method, failures: Mapping[str, str] | None = None) -> str | None:
        """Explain in a line why these steps can have taught nothing, or not what the method is for; None if they can.

        failures  messages of what could not be scored, by kind
        """
        steps = "step 1" if self.steps == 1 else f"the first {self.steps} steps"
        # The causes in the order of a step: scores, tags, signal, updates; the first one explains the others.
        if self.all_unscored:
            reasons = "; ".join(failures.values()) if failures else "see the run's warnings"
            return f"nothing is learned: all {self.rollouts} rollouts of {steps} were unscored ({reasons})"
        if isinstance(method.update, NoUpdate):
            return None
        if self.labelled and not self.tagged:
            return (
                f"no turn of {steps} has anything that segment.patterns look for, so what the method does with it is "
                "left out: ask for that form of replies in the prompt or chat.system, or change the patterns"
            )
        # Groups of zero advantage are no problem where a term of the objective (a teacher's, say) teaches without it.
        if any(map(learns_from_equal_groups, method.terms.values())):
            return None
        # The share is a float mean of each step: half a group of slack absorbs its rounding.
        if self.groups and self.zero_signal > self.groups - 0.5:
            return (
                f"nothing is learned: all {self.groups} groups of {steps} had zero signal, all advantages 0 "
                "(equal rewards within a group?): see `gxpo check-reward` and `gxpo methods --for 'all-wrong groups'`"
            )
        if self.steps and not self.updates:
            return f"nothing is learned: no parameter has moved in {steps}, no rollout had advantage and weight"
        return None
