"""Value loss: regression of a value head on the targets of an advantage estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.sequence_score import (
    Figures,
    Scores,
    SequenceLoss,
    counted_trajectories,
    token_coefficients,
)
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.forest import grouped
from gxpo.parts.protocols import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


GUMBEL_MOST = 5.0  # of z: e^z of an outlier would be the whole gradient
Form = Literal["mse", "expectile", "quantile", "gumbel", "bce", "advantage_weighted"]


def value_loss(
    value: Tensor,
    target: Tensor,
    old: Tensor | None = None,
    clip: float | None = None,
    *,
    form: Form = "mse",
    tau: float = 0.9,
    temperature: float = 1.0,
    max_weight: float = 100.0,
) -> Tensor:
    """Value loss, elementwise, with u = target - value and z = u / temperature.

    mse                 u^2 / 2; with `clip` the larger of it and of that of old + clip(value - old, +-clip) (PPO)
    expectile           |tau - [u < 0]| u^2: above 1/2 towards the best of the targets that a state has (IQL)
    quantile            |tau - [u < 0]| |u|
    gumbel              e^z - z - 1, z at most 5: towards temperature log mean e^(target / temperature) (XQL, dual-V)
    bce                 -target log p - (1 - target) log (1 - p), p = sigmoid(value); targets in [0, 1] (DQC)
    advantage_weighted  min(e^((target - old) / temperature), max_weight) u^2 / 2: the value of the policy that is
                        weighted so

    value   carries the gradient
    target  constant
    old     the value at the start of the step, constant; read where there is a `clip`, and by "advantage_weighted"
    clip    absolute bound, in units of reward: beyond it, a value that moves towards its target is not pulled on

    Sources: PPO, arXiv 1707.06347 (squared error); the clip as in OpenAI's baselines and in verl (there 0.5); IQL,
    arXiv 2110.06169; XQL, arXiv 2301.02328; DQC's code.
    """
    u = target - value
    side = torch.where(u < 0, 1 - tau, tau)
    if form == "expectile":
        return side * u.square()
    if form == "quantile":
        return side * u.abs()
    if form == "gumbel":
        z = (u / temperature).clamp_max(GUMBEL_MOST)
        return z.exp() - z - 1
    if form == "bce":
        return torch.nn.functional.binary_cross_entropy_with_logits(value, target, reduction="none")
    loss = u.square() / 2
    if form == "advantage_weighted":
        assert old is not None
        return ((target - old) / temperature).exp().clamp_max(max_weight) * loss
    if clip is None:
        return loss
    assert old is not None
    # the larger of both: a value that the clip holds has no gradient towards its target, one that moved away has
    return torch.maximum(loss, (old + (value - old).clamp(-clip, clip) - target).square() / 2)


@part("value_regression", stage="term")
@dataclass(frozen=True)
class ValueRegression(TermPart):
    """Value loss: coef * aggregate of `value_loss` over the trainable tokens that have a target.

    Reads the head's output and the signal "value_target" [P], a constant of the step; entries whose target is nan are
    not trained and not counted, trajectories without any neither. By default the plain mean over tokens, whatever the
    policy term's aggregation. Not importance weighted; trained where the advantage is 0 too; `forest.weight` counts.

    coef    the head's gradient reaches the whole policy, so this is the policy's share in it too; PPO's c1
    clip    None: no clip; of form "mse"
    form    the loss, see `value_loss`; under "bce" the head's output is the log-odds of a value in [0, 1], and its
            target the signal "value_logit_target" of credits that read it so (`option_values` with `logits`)
    tau, temperature, max_weight  of the forms that have them
    head    NAME of the head whose output is "value@NAME" and whose target "value_target@NAME"; None: the plain "value"
            and "value_target". Its figures are named after it too
    target  another name of the target's signal
    """

    slot = "objective.add.NAME"
    coef: Width = 0.5
    clip: Positive | None = None
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    horizon: float | None = None
    head: str | None = None
    target: str | None = None
    form: Form = "mse"
    tau: Annotated[float, Interval(gt=0, lt=1)] = 0.9
    temperature: Positive = 1.0
    max_weight: Positive = 100.0

    def __post_init__(self) -> None:
        if self.head == "" or self.target == "":
            raise ConfigError("value regression: head and target are names, or null for the plain value")
        if self.clip is not None and self.form != "mse":
            raise ConfigError(f"value regression: clip is of form mse, and form is {self.form}: leave one of them out")
        needs = (self._target, self._output) if self._reads_old else (self._target,)
        object.__setattr__(self, "needs", needs)
        object.__setattr__(self, "outputs", ("logprob", self._output))

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        value_P = self._predicted_value(policy)
        if value_P is None:
            field_name = "PolicyTokens.value" if self.head is None else f"PolicyTokens.outputs[{self._output!r}]"
            raise MissingSignal(f"the value term needs the policy's value: give {field_name}")
        # tokens without a target are in no mean; of the others those of weight 0 still divide
        target, counted_P = self._targets(forest, signals)
        scale_P = coefficients(forest.path_trajectory, counted_P, self.aggregate, self.horizon)
        scale_P = self.coef * scale_P * forest.to_path(forest.weight, "R")
        entries = (counted_P & self.active(forest, credit, weight)).nonzero().squeeze(1)
        value = value_P[entries]
        old = signals[self._output][entries].detach().to(value) if self._reads_old else None
        if self.form == "bce" and bool(((target[entries] < 0) | (target[entries] > 1)).any()):
            raise GxpoError(f"{self._target} leaves [0, 1], where form bce has its targets: take another form")
        options = {"form": self.form, "tau": self.tau, "temperature": self.temperature, "max_weight": self.max_weight}
        loss = value_loss(value, target[entries].to(value), old, self.clip, **options)
        return (scale_P[entries].to(value) * loss).sum(), self._figures(value, target[entries])

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of trajectories of non-zero `forest.weight`; with the signals, those that have a target."""
        if self.coef == 0:
            return torch.zeros_like(forest.path_trainable)
        is_counted_P = forest.path_trainable if signals is None else self._targets(forest, signals)[1]
        return is_counted_P & (forest.to_path(forest.weight, "R") != 0)

    @torch.no_grad()
    def _figures(self, value: Tensor, target: Tensor) -> dict[str, float]:
        """Metrics of the regression.

        value_loss       mean of (value - target)^2 / 2, before coef and clip, whichever form is trained
        value_explained  1 - mean (target - value)^2 / variance of the target (population); 0 where that is 0

        Of a named head, "value_loss@NAME" and "value_explained@NAME".
        """
        if not value.numel():
            return {}
        target, value = target.double(), (value.sigmoid() if self.form == "bce" else value).double()
        error, spread = (value - target).square().mean(), target.var(correction=0)
        explained = float(1 - error / spread) if float(spread) > 0 else 0.0
        suffix = "" if self.head is None else f"@{self.head}"
        return {f"value_loss{suffix}": float(error) / 2, f"value_explained{suffix}": explained}

    @property
    def _reads_old(self) -> bool:
        return self.clip is not None or self.form == "advantage_weighted"

    @property
    def _output(self) -> Output:
        return Output("value", self.head or "")

    @property
    def _target(self) -> str:
        if self.target is not None:
            return self.target
        name = "value_logit_target" if self.form == "bce" else "value_target"
        return name if self.head is None else f"{name}@{self.head}"

    def _predicted_value(self, policy: PolicyTokens) -> Tensor | None:
        return policy.value if self.head is None else policy.outputs.get(self._output)

    def _targets(self, forest: Forest, signals: Signals) -> tuple[Tensor, Tensor]:
        """Targets [P], and the trainable tokens that have one, [P] bool."""
        target = signals[self._target].detach()
        if bool(target.isinf().any()):
            raise GxpoError(f"{self._target} is infinite for some tokens: check the rewards")
        return target, forest.path_trainable & target.isfinite()


Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]


