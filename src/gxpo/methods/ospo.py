r"""OSPO: one-step group advantage for fleets of like agents: those that act at the same time are the group.

A = (r - mean_t r) / (std_t r + 1e-8) - (change of the std of earnings at t);   std of the population

Choices. A group is one world, a trajectory one of its agents. Earnings are compared among the agents that act at t (the
code: the whole fleet). Clip 0.2 / 0.28 and entropy 0.05 under `ospo@paper`; the code's KL to its target network is off
by default and not built. The paper's GRPO for fleets: `credit.discount` above 0. Without step rewards the outcome is
the reward of the last turn.
"""

from gxpo.algorithms.credit.turn_relative import turn_relative
from gxpo.parts.definition import Definition

ospo = Definition(
    name="ospo",
    doc=__doc__,
    title="One Step is Enough: Multi-Agent Reinforcement Learning based on One-Step Policy Optimization for Order "
    "Dispatch on Ride-Sharing Platforms",
    arxiv="2507.15351",
    authors="Zhao, Zijian and Li, Sen",
    year=2025,
    evidence="reference-code",
    keys={"credit": turn_relative},
    paper_defaults={"objective.clip_high": 0.28, "objective.entropy.coef": 0.05},
    code="RS2002/OSPO@02ed2da285833bf9cf3e28a81859c22c8688c836 OSPO/Platform.py OSPO/Worker.py",
)
