r"""REFUEL: two continuations from one turn on; the log-ratio of that turn is regressed on the difference of returns.

a turn h is drawn, an episode leaves another before it, both go on to the end;   D_i = sum over turn h of log policy -
log old;   L = mean ((D_1 - D_2) / eta - (R_1 - R_2))^2 / 4,   eta 1

Choices. 1 / eta is `objective.beta`; the code has (D_1 - D_2 - eta (R_1 - R_2))^2, eta^2 times as much, the 4 apart. h
is uniform over the turns that an episode may have, and the prompt where it ended before. Two equal actions in turn h
have D_1 = D_2, whatever comes later, as in the code (changed on 2026-11-28: before, a later turn was taken). The
authors make all rollouts of a round before they train; here each step has its own. On a task of one turn this is REBEL;
without forks (`rollout: independent`) it regresses the first turn in which the episodes differ. A KL penalty in the
returns is `objective.kl.place: reward` in methods that read advantages, not here.
"""

from gxpo.algorithms.objectives.sequence_losses import GroupVariance
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.branching import TurnBranches

refuel = Definition(
    name="refuel",
    doc=__doc__,
    title="Regressing the Relative Future: Efficient Policy Optimization for Multi-turn RLHF",
    arxiv="2410.04612",
    authors="Gao, Zhaolin and Zhan, Wenhao and Chang, Jonathan D. and others",
    year=2024,
    formula="L = mean ((D_1 - D_2) / eta - (R_1 - R_2))^2 / 4, D = sum of log(pi/old) over the turn in which they part",
    evidence="reference-code",
    code="ZhaolinGao/REFUEL@8b3c67dfa503da883a3c44667179d07ba620f3da setting_one/refuel.py",
    keys={
        "objective": GroupVariance,
        "objective.beta": 1.0,
        "objective.over": "parting",
        "rollout": TurnBranches,
        "rollout.choose": "at_one_turn",
        "rollout.group_size": 2,
        "rollout.initial": 1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="the turns before h are generated once for both",
)