@torch.no_grad()
def next_value(change: Tensor, trajectory: Tensor) -> Tensor:
    """Next token's `change` within a trajectory, [n], 0 at its last; both columns [n] in path order.

    >>> next_value(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1])).tolist()
    [2.0, 0.0, 0.0]
    """
    follows = torch.zeros_like(trajectory, dtype=torch.bool)
    follows[:-1] = trajectory[1:] == trajectory[:-1]
    return torch.where(follows, change.roll(-1), torch.zeros_like(change))


def uniform_value(log_ratio: Tensor, reward: Tensor, following: Tensor, scale: float = 1.0) -> Tensor:
    """Bellman residual of ROVER, [n]: (scale D_t - y_t)^2, y_t = reward + following, Q_t = scale D_t.

    log_ratio  [n] D_t = log policy - log old of each token
    reward     [n] of its trajectory, centred in the group
    following  [n] value of the next state, see `UniformValue`; reward and value are taken as constants

    dL/dD = 2 scale (scale D - y). On policy, where D and `following` are 0: REINFORCE, times 2 scale.

    Source: ROVER, arXiv 2509.24981, and its code, which detaches the whole target.
    """
    return (scale * log_ratio - (reward + following).detach()).square()


@part("uniform_value", stage="term")
@dataclass(frozen=True)
class UniformValue(SequenceLoss):
    """Q-learning on the value of the uniform policy (ROVER): aggregate of `uniform_value` over the trained tokens.

    With u_t = mean over the vocabulary of log policy - log old, in the state where token t is chosen: the value of that
    state under actions drawn uniformly, in units of the log-ratio. y_t = r_i - mean_g r + next_scale u_{t+1}, without
    the last at the trajectory's last trained token.

    scale       of the log-ratio, as Q
    next_scale  of the next state's value; 0 is a regression on the reward alone
    aggregate   of the tokens; `horizon` for "sequence_sum"

    Reads the policy's output "mean_logprob" and the signal "start_mean_logprob", the same at the start of the step, so
    `old` is that policy. Groups of fewer than two compared trajectories give 0 and count; groups of equal rewards are
    pulled to what the next states say.
    """

    scale: Positive = 1.0
    next_scale: Width = 1.0
    aggregate: Aggregate = "token_mean"
    horizon: float | None = None

    couples = "trajectory"
    outputs = ("logprob", "mean_logprob")
    needs = ("start_mean_logprob",)
    learns_from_equal_groups = True

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        if "mean_logprob" not in policy.outputs:
            raise MissingSignal(
                "this objective reads the policy's mean log-prob over the vocabulary: output mean_logprob"
            )
        # both are constants: the target of the residual is not differentiated (ROVER's code detaches it whole)
        change_P = policy.outputs["mean_logprob"].detach() - signals["start_mean_logprob"].detach()
        change_P, rows = change_P[x.entries].to(torch.float64), forest.path_trajectory[x.entries]
        if missing := int(change_P.isnan().sum()):
            raise MissingSignal(f"mean_logprob or start_mean_logprob is nan for {missing} of {len(rows)} tokens")
        # unscored trajectories are not read; their nan must not reach the group's mean
        reward = forest.outcome.nan_to_num(0.0)
        centred_R = reward - grouped.mean(reward, x.group, counted_trajectories(forest) & forest.compared)
        token_loss = uniform_value(x.gap, centred_R[rows], self.next_scale * next_value(change_P, rows), self.scale)
        share = token_coefficients(forest, self.aggregate, self.horizon)[x.entries]
        return (share * token_loss).sum(), {"implicit_reward_gap": token_loss.detach().mean().sqrt()}
