"""Shaped outcomes of a team's attempts, by the formats, calls and costs of their turns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gxpo.environments.rewards.team import Turns
from gxpo.forest import grouped


def family_format(outcome: Tensor, turns: Turns, *, accuracy: float = 0.9, gate: bool = False) -> Tensor:
    """Outcome with format (MATPO): accuracy * outcome + (1 - accuracy) (lead / 2 + mean of the others' turns / 2).

    The step reward of a turn (`rollout.reward_scope: role`) says whether its format is right; the lead's is that of its
    last turn, and the lead the role that begins. Without other turns their half is 0.

    gate  no format counts unless the outcome is 1

    >>> from gxpo.environments.rewards.team import Turn
    >>> one = [Turn("lead", 1.0), Turn("worker", 1.0), Turn("worker", 0.0)]
    >>> other = [Turn("lead", 1.0), Turn("worker", 0.0)]
    >>> family_format(torch.tensor([1.0, 0.0]), [one, other]).round(decimals=9).tolist()
    [0.975, 0.05]
    """
    formats = []
    for attempt in turns:
        lead_rewards = [t.reward for t in attempt if t.agent == attempt[0].agent]
        other_rewards = [t.reward for t in attempt if t.agent != attempt[0].agent]
        formats.append(
            0.5 * lead_rewards[-1] + (0.5 * sum(other_rewards) / len(other_rewards) if other_rewards else 0.0)
            if lead_rewards
            else 0.0
        )
    format_R = torch.tensor(formats, dtype=torch.float64).nan_to_num(0.0)
    if gate:
        format_R = torch.where(outcome >= 1, format_R, 0.0)
    return accuracy * outcome.to(torch.float64) + (1 - accuracy) * format_R


def called_or_right(outcome: Tensor, turns: Turns, *, bonus: float = 0.1, helpers: Sequence[str] = ()) -> Tensor:
    """Outcome, or where it is 0 a bonus for helpers (HierSearch): bonus * share of them that were called at least once.

    helpers  those that could be called; (): the agents of the step's turns that somebody called

    >>> from gxpo.environments.rewards.team import Turn
    >>> used = [Turn("main"), Turn("local", caller=0), Turn("web", caller=0)]
    >>> called_or_right(torch.tensor([0.5, 0.0]), [used, used], helpers=("local", "web", "other")).tolist()
    [0.5, 0.06666666666666667]
    """
    names = set(helpers) or {t.agent for attempt in turns for t in attempt if t.caller >= 0}
    shares = [len(names & {t.agent for t in attempt if t.caller >= 0}) / max(len(names), 1) for attempt in turns]
    return torch.where(outcome > 0, outcome.to(torch.float64), bonus * torch.tensor(shares, dtype=torch.float64))


def readable_and_short(
    outcome: Tensor, turns: Turns, group: Tensor, *, cost: float = 0.6, ease: float = 0.7, longest: int = 500
) -> Tensor:
    """Outcome less its tokens, with readability (Optima): outcome - cost tokens / most + ease / max NLL of a turn.

    most     tokens of the group's longest attempt
    max NLL  the largest mean -log-prob of a turn under its sampler (nats), at least 0.1, since the bonus has no other
             bound: an attempt that repeats itself is very likely; of an attempt without tokens or with more than
             `longest` the bonus is -1

    >>> from gxpo.environments.rewards.team import Turn
    >>> turns = [[Turn("a", tokens=40, nll=1.2)], [Turn("a", tokens=80, nll=0.9)], [Turn("a", tokens=100, nll=1.5)]]
    >>> readable_and_short(torch.tensor([1.0, 1.0, 0.0]), turns, torch.zeros(3).long()).round(decimals=6).tolist()
    [1.343333, 1.297778, -0.133333]
    """
    tokens = torch.tensor([float(sum(t.tokens for t in attempt)) for attempt in turns], dtype=torch.float64)
    hardest = [max((t.nll for t in attempt if t.tokens), default=math.nan) for attempt in turns]
    bonus = ease / torch.tensor(hardest, dtype=torch.float64).clamp_min(0.1)
    bonus = torch.where(bonus.isnan() | (tokens > longest), -1.0, bonus)
    return outcome.to(torch.float64) - cost * tokens / grouped.max(tokens, group).clamp_min(1) + bonus
