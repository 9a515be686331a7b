"""Effect of a method on synthetic rollouts: groups of right and wrong answers that differ in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.protocols import PolicyTokens

GROUP, LENGTH, LIMIT = 8, 4, 64  # answers of a group, tokens of an answer, tokens at which generation stops
GIVEN = ("behaviour_logprob", "proximal_logprob", "reference_logprob", "entropy")  # the same for every token


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

    right, wrong   means over the right and the wrong answers, in units of the advantage; None: there is none
    by_gradient    the objective reads no advantages: minus its gradient at the rollout policy is shown instead
    """

    right: tuple[float | None, ...]
    wrong: tuple[float | None, ...]
    by_gradient: bool = False

    def same_as(self, other: Effect) -> bool:
        """Equal to nine digits, whatever their origin."""
        pairs = zip((*self.right, *self.wrong), (*other.right, *other.wrong), strict=True)
        return all(a == b if a is None or b is None else abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in pairs)


def rollouts(answers: Sequence[Answer]) -> Forest:
    """Forest of single-turn answers, one prompt for each group; an answer is right if its reward is above a half."""
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


def obstacle(made: Method) -> str:
    """Why a method can't be tried on synthetic rollouts; "" if it can."""
    parts = [made.credit, *made.weights.values()]
    parts += [*made.shapes.values(), *made.step_rewards.values(), *made.rewards.values()]
    parts += [] if made.reads_credit else list(made.terms.values())
    if asked := _asked(parts, "requires"):
        return f"it requires {', '.join(asked)} of the rollouts"
    if asked := [name for name in _asked(parts, "needs") if name not in GIVEN]:
        return f"it reads {', '.join(asked)}, which these rollouts do not have"
    return ""


def _asked(parts: Sequence[Any], name: str) -> list[str]:
    return list(dict.fromkeys(x for part in parts for x in getattr(part, name, ())))


def push(made: Method, forest: Forest) -> Tensor:
    """[R] float64: mean over a trajectory's tokens of advantage times weights.

    If the objective reads no advantages: of minus its gradient by the log-probs at a policy that has not moved, times
    the number of tokens, which is GRPO's advantage where trajectories are equally long. Raises GxpoError where a part
    can't work with these rollouts.
    """
    made = made.fill(horizon=float(LENGTH), max_length=LIMIT)
    forest = made.shaped(forest)
    known = forest.path_behaviour_logprob
    given = {"proximal_logprob": known, "reference_logprob": known, "entropy": torch.ones_like(known)}
    signals = Signals.of(forest, given, made.axes)
    credit = made.advantages(forest, signals)
    if made.reads_credit:
        pushed = credit * made.token_weights(forest, credit, signals)
    else:
        x = known.clone().requires_grad_()
        policy = PolicyTokens(x, known, reference_logprob=known, entropy=given["entropy"], proximal_logprob=known)
        loss = made.loss(forest, policy, advantages=credit, signals=signals).value
        pushed = -torch.autograd.grad(loss, x)[0].to(torch.float64) * forest.n_entries
    total = torch.bincount(forest.path_trajectory, pushed, forest.n_trajectories)
    return total / forest.lengths().clamp_min(1)


def effect(made: Method) -> Effect | str:
    """Effect on nine groups, from all wrong to all right, as one batch; or why the method can't be tried on them."""
    if reason := obstacle(made):
        return reason
    rows = [(c, i < c) for c in range(GROUP + 1) for i in range(GROUP)]
    try:
        pushed = push(made, rollouts([Answer(f"{c} right", float(right)) for c, right in rows])).tolist()
    except GxpoError as error:
        return str(error)
    means: dict[tuple[int, bool], float] = {}
    for key in dict.fromkeys(rows):
        members = [x for row, x in zip(rows, pushed, strict=True) if row == key]
        means[key] = sum(members) / len(members)
    right, wrong = (tuple(means.get((c, side)) for c in range(GROUP + 1)) for side in (True, False))
    return Effect(right, wrong, by_gradient=not made.reads_credit)


def on_equal(made: Method) -> str:
    """Whether groups of equal rewards give a learning signal: "signal", or "zero".

    Parts that are built for it say so; in addition, an all-wrong and an all-right group of unequal lengths, log-probs
    and other scores are tried, since a reward of the method's own may tell their members apart.
    """
    told = [*made.terms.values(), *([made.credit] if made.reads_credit else [])]
    if any(map(learns_from_equal_groups, told)):
        return "signal"
    if obstacle(made):
        return "zero"
    forest = rollouts([Answer(g, r, i, -0.2 * i) for g, r in (("wrong", 0.0), ("right", 1.0)) for i in range(1, 5)])
    read = [name for part in (*made.shapes.values(), *made.rewards.values()) for name in getattr(part, "reads", ())]
    forest = forest.replace(step_info=[{"calls": [{"name": "tool"}] * (n % 4)} for n in range(forest.n_steps)])
    score = 0.1 * forest.lengths()
    forest = forest.with_rewards(forest.outcome, components={"correct": forest.outcome, **dict.fromkeys(read, score)})
    try:
        return "signal" if bool((push(made, forest) != 0).any()) else "zero"
    except GxpoError:
        return "zero"
