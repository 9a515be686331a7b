r"""Dr. MAS: per-agent advantage normalisation in multi-agent teams: each agent's own mean and std in the group.

A = (R - mean_{q,k} R) / (std_{q,k} R + eps) for every call of agent k at query q; R the team's outcome

Choices. Statistics over calls, ddof 1, eps 1e-6, as in the reference code; an agent that is called more often in some
attempts than in others has other statistics than the group of attempts (averaging per attempt first would be the base's
advantage). An agent's only call in a group has 0 (the reference keeps its raw outcome). The normalisation is a flag on
other methods as well: `--set credit=dr_mas`, with `credit.center` and `credit.scale` as theirs. With `rollout.policy:
per_role` all policies take one optimiser step together, clipped by one norm (the reference: a step and a norm for
each).
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.team import Team

dr_mas = Definition(
    name="dr_mas",
    doc=__doc__,
    title="Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems",
    arxiv="2602.08847",
    authors="Feng, Lang and Zheng, Longtao and He, Shuo and Zhang, Fuxiang and An, Bo",
    year=2026,
    evidence="reference-code",
    keys={"credit.among": ("agent",), "credit.unit": "step", "rollout": Team},
    cost="one sample per turn of each attempt",
    code="langfengQ/DrMAS@19c632bc0f75730b6db98d90b5035ee9bb7f66d1 verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py",
)
