"""A process reward model on the policy's own hidden states, which looks at single steps and at pairs of them as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.signals.base import SignalPart, SignalTools
from gxpo.signals.value_probe import ridge

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


class Spans(NamedTuple):
    """Stretches of path tokens that are one step each, [K], by trajectory, then time.

    first, last  the entries that it begins and ends with
    trajectory   whose it is
    piece        [P] which one each entry is of
    """

    first: Tensor
    last: Tensor
    trajectory: Tensor
    piece: Tensor


def spans_of(forest: Forest) -> Spans:
    """The segments of every turn, or, where it has none, the turn."""
    step, segment = forest.path_step, forest.segment[forest.path_token]
    begins = torch.ones(len(step), dtype=torch.bool)
    begins[1:] = (step[1:] != step[:-1]) | (segment[1:] != segment[:-1])
    first = begins.nonzero().squeeze(1)
    last = torch.cat([first[1:], torch.tensor([len(step)])])[: len(first)] - 1
    return Spans(first, last, forest.path_trajectory[first], begins.cumsum(0) - 1)


@torch.no_grad()
def span_features(
    hidden: Tensor, first: Tensor, last: Tensor, trajectory: Tensor, piece: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the probe sees of each step: [K, 2 H] of the step, [K, 2 H] of it and the one before it as one, and [K]
    bool: there is one before it in its trajectory (where not, the second is the first).

    hidden  [P, H] hidden state at every path token

    Mean hidden state of the stretch, and the hidden state of its last token.
    """
    held = hidden.to(torch.float64)
    total = torch.zeros(len(first), held.shape[1], dtype=torch.float64).index_add_(0, piece, held)
    size = (last - first + 1).to(torch.float64)[:, None]
    ends = held[last]
    follows = torch.zeros(len(first), dtype=torch.bool)
    follows[1:] = trajectory[1:] == trajectory[:-1]
    both = total + torch.where(follows[:, None], total.roll(1, 0), 0.0)
    length = size + torch.where(follows[:, None], size.roll(1, 0), 0.0)
    return torch.cat([total / size, ends], 1), torch.cat([both / length, ends], 1), follows


@torch.no_grad()
def step_labels(outcome: Tensor, place: Tensor, where: Tensor) -> Tensor:
    """[P] float64: mean outcome of the counting trajectories through each path token, nan without one; of a step it is
    read at its last token.

    outcome [P] of the entry's trajectory; place [P] int64 dense ids of (group, stored token); where [P] bool
    """
    return torch.where(levels.count(place, where) > 0, levels.mean(outcome, place, where), torch.nan)


@dataclass(frozen=True)
class MergedSteps(SignalPart):
    """The signal "piece_reward" [P]: a `ridge` probe's estimate of what comes of each step, the same for its tokens.

        reward = probe(step)                                                                      scored "step"
               = (1 - merged) probe(step) + merged probe(the step before and this one, as one)    scored "blend"

    and probe(step) for a trajectory's first. The probe is one model for both. It is fitted before every step of
    training on the newest `buffer` steps and merged pairs of the steps of training before: its labels are
    `step_labels`, of a pair that of its second step, so that an error which the next step puts right is no error of the
    two. Nothing of the rollouts that it judges is in it. As long as fewer than `enough` rows are there, all rewards are
    0 (`steps_used` 0).

    scored  what is judged: single steps, or those and pairs. Pairs are trained on either way
    merged  weight of the pair; 0: a process reward model of single steps, and no pairs are trained on
    layer   which hidden states; -1 the last
    ridge   strength of the penalty

    A step is a segment of an action, or a turn without segments; one that several trajectories share is one row.
    Figures: steps_rows (rows it was fitted on), steps_used, and over the labelled steps steps_error (mean (reward -
    label)^2) beside steps_spread (variance of the labels).

    Source: HRM, arXiv 2503.13551, and its code: single steps and merged consecutive ones as examples of one reward
    model, where a merged node of a search tree keeps the second one's score; it then judges single steps ("step").
    There it is a language model.
    """

    scored: Literal["step", "blend"] = "step"
    merged: float = 0.5
    layer: int = -1
    buffer: int = 2048
    enough: int = 128
    ridge: float = 0.1
    memory: dict[str, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)
    latest: dict[str, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("piece_reward",)

    def __post_init__(self) -> None:
        one_of("signal.merged_steps.scored", self.scored, ("step", "blend"))
        if not 0 <= self.merged <= 1 or self.ridge < 0 or not 2 <= self.enough <= self.buffer:
            raise ConfigError(
                f"signal merged_steps: merged {self.merged} is from 0 to 1, ridge {self.ridge} at least 0, and "
                f"2 <= enough ({self.enough}) <= buffer ({self.buffer})"
            )

    @property
    def rows(self) -> int:
        """Examples in the buffer."""
        return len(self.memory["target"]) if self.memory else 0

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        spans = spans_of(forest)
        hidden = tools.learner.hidden(forest, layer=self.layer)[forest.path_token]
        single, pair, follows = span_features(hidden, *spans)
        used = self.rows >= self.enough
        reward = torch.zeros(len(single), dtype=torch.float64)
        if used:
            weight, intercept = ridge(self.memory["features"], self.memory["target"], self.ridge)
            share = (self.merged if self.scored == "blend" else 0.0) * follows.to(torch.float64)
            reward = (1 - share) * (single @ weight) + share * (pair @ weight) + intercept
        self.latest.clear()
        self.latest.update(single=single, pair=pair, follows=follows, reward=reward, used=torch.tensor(used))
        return {"piece_reward": reward[spans.piece]}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        spans, now = spans_of(forest), self.latest
        owner = forest.path_trajectory
        counts, place = (forest.scored & forest.compared)[owner], forest.ids("group", "token", axis="P")
        label = step_labels(torch.where(counts, forest.outcome[owner], 0.0), place, counts)[spans.last]
        row = torch.arange(len(owner), dtype=torch.float64)
        once = (counts & (levels.min(row, place, counts) == row))[spans.last]
        figures = {"steps_rows": float(self.rows), "steps_used": float(now["used"])}
        if bool(once.any()):
            figures["steps_error"] = float((now["reward"] - label)[once].square().mean())
            figures["steps_spread"] = float(label[once].var(correction=0))
        both = once & now["follows"] & (self.merged > 0)
        features = torch.cat([now["single"][once], now["pair"][both]])
        for name, new in (("features", features), ("target", torch.cat([label[once], label[both]]))):
            self.memory[name] = torch.cat([self.memory[name], new] if name in self.memory else [new])[-self.buffer :]
        return figures

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory.clear()
        self.memory.update({name: x.to(torch.float64) for name, x in tensors.items()})
