"""Rollouts on which every registered method can be tried: what any part reads of them is there, made up."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.forest.forest import Forest

ON_BATTERY = {  # components, groups and origins of the battery in the place of those that a method's own rollout makes
    "arspo": {"weight.progress.kinds": ["correct", "format"]},
    "hdpo": {"credit.weights": {"*": 1.0, "format": 0.15}, "credit.conditions": {"format": "success"}},
    "primal_dual_marl": {"credit.cost": "format", "credit.cost_limit": 0.1},
    "collab_ui": {"credit.group_by": ["group"]},
    "mm_grpo": {"credit.group_by": ["group"]},
    "mbrcsl": {"credit.origin": "policy"},
    "dpa": {"credit.quantile": 0.5},  # its highest eighth is nobody in groups of two and three
}


composed_once = functools.cache(gxpo.method)  # for tests that only read it


@functools.cache
def kinds_of_parts(name: str) -> tuple[tuple[Hashable, ...], ...]:
    """Types of the parts that compute on a forest, with the words and switches of their settings: methods that have all
    of them between them run every branch that a method chooses by name."""
    return tuple(_kinds_of_parts(composed_once(name)))


def _kinds_of_parts(method: gxpo.Method) -> Iterator[tuple[Hashable, ...]]:
    for stage in ("credit", "weights", "terms", "shapes", "step_rewards"):
        value = getattr(method, stage)
        for part in value.values() if isinstance(value, Mapping) else [value]:
            yield stage, type(part)
            for key, setting in vars(part).items():
                plain = isinstance(setting, (str, bool, type(None)))
                yield stage, type(part), key, setting if plain else type(setting)


def battery(
    seed: int, *, sizes: Sequence[int] = (4, 3, 5), rewards: Sequence[float] | None = None, unscored: Sequence[str] = ()
) -> Forest:
    """Groups of unequal size and length; two turns where a state may be met again; log-probs of some sampler; trees,
    segments, verdicts, named rewards and noise scales."""
    rng = random.Random(seed)
    records = []
    for g, size in enumerate(sizes):
        for i in range(size):
            turns = []
            for _ in range(rng.choice((1, 2, 2))):
                action = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 6))]
                turns.append(
                    {
                        "observation": [rng.randrange(1, 60)],
                        "action": action,
                        "state": f"s{rng.randrange(2)}",
                        "logprob": [-rng.random() * 3 - 0.1 for _ in action],
                        "segments": list(range(len(action))),
                    }
                )
            reward = rng.choice((0.0, 0.3, 1.0)) if rewards is None else rewards[g]
            success = reward == 1.0 if rewards is None else rewards[g] > 0.5
            saved_choice = rng.choice((0.0, 1.0)) if rewards is None else 1.0
            name = f"{g}.{i}"
            records.append(
                {
                    "schema": "gxpo.rollouts/1",
                    "group": f"g{g}",
                    "id": name,
                    "prompt": [7 + g, 8, 9],
                    "turns": turns,
                    "reward": None if name in unscored else reward,
                    "rewards": {"correct": float(success), "format": saved_choice},
                    "success": success,
                    "info": {"tree": i % 2, "gold_calls": [], "population": f"p{g % 2}"},
                }
            )
    listed_values = {r["id"]: r for r in records}
    for g in (g for g, size in enumerate(sizes) if size > 1):  # the first two act alike and end in one state
        listed_values[f"{g}.1"]["turns"] = copy.deepcopy(listed_values[f"{g}.0"]["turns"])
        listed_values[f"{g}.0"]["final_state"] = listed_values[f"{g}.1"]["final_state"] = "end"
    forest = Forest.from_records(records)
    noise = 0.1 + torch.rand(forest.n_tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    label = (torch.arange(forest.n_tokens) + seed) % 5  # of four kinds of text, 0 none
    value = torch.rand(forest.n_tokens, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    unmasked_at = (torch.arange(forest.n_tokens) * (seed + 3)) % 4  # step in which a masked model's decoder got to it
    extras = {"noise_scale": noise, "label": label, "state_value": value, "unmasked_at": unmasked_at}
    extras |= {"time": torch.linspace(0.1, 0.9, forest.n_tokens, dtype=torch.float64)}  # of re-noised samples
    return forest.replace(extras=extras)


def made_up(m: gxpo.Method, forest: Forest, seed: int) -> Signals:
    """A value for every signal that the method reads and for the proximal policy, on its axis."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"R": forest.n_trajectories, "S": forest.n_steps, "P": forest.n_entries, "T": forest.n_tokens}
    names = {*m.needs, *(x for part in m.signals.values() for x in part.provides)}
    out: dict[str, Any] = {}
    for name in sorted(names | {"proximal_logprob", "reference_logprob"}):
        axis = Signals({}, m.axes).axis(name)
        shape = (sizes[axis], 3) if name in ("hidden", "embedding") else (sizes[axis],)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name in ("teacher_ids", "sampler_ids"):  # three that differ, of a vocabulary of 60
            out[name] = (7 * torch.arange(sizes["P"])[:, None] + torch.arange(3)) % 60
            continue
        if name in ("teacher_logprob", "sampler_logprob"):  # theirs and that of the rest
            out[name] = torch.randn(sizes["P"], 4, generator=generator, dtype=torch.float64).log_softmax(1)
            continue
        if name == "teacher_entropy":  # every second trajectory has a teacher
            out[name] = noise.abs().masked_fill(forest.path_trajectory % 2 == 0, torch.nan)
            continue
        if name == "answer_cluster":  # three answers a group
            out[name] = 3 * forest.ids("group", axis="R") + (3 * noise).long() % 3
            continue
        of_tokens = name.partition("@")[0].endswith("logprob")
        out[name] = forest.path_behaviour_logprob + 0.4 * noise if of_tokens else noise
    return Signals.of(forest, out, m.axes)


def policy_of(forest: Forest, x: Mapping[str, torch.Tensor], signals: Mapping[str, Any]) -> gxpo.PolicyTokens:
    """The policy's outputs with what the signals say of other policies."""
    return gxpo.PolicyTokens(
        x["logprob"],
        forest.path_behaviour_logprob,
        reference_logprob=signals["reference_logprob"],
        entropy=x.get("entropy"),
        proximal_logprob=signals["proximal_logprob"],
        value=x.get("value"),
        outputs=x,
    )


def constants_of(m: gxpo.Method, signals: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The signals that a learner needs to make the outputs that the method reads."""
    return {name: signals[name] for term in m.terms.values() for name in getattr(term, "constants", ())}
