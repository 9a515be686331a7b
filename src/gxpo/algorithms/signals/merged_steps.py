"""Process reward model on the policy's hidden states: a probe of single steps and of pairs of them (HRM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.signals.base import SignalTools
from gxpo.algorithms.signals.ridge_probe import RidgeProbe
from gxpo.forest import grouped
from gxpo.forest.reshape import pieces_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def span_features(
    hidden: Tensor, first_entry: Tensor, last_entry: Tensor, trajectory: Tensor, piece: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Probe features: [K, 2 H] of each step, [K, 2 H] of it merged with the step before, and [K] bool: it has a step
    before it in its trajectory (else the second equals the first).

    hidden  [P, H] hidden state at every path token

    Mean hidden state of the stretch, and the hidden state of its last token.
    """
    states = hidden.to(torch.float64)
    total_state = torch.zeros(len(first_entry), states.shape[1], dtype=torch.float64).index_add_(0, piece, states)
    size = (last_entry - first_entry + 1).to(torch.float64)[:, None]
    last_state = states[last_entry]
    has_previous = torch.zeros(len(first_entry), dtype=torch.bool)
    has_previous[1:] = trajectory[1:] == trajectory[:-1]
    # Pieces are in the order of time: the one before is the row above, if it is of the same trajectory.
    merged_sum = total_state + torch.where(has_previous[:, None], total_state.roll(1, 0), 0.0)
    merged_size = size + torch.where(has_previous[:, None], size.roll(1, 0), 0.0)
    return (
        torch.cat([total_state / size, last_state], 1),
        torch.cat([merged_sum / merged_size, last_state], 1),
        has_previous,
    )


@torch.no_grad()
def step_labels(outcome: Tensor, place: Tensor, where: Tensor) -> Tensor:
    """Mean outcome of the counted trajectories through each action token, [P] float64, nan without one; a step's label
    is that of its last token.

    outcome [P] of the entry's trajectory; place [P] int64 dense ids of (group, stored token); where [P] bool
    """
    return torch.where(grouped.count(place, where) > 0, grouped.mean(outcome, place, where), torch.nan)


@part("merged_steps", stage="signal")
@dataclass(frozen=True)
class MergedSteps(RidgeProbe):
    """The signal "piece_reward" [P]: a `ridge` probe's estimate of the outcome after each step, on all its tokens.

        reward = probe(step)                                                               score_unit "step"
               = (1 - pair_weight) probe(step) + pair_weight probe(the step before and this one, as one)   "blend"

    and probe(step) for a trajectory's first. The probe is one model for both. It is fitted before every step of
    training on the newest `buffer` steps and merged pairs of the steps of training before: its labels are
    `step_labels`, of a pair that of its second step, so that an error which the next step puts right is no error of the
    two. Nothing of the rollouts that it judges is in it. As long as fewer than `min_rows` rows are there, all rewards
    are 0 (`steps_used` 0).

    score_unit   units that are judged: single steps, or these and pairs. Pairs are trained on either way
    pair_weight  weight of the pair; 0: a process reward model of single steps, and no pairs are trained on

    A step is a segment of an action, or a turn without segments; one that several trajectories share is one row.
    Figures: steps_rows (rows it was fitted on), steps_used, and over the labelled steps steps_error (mean (reward -
    label)^2) next to steps_spread (variance of the labels).

    Source: HRM, arXiv 2503.13551, and its code: single steps and merged consecutive ones as examples of one reward
    model, where a merged node of a search tree keeps the second one's score; it then judges single steps ("step").
    There it is a language model.
    """

    buffer: int = 2048
    score_unit: Literal["step", "blend"] = "step"
    pair_weight: Annotated[float, Interval(ge=0, le=1)] = 0.5

    provides = ("piece_reward",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        pieces = pieces_of(forest)
        hidden = tools.learner.hidden(forest, layer=self.layer)[forest.path_token]
        single, pair, has_previous = span_features(hidden, pieces.first, pieces.last, pieces.trajectory, pieces.piece)
        reward, fitted = torch.zeros(len(single), dtype=torch.float64), self.fit()
        if fitted is not None:
            weight, intercept = fitted
            # A trajectory's first step has no pair: it is judged by itself.
            share = (self.pair_weight if self.score_unit == "blend" else 0.0) * has_previous.to(torch.float64)
            reward = (1 - share) * (single @ weight) + share * (pair @ weight) + intercept
        self.latest.clear()
        self.latest.update(
            single=single, pair=pair, follows=has_previous, reward=reward, used=torch.tensor(fitted is not None)
        )
        return {"piece_reward": reward[pieces.piece]}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        last_entry, latest_rows = pieces_of(forest).last, self.latest
        owner = forest.path_trajectory
        is_counted_P, token_P = (forest.scored & forest.compared)[owner], forest.ids("group", "token", axis="P")
        label = step_labels(torch.where(is_counted_P, forest.outcome[owner], 0.0), token_P, is_counted_P)[last_entry]
        # A step that several trajectories share is one example: the first of its last token's entries stands for it.
        row = torch.arange(len(owner), dtype=torch.float64)
        is_labelled = (is_counted_P & (grouped.min(row, token_P, is_counted_P) == row))[last_entry]
        figures = {"steps_rows": float(self.rows), "steps_used": float(latest_rows["used"])}
        if bool(is_labelled.any()):
            figures["steps_error"] = float((latest_rows["reward"] - label)[is_labelled].square().mean())
            figures["steps_spread"] = float(label[is_labelled].var(correction=0))
        # A pair has the label of its second step: an error that the next step mends is none of the two.
        is_pair = is_labelled & latest_rows["follows"] & (self.pair_weight > 0)
        self.keep(
            torch.cat([latest_rows["single"][is_labelled], latest_rows["pair"][is_pair]]),
            torch.cat([label[is_labelled], label[is_pair]]),
        )
        return figures
