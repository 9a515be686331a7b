"""Baseline from a linear probe on the policy's hidden states (POISE), refitted before each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.signals.base import SignalTools
from gxpo.algorithms.signals.baselines import baseline_errors
from gxpo.algorithms.signals.ridge_probe import RidgeProbe
from gxpo.forest import grouped
from gxpo.forest.columns import last_before
from gxpo.forest.grouped import begins_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def probe_features(forest: Forest, hidden: Tensor, entropy: Tensor, tokens: int) -> Tensor:
    """Probe features of each trajectory, [R, 2 H + 3] float64; 0 where it has no action tokens.

    hidden   [T, H] hidden state at every stored token
    entropy  [P] of the policy at each action token, nats
    tokens   n

    Mean hidden state of the last n tokens before its first action (the prompt), mean hidden state of its last n action
    tokens, and mean, standard deviation (population) and maximum of the entropy over all its action tokens.
    """
    n_rows, trajectory, states = forest.n_trajectories, forest.path_trajectory, hidden.to(torch.float64)
    begins = begins_of(trajectory, n_rows)
    has_action = begins.diff() > 0

    def mean_of(places: Tensor, owner: Tensor) -> Tensor:
        total = torch.zeros(n_rows, hidden.shape[1], dtype=torch.float64).index_add_(0, owner, states[places])
        return total / torch.bincount(owner, minlength=n_rows).clamp_min(1)[:, None]

    rows = has_action.nonzero().squeeze(1)
    token = forest.path_token[begins[rows]]  # each trajectory's first action token, then what stands before it
    # All trajectories walk up their prompts at once, a token a round, until the prompt or n ends.
    token_before = _token_before(forest)
    prompt_tokens, owner = [token[:0]], [rows[:0]]
    for _ in range(tokens):
        token = token_before[token]
        rows, token = rows[token >= 0], token[token >= 0]
        prompt_tokens.append(token)
        owner.append(rows)
    prompt = mean_of(torch.cat(prompt_tokens), torch.cat(owner))
    # The last n action tokens of each trajectory, by their distance from its end.
    is_late = begins[1:][trajectory] - torch.arange(forest.n_entries) <= tokens
    action = mean_of(forest.path_token[is_late], trajectory[is_late])
    # Statistics are on every entry of their trajectory: one is read, of any that has one.
    first_entry = begins[:-1].clamp_max(max(forest.n_entries - 1, 0))
    statistics = [
        grouped.mean(entropy, trajectory),
        grouped.std(entropy, trajectory, ddof=0),
        grouped.max(entropy, trajectory),
    ]
    spread = torch.stack(
        [torch.where(has_action, x[first_entry], 0.0) if len(x) else torch.zeros(n_rows) for x in statistics], 1
    )
    return torch.cat([prompt, action, spread.double()], 1)


def _token_before(forest: Forest) -> Tensor:
    """Stored token [T] before each on its root path, -1 for the first."""
    begin, end = forest.first_token[:-1], forest.first_token[1:]
    is_empty = end == begin
    # Empty nodes hold no token: the way up goes on to the next one that does.
    nearest_full = last_before(forest.parent, is_empty)  # where the way up from an empty node comes to one with tokens
    last_token_N = torch.where(is_empty[nearest_full], -1, end[nearest_full] - 1)
    node = forest.token_node
    parent_node = forest.parent[node]
    inherited = torch.where(parent_node >= 0, last_token_N[parent_node.clamp_min(0)], -1)
    index = torch.arange(forest.n_tokens)
    return torch.where(index > begin[node], index - 1, inherited)


@torch.no_grad()
def cross_fitted(estimate: Tensor, outcome: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Cross-fitted baseline b_i = mean of estimate_j over the group's other members j, [R] float64.

    estimate  [R] of each trajectory's own features
    where     [R] bool: the others to predict (compared, scored, with features)
    A trajectory without such others has its own outcome as baseline: nothing is learned from it.
    """
    # A trajectory's own estimate depends on its own tokens, which would bias the gradient: only others' count.
    n_others = grouped.count(group, where) - ((group >= 0) & where).to(torch.float64)
    own_outcome = torch.where(outcome.isfinite(), outcome.to(torch.float64), 0.0)
    return torch.where(
        n_others > 0, grouped.leave_one_out(torch.where(where, estimate, 0.0), group, where), own_outcome
    )


@part("value_probe", stage="signal")
@dataclass(frozen=True)
class ValueProbe(RidgeProbe):
    """The signal "baseline" [R]: `cross_fitted` estimates of a `ridge` probe on `probe_features`.

    The probe predicts from a trajectory's features the mean outcome of the others of its group. It is fitted before
    every step on the newest `buffer` trajectories of the steps before, so no outcome of the step is in it. As long as
    fewer than `min_rows` are there, the baseline is the mean outcome of the others itself (`probe_used` 0). Estimates
    are held between the least and the largest outcome that it was fitted on.

    tokens  how many tokens the hidden states are averaged over, at the end of the prompt and of the actions

    Figures: probe_rows (trajectories it was fitted on), probe_used, and over the scored and compared trajectories of
    groups of several baseline_error (mean (outcome - baseline)^2) next to group_mean_error (the same of the mean
    outcome of the others).
    """

    tokens: Annotated[int, Ge(1)] = 10

    provides = ("baseline",)
    axes = {"baseline": "R"}  # noqa: RUF012  never changed
    needs = ("entropy",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        hidden = tools.learner.hidden(forest, layer=self.layer)
        features = probe_features(forest, hidden, signals["entropy"], self.tokens)
        group, takes = forest.ids("group", axis="R"), self._taking(forest)
        estimate, fitted = torch.where(takes, forest.outcome, 0.0), self.fit()
        # Held in the range of outcomes that it was fitted on: a linear probe extrapolates without bounds.
        if fitted is not None:
            target = self.memory["target"]
            estimate = (features @ fitted[0] + fitted[1]).clamp(target.min(), target.max())
        baseline = cross_fitted(estimate, forest.outcome, group, takes)
        self.latest.clear()
        self.latest.update(features=features, baseline=baseline, used=torch.tensor(fitted is not None))
        return {"baseline": baseline}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        group, takes = forest.ids("group", axis="R"), self._taking(forest)
        outcome = torch.where(takes, forest.outcome, 0.0)
        target = grouped.leave_one_out(outcome, group, takes)
        # A trajectory alone in its group has no others whose mean could be its label.
        is_target = takes & (grouped.count(group, takes) > 1)
        figures = {"probe_rows": float(self.rows), "probe_used": float(self.latest["used"])}
        figures |= baseline_errors(forest, self.latest["baseline"], takes)
        self.keep(self.latest["features"][is_target], target[is_target])
        return figures

    @staticmethod
    def _taking(forest: Forest) -> Tensor:
        """Trajectories to predict and to learn from, [R] bool: scored, compared, with action tokens."""
        has_tokens_R = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories) > 0
        return forest.scored & forest.compared & has_tokens_R
