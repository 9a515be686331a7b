r"""IGPO: information-gain turn rewards: the rise in the policy's own probability of the correct answer.

b_t = exp(mean_j log pi_old(a*_j | what stands before turn t + 1, cue, a*_<j)), a* the right answer, teacher-forced
r_t = b_t - b_(t-1) for every turn but the last, which has the outcome; b_0 of the first prompt
A_t = sum_(k >= t) gamma^(k-t) (r_k - mean) / s, s = sqrt(var + 1e-8) + 1e-6, over all turns of the group; gamma 1

Choices. The paper's form with one degree of freedom, as GRPO's, and the floor of the authors' code of February 2026
(there the population variance: `igpo@paper`), which they call the paper's method; the code before, without std and with
a baseline by token position, was by their word an early attempt. The 1e-8 is a floor of 1e-4: where a whole group fails
and beliefs move by 1e-5, a turn has an advantage of about .1; without it (`credit.floor: 0`) of 2, with `credit.scale:
none` of 1e-5. Adam makes whole steps of any of these once all groups are such: see the figure `belief_moved`. The
code's train.sh scales outcomes and gains separately (`credit.pool: separate`) and takes gains of log b (`credit.gain:
log`). A gain of exactly 0 is a gain; the code, which finds turns by rewards that are not 0, leaves it out. What the
environment answered belongs to the turn that asked, as in the code, whose loss is a sum over tokens
(`objective.aggregate: sequence_sum`). The code's reward of the last turn is F1 of the answer, -2 for a bad format; here
it is the task's. `signal.answer_belief.cue` should be how the policy answers; the code's is a whole pseudo-answer in
tags.
"""

from gxpo.algorithms.credit.pooled_turns import pooled_turns
from gxpo.algorithms.signals.answer_belief import AnswerBelief
from gxpo.parts.definition import Definition

igpo = Definition(
    name="igpo",
    doc=__doc__,
    title="Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
    arxiv="2510.14967",
    authors="Wang, Guoqing and Dai, Sunhao and Ye, Guangze and Gan, Zeyu and Yao, Wei and Deng, Yong and Wu, Xiaofeng "
    "and Ying, Zhenzhe",
    year=2025,
    formula="r_t = b_t - b_(t-1), r_T = R; A_t = sum_(k>=t) (r_k - mean_g) / std_g over all turns of the group",
    evidence="reference-code",
    code="GuoqingWang1/IGPO@745078b5a35d0b84d3d9184e0f0de05ed04e11ad verl/trainer/ppo/core_algos.py "
    "scrl/llm_agent/generation.py verl/utils/reward_score/info_gain.py train.sh",
    keys={"credit": pooled_turns, "signal.answer_belief": AnswerBelief, "signal.answer_belief.answered": True},
    paper_defaults={"credit.ddof": 0, "objective.kl.coef": 0.001, "rollout.group_size": 16, "optim.lr": 1e-6},
    cost="a forward pass over the rollouts and, after every turn, over cue and answer",
)
