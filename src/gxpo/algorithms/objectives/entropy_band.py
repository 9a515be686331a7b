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


def band_penalty(
    entropy: Tensor, centre: Tensor, low: float = 0.5, high: float = 1.5, hinge: bool = True, size: float = 0.1
) -> Tensor:
    """Penalty on entropy outside a band, [n]: 0 where low centre < entropy < high centre.

    Elsewhere it is `size`, or, with `hinge`, the distance to the band.

    entropy  [n] nats, carries the gradient;   centre [n], nan: unknown, and the penalty is 0
    hinge    slope -1 below the band, 1 above it. Without, the penalty is a constant found by comparison and has no
             gradient at all

    >>> h, c = torch.tensor([0.5, 1.2, 0.05]), torch.full((3,), 0.6)
    >>> band_penalty(h, c, hinge=False).tolist()
    [0.0, 0.10000000149011612, 0.10000000149011612]
    """
    centre = centre.detach().to(entropy)
    # nan is replaced before the arithmetic: masked afterwards, it would still be in the gradient
    has_centre = centre.isfinite()
    finite_centre = torch.where(has_centre, centre, torch.zeros_like(centre))
    if hinge:
        distance = (low * finite_centre - entropy).clamp_min(0) + (entropy - high * finite_centre).clamp_min(0)
        return torch.where(has_centre, distance, torch.zeros_like(distance))
    inside = (low * finite_centre < entropy) & (entropy < high * finite_centre)
    return torch.where(has_centre & ~inside, size, 0.0).to(entropy)


@part("entropy_band", stage="term")
@dataclass(frozen=True)
class EntropyBand(Penalty):
    """Entropy-smoothed bonus (EPO): -coef * aggregate of H_t - smoothing * `band_penalty` over the trainable tokens.

    aggregate    "token_mean" | "sequence_mean" | "sequence_sum" | "turn_mean": mean over trajectories of the mean over
                 their turns of the mean over the turn's entries
    smoothing    how much leaving the band costs; with `hinge` and 1, the bonus is cancelled above the band and doubled
                 below it
    control      of `smoothing`, not of `coef`: what it moves is the penalty, the bonus stays
    low, high    ends of the band, times the mean entropy that this turn (by number) has had in the steps so far; a turn
                 that was never seen has no band
    hinge, size  see `band_penalty`; hinge False is the published form

    The centre is the plain mean over steps of each step's mean entropy over the turn's trained tokens. Not importance
    weighted: weight parts do not touch it, `forest.weight` does.

    Source: EPO, arXiv 2509.22576, and its code.
    """

    slot = "objective.add.NAME"
    coef: float = 0.001
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum", "turn_mean"] = "turn_mean"  # type: ignore[assignment]  # one more than its base
    control: Control | None = field(default_factory=kind_of(two_phase_decay))
    smoothing: float = 1.0
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
        if not (0 <= self.low <= 1 <= self.high and self.smoothing >= 0 and self.size >= 0 and self.coef >= 0):
            raise ConfigError(
                f"entropy_band: 0 <= low ({self.low}) <= 1 <= high ({self.high}), and coef ({self.coef}), smoothing "
                f"({self.smoothing}) and size ({self.size}) are 0 or more"
            )
        object.__setattr__(self, "outputs", ("logprob", "entropy") if self.is_ever_used else ("logprob",))

    @property
    def current_coef(self) -> float:
        return self.coef

    @property
    def is_ever_used(self) -> bool:
        return self.coef != 0

    @property
    def current_smoothing(self) -> float:
        """Value of `smoothing` in this step."""
        return self.smoothing if self.control is None else self.control.coefficient(self.smoothing)

    def scale(self, forest: Forest) -> Tensor:
        if self.aggregate != "turn_mean":
            return super().scale(forest)
        # mean over trajectories of the mean over turns of the mean over tokens; turns without any are in none
        trainable_P = forest.path_trainable
        tokens_S = torch.bincount(forest.path_step[trainable_P], minlength=forest.n_steps)
        turns_R = torch.bincount(forest.step_trajectory[tokens_S > 0], minlength=forest.n_trajectories)
        divisor_P = tokens_S[forest.path_step] * turns_R[forest.path_trajectory] * (turns_R > 0).sum()
        return trainable_P.to(torch.float64) / divisor_P.clamp_min(1)

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        entropy, turn = _entropy_and_turn(forest, policy, entries)
        centre_T = torch.full((int(turn.max()) + 1,), torch.nan, dtype=torch.float64)
        # the history is of earlier steps alone: `adjust` adds this one's after the update
        for name, (total, steps) in self._history.items():
            if int(name) < len(centre_T):
                centre_T[int(name)] = total / steps
        return entropy - self.current_smoothing * band_penalty(
            entropy, centre_T[turn], self.low, self.high, self.hinge, self.size
        )

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        """Figures: entropy_band, mean of H - smoothing * penalty; entropy_band_coef, coef * smoothing, where a control
        moves it; entropy_turn_K, mean entropy of turn K."""
        value, figures = super().__call__(forest, policy, credit, weight, signals, step)
        if self.control is not None:
            figures["entropy_band_coef"] = self.coef * self.current_smoothing
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        if not entries.numel():
            return value, figures
        entropy, turn = _entropy_and_turn(forest, policy, entries)
        # by number of the turn, whichever trajectory it is in: what `adjust` adds to the history
        tokens_T = torch.bincount(turn)
        mean_entropy_T = (
            torch.zeros(len(tokens_T), dtype=torch.float64).index_add_(0, turn, entropy.detach().double()) / tokens_T
        )
        return value, figures | {
            f"{_TURN}{k}": float(mean_entropy_T[k]) for k in range(len(tokens_T)) if int(tokens_T[k])
        }

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


def _entropy_and_turn(forest: Forest, policy: PolicyTokens, entries: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies of these tokens, in the dtype of the log-probs, and the number of each token's turn."""
    if policy.entropy is None:
        raise MissingSignal("entropy_band needs the policy's entropy: give it, or leave the term out")
    turn = forest.step_turn[forest.path_step[entries]]
    return policy.entropy[entries].to(policy.logprob.dtype), turn
