"""Effect of a method on synthetic rollouts: advantage by group composition, gradient weight by importance ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.objectives import PolicyGradient
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.protocols import PolicyTokens

GROUP, LENGTH, LIMIT = 8, 4, 64  # answers of a group, tokens of an answer, tokens at which generation stops
SIGNALS_AT_HAND = (
    "behaviour_logprob",
    "proximal_logprob",
    "reference_logprob",
    "entropy",
)  # have one value for all tokens


@dataclass(frozen=True)
class Answer:
    """One rollout of a synthetic group."""

    group: str
    reward: float
    length: int = LENGTH
    logprob: float = -0.5


@dataclass(frozen=True)
class Effect:
    """Effective advantage of an answer in a group of `GROUP` with c right answers, c = 0..GROUP.

    right, wrong   means over the right and the wrong answers, in units of the advantage; None: no such answer
    by_gradient    the objective reads no advantages: minus its gradient at the rollout policy is shown instead
    """

    right: tuple[float | None, ...]
    wrong: tuple[float | None, ...]
    by_gradient: bool = False

    def same_as(self, effect: Effect) -> bool:
        """Return True if both agree to nine digits."""
        pairs = zip((*self.right, *self.wrong), (*effect.right, *effect.wrong), strict=True)
        return all(a == b if a is None or b is None else abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in pairs)


def rollouts(answers: Sequence[Answer]) -> Forest:
    """Build a forest of single-turn answers, one prompt for each group; right is a reward above a half."""
    groups = list(dict.fromkeys(a.group for a in answers))
    members = [[a for a in answers if a.group == g] for g in groups]
    forest = Forest.from_completions(
        [[i + 1] for i in range(len(groups))],
        [[[9] * a.length for a in row] for row in members],
        groups=groups,
        logprobs=[[[a.logprob] * a.length for a in row] for row in members],
        info=[{"gold_calls": []} for _ in answers],  # the reference calls no tool
    )
    reward = torch.tensor([a.reward for row in members for a in row], dtype=torch.float64)
    forest = forest.replace(action_text=[""] * forest.n_steps, step_info=[{"calls": []} for _ in answers])
    return forest.with_rewards(reward, components={"correct": reward}, success=reward > 0.5)


def obstacle(method: Method) -> str:
    """Return the reason why a method can't be tried on synthetic rollouts; "" if it can."""
    parts = [method.credit, *method.weights.values()]
    parts += [*method.shapes.values(), *method.step_rewards.values(), *method.rewards.values()]
    # terms count only where the effect is read off the objective's gradient, as `push` does
    parts += [] if method.reads_credit else list(method.terms.values())
    if missing_names := _declared_names(parts, "requires"):
        return f"it requires {', '.join(missing_names)} of the rollouts"
    if missing_names := [name for name in _declared_names(parts, "needs") if name not in SIGNALS_AT_HAND]:
        return f"it reads {', '.join(missing_names)}, which these rollouts do not have"
    return ""


def _declared_names(parts: Sequence[Any], attribute: str) -> list[str]:
    return list(dict.fromkeys(x for part in parts for x in getattr(part, attribute, ())))


def push(method: Method, forest: Forest) -> Tensor:
    """Return the mean over a trajectory's tokens of advantage times weights, [R] float64.

    If the objective reads no advantages: of minus its gradient by the log-probs at a policy that has not moved, times
    the number of tokens, which is GRPO's advantage where trajectories are equally long. Raises GxpoError where a part
    can't work with these rollouts.
    """
    method = method.fill(horizon=float(LENGTH), max_length=LIMIT)
    forest = method.shaped(forest)
    behaviour_logprob_P = forest.path_behaviour_logprob
    signal_values = {
        "proximal_logprob": behaviour_logprob_P,
        "reference_logprob": behaviour_logprob_P,
        "entropy": torch.ones_like(behaviour_logprob_P),
    }
    # policy, proximal and reference agree and every token has one entropy, so that groups differ in rewards alone
    signals = Signals.of(forest, signal_values, method.axes)
    credit = method.advantages(forest, signals)
    # the learner multiplies advantage and weight; an objective of its own has only its gradient to show
    if method.reads_credit:
        push_P = credit * method.token_weights(forest, credit, signals)
    else:
        logprob_P = behaviour_logprob_P.clone().requires_grad_()
        policy = PolicyTokens(
            logprob_P,
            behaviour_logprob_P,
            reference_logprob=behaviour_logprob_P,
            entropy=signal_values["entropy"],
            proximal_logprob=behaviour_logprob_P,
        )
        loss = method.loss(forest, policy, advantages=credit, signals=signals).value
        push_P = -torch.autograd.grad(loss, logprob_P)[0].to(torch.float64) * forest.n_entries
    push_R = torch.bincount(forest.path_trajectory, push_P, forest.n_trajectories)
    return push_R / forest.lengths().clamp_min(1)


