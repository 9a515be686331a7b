r"""GRPO-LEAD: length-dependent reward for correct answers, penalty for wrong ones, difficulty-aware weights.

R_i = exp(-0.05 z_i) if correct, -1 if wrong;   z_i = (L_i - mean L) / (std L + eps) over the group's correct answers
A'_i = A_i w(rho) if A_i > 0, A_i w(1 - rho) otherwise;   w(p) = 0.4 + 1.1 / (1 + exp(10 (p - 0.75))),  rho = c / G

Choices. As in the authors' code, the lengths' std and the reward's have one degree of freedom, eps 1e-6 (`ddof: 0` for
the population's). rho comes from the verdicts, not from the shaped outcome. Alone in its group an answer has 0; the
code gives it its reward. What the code adds to the paper's formulas is selectable below `reward.shape.concise`: lengths
count only in groups whose three shortest answers have above 4,000 tokens on average (`longer_than`, in `@paper`, whose
runs end at 12,288); a failure without a readable answer has reward 0 (`parsed`: the component that says whether there
is one), a repetitive one of those -2 (`repetitive`). The code drops groups without a success, whose advantage is 0
here, from the batch; its loss is a token mean, and verl's entropy bonus of .001 is on (both in `@paper`). No KL.
"""

from gxpo.algorithms.credit.success_rate import difficulty_weighted
from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

grpo_lead = Definition(
    name="grpo_lead",
    doc=__doc__,
    title="GRPO-LEAD: A Difficulty-Aware Reinforcement Learning Approach for Concise Mathematical Reasoning in "
    "Language Models",
    arxiv="2504.09696",
    authors="Zhang, Jixiao and Zuo, Chunsheng",
    year=2025,
    formula="R = exp(-a z_L) or -1; A' = A w(rho) if A > 0 else A w(1 - rho), w logistic",
    evidence="reference-code",
    keys={
        "credit": difficulty_weighted,
        "reward.shape.concise": Shape,
        "reward.shape.concise.function": "length_relative",
    },
    paper_defaults={
        "reward.shape.concise.longer_than": 4000.0,
        "objective.aggregate": "token_mean",
        "objective.entropy.coef": 0.001,
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
    code="aeroplanepaper/GRPO-LEAD@9344bef verl/verl/trainer/main_ppo.py verl/verl/trainer/ppo/core_algos.py "
    "verl/verl/trainer/ppo/ray_trainer.py deepscaler/rewards/math_reward.py scripts/train/ds_14b_sft_stage1.sh",
)
