"""Entropy bonus, smoothed by a band around the entropy of earlier steps, turn by turn (EPO)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated
from gxpo.algorithms.objectives.control import Control, two_phase_decay
from gxpo.algorithms.objectives.penalty import Penalty
from gxpo.base.errors import CheckpointError, ConfigError, MissingSignal, one_of
from gxpo.parts.definition import kind_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

_TURN = "entropy_turn_"


def outside(
    entropy: Tensor, centre: Tensor, low: float = 0.5, high: float = 1.5, hinge: bool = True, size: float = 0.1
) -> Tensor:
    """Penalty on entropy outside a band, [n]: 0 where low centre < entropy < high centre, else `size`, or, with
    `hinge`, the distance to the band.

    entropy  [n] nats, carries the gradient;   centre [n] nan: nothing is known, and the penalty is 0
    hinge    slope -1 below the band, 1 above it. Without, the penalty is a constant found by comparison and has no
             gradient at all

    >>> h, c = torch.tensor([0.5, 1.2, 0.05]), torch.full((3,), 0.6)
    >>> outside(h, c, hinge=False).tolist()
    [0.0, 0.10000000149011612, 0.10000000149011612]
    """
    centre = centre.detach().to(entropy)
    known = centre.isfinite()
    held = torch.where(known, centre, torch.zeros_like(centre))
    if hinge:
        distance = (low * held - entropy).clamp_min(0) + (entropy - high * held).clamp_min(0)
        return torch.where(known, distance, torch.zeros_like(distance))
    inside = (low * held < entropy) & (entropy < high * held)
    return torch.where(known & ~inside, size, 0.0).to(entropy)


@part("entropy_band", stage="term")
@dataclass(frozen=True)
class EntropyBand(Penalty):
    """Entropy-smoothed bonus (EPO): -coef * aggregate of H_t - smooth * `outside` of H_t, over the trainable tokens.

    aggregate    "token_mean" | "sequence_mean" | "sequence_sum" | "turn_mean": mean over trajectories of the mean over
                 their turns of the mean over the turn's entries
    smooth       how much leaving the band costs; with `hinge` and 1, the bonus is cancelled above the band and doubled
                 below it
    control      of `smooth`, not of `coef`: what it moves is the penalty, the bonus stays
    low, high    ends of the band, times the mean entropy that this turn (by number) has had in the steps so far; a turn
                 that was never seen has no band
    hinge, size  see `outside`; hinge False is the published form

    The centre is the plain mean over steps of each step's mean entropy over the turn's trained tokens. Not importance
    weighted: weight parts do not touch it, `forest.weight` does.

    Source: EPO, arXiv 2509.22576, and its code.
    """

    slot = "objective.add.NAME"
    coef: float = 0.001
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum", "turn_mean"] = "turn_mean"  # type: ignore[assignment]  # one more than its base
    control: Control | None = field(default_factory=kind_of(two_phase_decay))
    smooth: float = 1.0
    low: float = 0.5
    high: float = 1.5
    hinge: bool = True
    size: float = 0.1
    _history: dict[str, list[float]] = field(init=False, repr=False, compare=False, default_factory=dict)

    learns_from_equal_groups = True
    name = "entropy_band"
    sign = -1.0

    def __post_init__(self) -> None:
        one_of(
            "objective.add.entropy_band.aggregate",
            self.aggregate,
            ("token_mean", "sequence_mean", "sequence_sum", "turn_mean"),
        )
        if not (0 <= self.low <= 1 <= self.high and self.smooth >= 0 and self.size >= 0 and self.coef >= 0):
            raise ConfigError(
                f"entropy_band: 0 <= low ({self.low}) <= 1 <= high ({self.high}), and coef ({self.coef}), smooth "
                f"({self.smooth}) and size ({self.size}) are 0 or more"
            )
        object.__setattr__(self, "outputs", ("logprob", "entropy") if self.ever else ("logprob",))

    @property
    def now(self) -> float:
        return self.coef

    @property
    def ever(self) -> bool:
        return self.coef != 0

    @property
    def smooth_now(self) -> float:
        """Value of `smooth` in this step."""
        return self.smooth if self.control is None else self.control.coefficient(self.smooth)

    def scale(self, forest: Forest) -> Tensor:
        if self.aggregate != "turn_mean":
            return super().scale(forest)
        counted = forest.path_trainable
        in_turn = torch.bincount(forest.path_step[counted], minlength=forest.n_steps)
        turns = torch.bincount(forest.step_trajectory[in_turn > 0], minlength=forest.n_trajectories)
        divisor = in_turn[forest.path_step] * turns[forest.path_trajectory] * (turns > 0).sum()
        return counted.to(torch.float64) / divisor.clamp_min(1)

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        entropy, turn = _read(forest, policy, entries)
        centre = torch.full((int(turn.max()) + 1,), torch.nan, dtype=torch.float64)
        for name, (total, steps) in self._history.items():  # a turn each
            if int(name) < len(centre):
                centre[int(name)] = total / steps
        return entropy - self.smooth_now * outside(entropy, centre[turn], self.low, self.high, self.hinge, self.size)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        """Figures: entropy_band, mean of H - smooth * penalty; entropy_band_coef, coef * smooth, where a control moves
        it; entropy_turn_K, mean entropy of turn K."""
        value, found = super().__call__(forest, policy, credit, weight, signals, step)
        if self.control is not None:
            found["entropy_band_coef"] = self.coef * self.smooth_now
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        if not entries.numel():
            return value, found
        entropy, turn = _read(forest, policy, entries)
        count = torch.bincount(turn)
        mean = torch.zeros(len(count), dtype=torch.float64).index_add_(0, turn, entropy.detach().double()) / count
        return value, found | {f"{_TURN}{k}": float(mean[k]) for k in range(len(count)) if int(count[k])}

    # ------------------------------------------------------------ memory
    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Add the step's entropies of turns to the history."""
        for name, value in figures.items():
            if name.startswith(_TURN) and name.removeprefix(_TURN).isdigit():
                total, steps = self._history.get(turn := name.removeprefix(_TURN), [0.0, 0.0])
                self._history[turn] = [total + value, steps + 1.0]
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"history": {turn: list(entry) for turn, entry in self._history.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"history"}:
            raise CheckpointError(f"the checkpoint's entropy band holds {sorted(state)}, not 'history'")
        self._history.clear()
        self._history.update({turn: [float(x) for x in entry] for turn, entry in state["history"].items()})


def _read(forest: Forest, policy: PolicyTokens, entries: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies of these entries in the dtype of the log-probs, and which turn each is in."""
    if policy.entropy is None:
        raise MissingSignal("entropy_band needs the policy's entropy: give it, or leave the term out")
    turn = forest.step_turn[forest.path_step[entries]]
    return policy.entropy[entries].to(policy.logprob.dtype), turn
