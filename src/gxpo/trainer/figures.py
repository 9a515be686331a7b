"""The figures of a step, its rollouts as they are written for people, and whether there is anything to learn from."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo import former, levels
from gxpo.envs.pool import FAILURES
from gxpo.forest import Forest
from gxpo.pipeline import Method, silent_groups
from gxpo.protocols import StepInfo
from gxpo.segments.base import LABEL


def _mean(x: Tensor) -> float | None:
    """Mean of the known values."""
    known = x[x.isfinite()]
    return float(known.mean()) if known.numel() else None


BORROWED = ("replay", "demonstration", "baseline")  # origins of rollouts that the policy is not to be judged by


def of_rollouts(forest: Forest, credit: Tensor) -> dict[str, Any]:
    """What the step's rollouts earned, and how many groups were told anything by their credit [P] (where the objective
    reads none: 1 at the entries that it reads). Borrowed rollouts are counted, but earn nothing here."""
    silent = silent_groups(forest, credit)
    lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).to(torch.float64)
    own = torch.tensor([origin not in BORROWED for origin in forest.origin], dtype=torch.bool)
    return {
        "reward_mean": _mean(forest.outcome[own]),
        "success_rate": _mean(forest.success[own]),
        "zero_signal_groups": _mean(silent.to(torch.float64)),
        "groups": silent.numel(),
        "trajectories": forest.n_trajectories,
        "unscored": int((~forest.scored).sum()),
        "length_mean": _mean(lengths[own]),
        "truncated_rate": _mean(forest.truncated[own].to(torch.float64)),
        **{f"reward_{name}": _mean(forest.components[own, i]) for i, name in enumerate(forest.component_names)},
        **of_labels(forest),
        **of_episodes(forest),
    }


def of_labels(forest: Forest) -> dict[str, Any]:
    """The share of turns in which the segmenter has labelled nothing; nothing where it gives no labels."""
    if LABEL not in forest.extras:
        return {}
    tagged = torch.zeros(forest.n_steps, dtype=torch.float64)
    tagged[forest.path_step[forest.extras[LABEL][forest.path_token] > 0]] = 1.0
    return {"untagged_turns": _mean(1.0 - tagged)}


def of_sources(forest: Forest, version: int) -> dict[str, Any]:
    """Where the step's rollouts come from: how many updates old they are, and the shares of origins but the policy's.

    version   the policy's own at the start of the step. Tokens without a sampler (demonstrations) have no age.
    """
    known = forest.path_trainable & forest.path_behaviour_logprob.isfinite()
    node = forest.token_node[forest.path_token[known]]
    age = (version - forest.policy_version[node]).to(torch.float64)
    shares = {f"origin_{name}": forest.origin.count(name) / len(forest.origin) for name in sorted(set(forest.origin))}
    stale = {"staleness_mean": _mean(age), "staleness_max": float(age.max()) if age.numel() else None}
    return {**stale, **({} if set(forest.origin) <= {"policy"} else shares)}


def of_episodes(forest: Forest) -> dict[str, Any]:
    """How the episodes of an environment went; nothing where tasks are prompts."""
    ends = [info["end"] for info in forest.info if "end" in info]
    if not ends:
        return {}
    ended = ["end" in info for info in forest.info]  # others are single steps that belong to no episode
    steps = zip(forest.step_info, forest.step_trajectory.tolist(), strict=True)
    moves = [info for info, r in steps if ended[r] and not {"summary", "aside"} & info.keys()]
    errors = [info.get("action_error") for info in moves]
    return {
        "turns_mean": len(moves) / len(ends),
        "malformed_rate": errors.count("malformed") / max(1, len(moves)),
        "illegal_rate": errors.count("illegal") / max(1, len(moves)),
        "cut_action_rate": forest.step_finish.count("length") / max(1, forest.n_steps),
        "turn_limit_rate": (ends.count("turns") + ends.count("truncated")) / len(ends),
        "context_limit_rate": ends.count("context") / len(ends),
        "summaries": sum("summary" in info for info in forest.step_info),
        "rewritten_contexts": sum(info.get("rewritten", 0) for info in forest.info),
        "kept_against_template": sum(info.get("kept", 0) for info in forest.info),
        **{f"env_{kind}": ends.count(kind) for kind in FAILURES},
    }


def of_updates(infos: Sequence[StepInfo], metrics: Sequence[Mapping[str, float]], sampler_gap: float) -> dict[str, Any]:
    """What the optimiser steps that were taken did, averaged over them."""
    run = [i for i in infos if not i.empty]
    taken = [i for i in run if not i.nonfinite]
    forward, flat = sum(i.tokens_forward for i in run), sum(i.tokens_flat for i in run)
    names = dict.fromkeys(k for m in metrics for k in m)
    return {
        **{name: _average([m[name] for m in metrics if name in m]) for name in names},
        "sampler_gap": sampler_gap,
        "loss": _average([i.loss for i in taken]),
        "grad_norm": _average([i.grad_norm for i in taken]),
        "optimiser_steps": len(taken),
        **({"weights_moved": _average(moved)} if (moved := [i.moved for i in taken if i.moved is not None]) else {}),
        "tokens_forward": forward,
        "unique_token_ratio": flat / forward if forward else None,
    }


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


Decode = Callable[[Sequence[int]], str]


def with_texts(forest: Forest, decode: Decode) -> Forest:
    """The forest with texts beside the ids of prompts and actions."""
    prompts = {n: decode(forest.context(n)) for n in set(forest.prompt_node.tolist())}
    return forest.replace(
        prompt_text=[prompts[n] for n in forest.prompt_node.tolist()],
        action_text=[decode(forest.action(s)) or forest.action_text[s] or "" for s in range(forest.n_steps)],
    )


def annotated(forest: Forest, credit: Tensor, decode: Decode) -> Forest:
    """The forest with texts, and each trajectory's mean credit under `info`."""
    shown = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    shown[forest.path_trajectory] = levels.mean(credit, forest.ids("trajectory", axis="P"), forest.path_trainable)
    info = [{**info, "advantage": a} for info, a in zip(forest.info, shown.tolist(), strict=True)]
    return with_texts(forest, decode).replace(info=info)


