r"""DMPO (multi-turn): DPO of whole episodes with a discount of turns that takes the length out.

phi(t, T) = gamma^t (1 - gamma^(T - t)) / (1 - gamma^T),   t = 0 .. T - 1,   gamma 0.7
s_i = sum over turns of phi(t, T_i) sum of (log policy - log reference);   l = -log sigmoid(beta (s_better - s_worse))

Choices. beta 0.1. The authors' code leaves the first turn of a conversation at 1 and counts from the second one, whose
t is 0, so that of T turns T - 1 are discounted (in its data the first one only agrees to the task); here t is 0 in the
first. Its token-wise variant counts from a wrong index. Pairs are episodes of one task by verdict, or come with the
data (rollout `logged`: answers of several messages). Distribution matching for diffusion language models, also DMPO, is
another method.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

dmpo = Definition(
    name="dmpo",
    doc=__doc__,
    title="Direct Multi-Turn Preference Optimization for Language Agents",
    arxiv="2406.14868",
    authors="Shi, Wentao and Yuan, Mengqi and Wu, Junkang and Wang, Qifan and Feng, Fuli",
    year=2024,
    formula="l = -log sigmoid(beta (s_w - s_l)), s = sum_t phi(t, T) log(pi/ref) over turns",
    evidence="reference-code",
    code="swt-user/DMPO@64f484515aea7a6e0232b3bf1847eb485a2effb0 fastchat/train/dmpo_trainer_efficient.py",
    keys={"objective": PreferencePairs, "objective.over": "turns", "objective.gamma": 0.7},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
