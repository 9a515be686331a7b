"""TRL's batches as forests: the rollouts of an optimiser step with rewards, verdicts and scored columns."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import Signals
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens


@dataclass(frozen=True)
class ScoredBatch:
    """Scored generation batch of all processes; columns [P] in the order of the forest's action tokens.

    proximal  log-probs of the policy that the batch was sampled with; None: nothing needs them, and the ratio is 1
    is_noted  the forest has the sampler's log-probs: tokens without one were not sampled by a policy
    """

    forest: Forest
    credit: Tensor
    weight: Tensor
    signals: Signals
    proximal: Tensor | None
    step: int
    is_noted: bool = False

    def select(self, rows: Tensor) -> ScoredBatch:
        """Return a subset of rows, in that order."""
        entries = self.forest.entries_of(rows)
        return dataclasses.replace(
            self,
            forest=self.forest.select(rows),
            credit=self.credit[entries],
            weight=self.weight[entries],
            signals=self.signals.select(self.forest, rows),
            proximal=None if self.proximal is None else self.proximal[entries],
        )

    def policy(self, x: Mapping[str, Tensor]) -> PolicyTokens:
        """Join the current policy's outputs [P] with the log-probs of the other policies."""
        proximal = x["logprob"].detach() if self.proximal is None else self.proximal
        behaviour = self.forest.path_behaviour_logprob
        if not self.is_noted:  # without vLLM the model itself has sampled
            behaviour = torch.where(behaviour.isnan(), proximal, behaviour)
        return PolicyTokens(
            x["logprob"],
            behaviour,
            self.signals.get("reference_logprob"),
            x.get("entropy"),
            proximal_logprob=proximal,
            outputs=x,
        )


@dataclass(frozen=True)
class Window:
    """All rows of one optimiser step, on every process: the input of the objective.

    rows   indices in the generation batch, in the order of `batch`
    slope  dL/dx [P] by output where the objective couples rows; `value` is then L, and `bonus` its entropy bonus
    """

    batch: ScoredBatch
    rows: Tensor
    slope: Mapping[str, Tensor] | None = None
    value: float = 0.0
    bonus: float = 0.0

    def places(self, rows: Tensor) -> Tensor:
        """Return the positions in this step of rows of the generation batch."""
        return torch.searchsorted(self.rows, rows)


@dataclass(frozen=True)
class Rewards:
    """Results of TRL's reward functions for the rows of all processes.

    table      [N, K] by function, nan where it does not apply
    weights    [K]
    names      of the functions
    success_at  a weighted sum of at least this is a right answer; None: there are no verdicts
    """

    table: Tensor
    weights: Tensor
    names: Sequence[str]
    success_at: float | None

    @property
    def outcome(self) -> Tensor:
        """Weighted sums of the rewards [N] float64; nan (unscored) for rows without a result of any function."""
        weighted = self.table * self.weights.double()
        return torch.where(self.table.isnan().all(1), torch.nan, weighted.nansum(1))

    def over(self, forest: Forest) -> Forest:
        """Return the forest with outcomes, named rewards and verdicts."""
        outcome, success = self.outcome, None
        if self.success_at is not None:
            success = torch.where(outcome.isnan(), torch.nan, grouped.reaches(outcome, self.success_at).double())
        values_by_name = dict(zip(self.names, self.table.unbind(1), strict=True))
        return forest.with_rewards(outcome, components=values_by_name, success=success)


def rollouts(
    columns: Mapping[str, Tensor],
    own_mask: Tensor,
    logprobs: Tensor | None,
    rewards: Rewards,
    group_size: int,
    temperature: float = 1.0,
) -> Forest:
    """Make the forest of the rollouts of all processes; groups are runs of `group_size` rows.

    columns   "prompt_ids", "prompt_mask" (B, P) and "completion_ids", "completion_mask" (B, T), as in TRL
    own_mask  (B, T) bool: tokens that the policy sampled
    logprobs  (B, T) of the sampler, or None;   temperature: the sampler's, at which TRL takes all log-probs
    """
    prompt_mask, completion_mask = columns["prompt_mask"].bool(), columns["completion_mask"].bool()
    prompts, ids = columns["prompt_ids"], columns["completion_ids"]
    group = [str(i // group_size) for i in range(len(ids))]
    # without tools a completion is one action; masked tokens are padding and are dropped
    if bool((own_mask == completion_mask).all()):
        forest = Forest.from_completions(
            [p[m].tolist() for p, m in zip(prompts, prompt_mask, strict=True)],
            [[c[m].tolist()] for c, m in zip(ids, own_mask, strict=True)],
            groups=group,
            logprobs=None if logprobs is None else [[x[m].tolist()] for x, m in zip(logprobs, own_mask, strict=True)],
        )
    else:  # tool outputs stand between actions
        tokens, attended = torch.cat([prompts, ids], 1), torch.cat([prompt_mask, completion_mask], 1)
        forest = Forest.from_padded(tokens, own_mask, rewards.outcome, group, logprobs, attention_mask=attended)
    if temperature != 1.0:
        forest = forest.replace(sampling=[{"temperature": temperature}] * forest.n_trajectories)
    return rewards.over(forest)


def own_tokens(inputs: Mapping[str, Any]) -> Tensor:
    """Mask of the tokens that the policy sampled, and no tool, (B, T) bool."""
    mask = inputs["completion_mask"]
    return (mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]).bool()


def task_name(prompt: Any) -> str:
    """Name a prompt by a hash that is the same in every epoch, of a conversation's roles, texts and images."""

    def pieces(x: Any) -> list[bytes]:
        if isinstance(x, Mapping):
            return [t for k in sorted(x) if k in ("role", "content", "text", "image") for t in pieces(x[k])]
        if isinstance(x, (list, tuple)):
            return [t for y in x for t in pieces(y)]
        if hasattr(x, "tobytes"):  # pixels, of Pillow or numpy
            return [repr(getattr(x, "size", None)).encode(), x.tobytes()]
        return [x.encode()] if isinstance(x, str) else []

    return hashlib.blake2b(b"\x1f".join(pieces(prompt) or [repr(prompt).encode()]), digest_size=8).hexdigest()