def effect(method: Method) -> Effect | str:
    """Measure the effect on nine groups, from all wrong to all right, as one batch.

    Returns the reason as text where the method can't be tried on them.
    """
    if reason := obstacle(method):
        return reason
    memberships = [(c, i < c) for c in range(GROUP + 1) for i in range(GROUP)]
    try:
        push_by_answer = push(
            method, rollouts([Answer(f"{c} right", float(right)) for c, right in memberships])
        ).tolist()
    except GxpoError as error:
        return str(error)
    means: dict[tuple[int, bool], float] = {}
    for key in dict.fromkeys(memberships):
        members = [x for row, x in zip(memberships, push_by_answer, strict=True) if row == key]
        means[key] = sum(members) / len(members)
    right, wrong = (tuple(means.get((c, side)) for c in range(GROUP + 1)) for side in (True, False))
    return Effect(right, wrong, by_gradient=not method.reads_credit)


def on_equal(method: Method) -> str:
    """Return "signal" if groups of equal rewards can teach the method something, else "zero".

    Parts that are built for it declare it. In addition, an all-wrong and an all-right group of unequal lengths,
    log-probs and other scores are tried, since a reward of the method's own may tell their members apart.
    """
    judged_parts = [*method.terms.values(), *([method.credit] if method.reads_credit else [])]
    if any(map(learns_from_equal_groups, judged_parts)):
        return "signal"
    if obstacle(method):
        return "zero"
    forest = rollouts([Answer(g, r, i, -0.2 * i) for g, r in (("wrong", 0.0), ("right", 1.0)) for i in range(1, 5)])
    component_names = [
        name for part in (*method.shapes.values(), *method.rewards.values()) for name in getattr(part, "reads", ())
    ]
    forest = forest.replace(step_info=[{"calls": [{"name": "tool"}] * (n % 4)} for n in range(forest.n_steps)])
    score = 0.1 * forest.lengths()
    forest = forest.with_rewards(
        forest.outcome, components={"correct": forest.outcome, **dict.fromkeys(component_names, score)}
    )
    try:
        return "signal" if bool((push(method, forest) != 0).any()) else "zero"
    except GxpoError:
        return "zero"


# ---------------------------------------------------------------- gradient by ratio
SAMPLED, ENTROPY = 0.2, 0.5  # probability of a token when it was sampled; entropy in nats
RATIOS = tuple(i / 50 for i in range(1, 201))  # 0.02, 0.04, ... 4
TABLE_RATIOS = (0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0)  # those in the table of a method's page


@dataclass(frozen=True)
class SurrogateEffect:
    """Gradient weights at `RATIOS`: -dL/dlogprob over the advantage, for advantages of 1 (rising) and -1 (falling).

    1 is REINFORCE's weight, rho that of the unclipped ratio; 0: the token moves nothing; below 0: it is pulled back.
    """

    rising: tuple[float, ...]
    falling: tuple[float, ...]

    def same_as(self, effect: SurrogateEffect) -> bool:
        pairs = zip((*self.rising, *self.falling), (*effect.rising, *effect.falling), strict=True)
        return all(abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in pairs)


def gradient_weights(method: Method, ratios: tuple[float, ...], credit: float) -> list[float]:
    """Return -dL/dlogprob / advantage at each ratio, by autograd through the method's policy term.

    Every ratio is a trajectory of one token, sampled with probability `SAMPLED`; the weight parts are left out.
    """
    term = method.fill(horizon=1.0).terms["policy"]
    is_coupled = term.couples not in ("token", "trajectory")
    # a term that couples a group or the step would let the ratios influence one another: they are tried one by one
    weights: list[float] = []
    for batch in [(x,) for x in ratios] if is_coupled else [ratios]:
        weights += _slope(term, torch.tensor(batch, dtype=torch.float64), credit).tolist()
    return weights


def _slope(term: PolicyGradient, ratio: Tensor, credit: float) -> Tensor:
    n = len(ratio)
    forest = Forest.from_completions([[1]] * n, [[[2]]] * n, [[0.0]] * n)
    old = torch.full((n,), SAMPLED, dtype=torch.float64).log()
    logprob = (old + ratio.log()).requires_grad_()
    ones = torch.ones_like(ratio)
    policy = PolicyTokens(logprob, old, old, ENTROPY * ones, proximal_logprob=old)
    value, _ = term(forest, policy, credit * ones, ones, Signals.of(forest, {"entropy": ENTROPY * ones}, {}), 0)
    return -torch.autograd.grad(value, logprob)[0] * n / credit  # n: every aggregation is a mean over n tokens here


def surrogate_effect(method: Method) -> SurrogateEffect | str:
    """Compute the curves for both signs of the advantage, or return the reason why there are none."""
    term = method.terms["policy"]
    if not isinstance(term, PolicyGradient):
        return "it is no sum over single tokens"
    if term.read_scope == "step":
        return "what one token weighs depends on all tokens of the step"
    try:
        return SurrogateEffect(*(tuple(gradient_weights(method, RATIOS, credit)) for credit in (1.0, -1.0)))
    except GxpoError as error:
        return str(error)
