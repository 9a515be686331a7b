r"""GRPO-LEAD: correct answers are worth more the shorter they are, wrong ones cost, and hard tasks weigh more.

R_i = exp(-0.05 z_i) if correct, -1 if wrong;   z_i = (L_i - mean L) / (std L + eps) over the group's correct answers
A'_i = A_i w(rho) if A_i > 0, A_i w(1 - rho) otherwise;   w(p) = 0.4 + 1.1 / (1 + exp(10 (p - 0.75))),  rho = c / G

Choices. The lengths' std is the population's, the reward's has one degree of freedom (the card's numbers); eps of the
lengths 1e-6. rho comes from the verdicts, not from the shaped outcome. No KL, as in the paper.
"""

from gxpo.credit.difficulty import DifficultyWeighted
from gxpo.keys import Definition
from gxpo.rewards.length import LengthRelative

grpo_lead = Definition(
    name="grpo_lead",
    title="GRPO-LEAD: A Difficulty-Aware Reinforcement Learning Approach for Concise Mathematical Reasoning in "
    "Language Models",
    arxiv="2504.09696",
    authors="Zhang, Jixiao and Zuo, Chunsheng",
    year=2025,
    idea="length-dependent reward for correct answers, a penalty for wrong ones, difficulty-aware advantages",
    formula="R = exp(-a z_L) or -1; A' = A w(rho) if A > 0 else A w(1 - rho), w logistic",
    evidence="secondary",
    keys={"credit": DifficultyWeighted, "reward.shape.concise": LengthRelative},
    choices="population std of lengths over correct answers; w re-evaluated at 1 - rho (not 1 - w)",
)
