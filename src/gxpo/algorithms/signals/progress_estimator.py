"""Turn-level progress (SPA-RL): shares of the outcome, fitted on the policy's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.algorithms.signals.base import SignalTools
from gxpo.algorithms.signals.ridge_probe import Buffered
from gxpo.forest.grouped import DEGENERATE, begins_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

NAMES = ("inner", "inner_bias", "outer", "outer_bias")  # of the network's parameters
BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's


def contribution(features: Tensor, net: Mapping[str, Tensor]) -> Tensor:
    """Turn shares c [n] = outer . gelu(inner x + inner_bias) + outer_bias, x = (features [n, H] - middle) / spread."""
    x = (features - net["middle"]) / net["spread"]
    return torch.nn.functional.gelu(x @ net["inner"].T + net["inner_bias"]) @ net["outer"] + net["outer_bias"]


def redistribution_loss(share: Tensor, owner: Tensor, outcome: Tensor, where: Tensor) -> Tensor:
    """Reward redistribution loss: mean over trajectories of (sum of turn shares - outcome)^2, with gradient in share.

    share [S]; owner [S] index into R; outcome [R]; where [R] bool: trajectories that count
    """
    total = share.new_zeros(outcome.shape).index_add(0, owner, share)
    return (total - outcome.to(share))[where].square().mean()


@part("progress_estimator", stage="signal")
@dataclass(frozen=True)
class ProgressEstimator(Buffered):
    """The signal "progress" [S]: each turn's share c_t of the outcome, by the estimator fitted on earlier steps.

    c_t is a network of one inner layer on the policy's hidden state at the last token of the turn. After every update
    it takes `updates` steps of Adam on `redistribution_loss` over the newest `buffer` scored, compared trajectories,
    with the hidden states that they had when they were made, each component in units of its spread over the buffer.
    None of a step's own outcomes are in its shares. As long as fewer than `min_rows` trajectories have been seen, a
    trajectory's last turn has the outcome as its share and the others 0 (`progress_used` 0): the late reward itself. A
    turn without tokens has 0 from the estimator.

    width  of the inner layer;   lr  of Adam, on the whole buffer;   layer  whose hidden states; -1 the last

    Figures, all but the last before the estimator moves: progress_loss on the step's trajectories, which it has not
    seen yet; progress_explained, 1 - progress_loss / variance of the outcomes, where they differ; progress_spread (std
    of the shares over the step's turns); progress_used; progress_fit, the loss on the buffer before the last update.

    Source: SPA-RL, arXiv 2505.20732, whose estimator is a language model of its own, fitted before the policy is
    trained.
    """

    width: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3
    updates: Annotated[int, Ge(1)] = 32
    buffer: int = 512
    min_rows: Annotated[int, Ge(0)] = 128

    provides = ("progress",)
    axes = {"progress": "S"}  # noqa: RUF012  never changed

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        hidden = tools.learner.hidden(forest, layer=self.layer)
        if not self.memory:
            self.memory.update(_fresh(hidden.shape[1], self.width, tools.seed))
        begins = begins_of(forest.path_step, forest.n_steps)
        has_tokens = begins.diff() > 0
        # A turn is known by the state at its last token, which has read all of it.
        features = hidden[forest.path_token[begins[1:][has_tokens] - 1]].to(torch.float64)
        share = torch.zeros(forest.n_steps, dtype=torch.float64)
        share[has_tokens] = contribution(features, self.memory)
        self.latest.clear()
        self.latest.update(features=features, owner=forest.step_trajectory[has_tokens], share=share[has_tokens])
        if self._has_enough:
            return {"progress": share}
        # Until there is enough to fit, the late reward itself: the whole outcome on the last turn.
        ends = begins_of(forest.step_trajectory, forest.n_trajectories)
        has_outcome = forest.scored & (ends.diff() > 0)
        late_reward = torch.zeros(forest.n_steps, dtype=torch.float64)
        late_reward[ends[1:][has_outcome] - 1] = forest.outcome[has_outcome]
        return {"progress": late_reward}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        owner, share, outcome = self.latest["owner"], self.latest["share"], forest.outcome
        has_tokens_R = torch.bincount(owner, minlength=forest.n_trajectories) > 0
        where = forest.scored & forest.compared & has_tokens_R
        if not bool(where.any()):
            return {}
        figures = {"progress_used": float(self._has_enough), "progress_spread": float(share.std(correction=0))}
        # Measured before the buffer holds the step: a loss on trajectories that were not seen.
        loss, spread = float(redistribution_loss(share, owner, outcome, where)), outcome[where].var(correction=0)
        figures |= {"progress_loss": loss} | ({"progress_explained": 1 - loss / float(spread)} if spread > 0 else {})
        self._remember(owner, outcome, where)
        for _ in range(self.updates):
            figures["progress_fit"] = self._step()
        return figures

    @property
    def _has_enough(self) -> bool:
        """True once the buffer holds enough trajectories."""
        return len(self.memory["outcome"]) >= self.min_rows

    def _remember(self, owner: Tensor, outcome: Tensor, where: Tensor) -> None:
        """Append the turns of these trajectories to the buffer and drop the oldest trajectories."""
        is_counted = where[owner]
        # Owners are indices into the buffer's outcomes, and move when the oldest are dropped.
        number = where.cumsum(0) - 1 + len(self.memory["outcome"])  # of each trajectory in the longer buffer
        outcomes = torch.cat([self.memory["outcome"], outcome[where]])
        owners = torch.cat([self.memory["owner"], number[owner][is_counted]])
        features = torch.cat([self.memory["features"], self.latest["features"][is_counted]])
        first = max(0, len(outcomes) - self.buffer)
        in_buffer = owners >= first
        self.memory.update(outcome=outcomes[first:], owner=owners[in_buffer] - first, features=features[in_buffer])
        # Features in units of their spread; one that does not vary is divided by infinity, so that it is 0.
        spread, middle = torch.std_mean(features[in_buffer], 0, correction=0)
        varies = spread > DEGENERATE * features[in_buffer].abs().amax(0)  # what does not vary tells nothing
        self.memory.update(middle=middle, spread=torch.where(varies, spread, torch.inf))

    def _step(self) -> float:
        """Take one step of Adam on the buffer; return the loss before it."""
        owner, outcome = self.memory["owner"], self.memory["outcome"]
        net = {name: self.memory[name].clone().requires_grad_() for name in NAMES}
        scale = {name: self.memory[name] for name in ("middle", "spread")}
        with torch.enable_grad():
            share = contribution(self.memory["features"], net | scale)
            loss = redistribution_loss(share, owner, outcome, torch.ones_like(outcome, dtype=torch.bool))
            slopes = torch.autograd.grad(loss, list(net.values()))
        # Adam by hand: its state is tensors of the checkpoint, like all that the part remembers.
        self.memory["steps"] = count = self.memory["steps"] + 1
        for name, slope in zip(NAMES, slopes, strict=True):
            first = self.memory[f"{name}.mean"].lerp(slope, 1 - BETAS[0])
            second = self.memory[f"{name}.square"].lerp(slope.square(), 1 - BETAS[1])
            self.memory[f"{name}.mean"], self.memory[f"{name}.square"] = first, second
            size = (second / (1 - BETAS[1] ** count)).sqrt() + EPS
            self.memory[name] = self.memory[name] - self.lr * (first / (1 - BETAS[0] ** count)) / size
        return float(loss.detach())


def _fresh(size: int, width: int, seed: int) -> dict[str, Tensor]:
    """Initial parameters, averages of Adam and empty buffer; the outer layer is 0, so that all shares are 0."""
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(width, size, generator=generator, dtype=torch.float64) / size**0.5
    net = dict(zip(NAMES, (inner, inner.new_zeros(width), inner.new_zeros(width), inner.new_zeros(())), strict=True))
    averages = {f"{name}.{kind}": torch.zeros_like(x) for name, x in net.items() for kind in ("mean", "square")}
    empty = {"outcome": inner.new_zeros(0), "owner": torch.zeros(0, dtype=torch.int64)}
    scale = {"middle": inner.new_zeros(size), "spread": inner.new_ones(size), "steps": inner.new_zeros(())}
    return {**net, **averages, **empty, **scale, "features": inner.new_zeros(0, size)}