def peak_megabytes() -> float:
    """Largest resident memory of the process so far, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


class Clock:
    """How long the phases of a step take, in seconds."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """Ends a phase that began with the one before."""
        before, self._last = self._last, time.perf_counter()
        self._laps[phase] = self._last - before

    def figures(self, generated: int, forward: int) -> dict[str, float]:
        """The phases, the whole, and tokens a second of sampling and updating."""
        return {
            **{f"time_{phase}_s": seconds for phase, seconds in self._laps.items()},
            "time_step_s": time.perf_counter() - self._began,
            "time_sample_tokens_per_s": generated / self._laps["sample"],
            "time_update_tokens_per_s": forward / self._laps["update"],
        }


# ---------------------------------------------------------------- whether there is anything to learn from
PATIENCE = 10  # steps of silent groups before a warning: at first a weak policy may get all of them wrong


@dataclass
class Tally:
    """What the lines of metrics.jsonl say of steps 1 to `steps`."""

    steps: int = 0
    rollouts: int = 0
    unscored: int = 0
    groups: int = 0
    silent: float = 0.0
    updates: int = 0
    labelled: int = 0  # steps whose turns could have tags
    tagged: float = 0.0  # the sum of their shares of turns that have some

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Tally:
        tally = cls()
        for row in rows:
            tally.add(row)
        return tally

    def add(self, row: Mapping[str, Any]) -> None:
        self.steps += 1
        self.rollouts += row["trajectories"]
        self.unscored += row["unscored"]
        self.groups += row["groups"]
        self.silent += (row["zero_signal_groups"] or 0.0) * row["groups"]  # None where there are no groups
        self.updates += row["optimiser_steps"]
        if (untagged := row.get("untagged_turns")) is not None:
            self.labelled += 1
            self.tagged += 1.0 - untagged

    @property
    def all_unscored(self) -> bool:
        return self.unscored == self.rollouts > 0

    def problem(self, method: Method, why: Mapping[str, str] | None = None) -> str | None:
        """Why nothing, or not what the method says, can have been learned in these steps, in a line; None where it can.

        why  messages of what could not be scored, by kind

        Groups without credit are no problem where a term of the objective teaches without it.
        """
        steps = "step 1" if self.steps == 1 else f"the first {self.steps} steps"
        if self.all_unscored:
            said = "; ".join(why.values()) if why else "see the run's warnings"
            return f"nothing is learned: all {self.rollouts} rollouts of {steps} were unscored ({said})"
        if self.labelled and not self.tagged:
            return (
                f"no turn of {steps} has anything that segment.patterns look for, so what the method does with it is "
                "left out: ask for that form of replies in the prompt or chat.system, or change the patterns"
            )
        if any(map(former.learns_from_equal_groups, method.terms.values())):
            return None
        if self.groups and self.silent > self.groups - 0.5:
            return (
                f"nothing is learned: all {self.groups} groups of {steps} were silent, the credit of their rollouts 0 "
                "(equal rewards within a group?): see `gxpo check-reward` and `gxpo methods --for 'all-wrong groups'`"
            )
        if self.steps and not self.updates:
            return f"nothing is learned: no parameter has moved in {steps}, no rollout had credit and weight"
        return None
