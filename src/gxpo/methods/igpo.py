r"""IGPO: a turn is rewarded by how much likelier it made the right answer to the policy itself.

b_t = exp(mean_j log pi_old(a*_j | what stands before turn t + 1, cue, a*_<j)), a* the right answer, teacher-forced
r_t = b_t - b_(t-1) for every turn but the last, which has the outcome; b_0 of the first prompt
A_t = sum_(k >= t) gamma^(k-t) (r_k - mean) / (std + eps), mean and std over all turns of the group; gamma 1

Choices. The paper's form. Its released code never scales: it takes returns to go and subtracts their group mean at the
same token position, padding counted as 0, so that unrelated turns are compared. What the environment answered belongs
to the turn that asked, as in the code. ddof 1 and eps are GRPO's. The code's reward of the last turn is F1 of the
answer, -2 for a bad format; here it is the task's. `signal.answer_belief.cue` should be how the policy answers; the
code's is a whole pseudo-answer in tags. In a trajectory of one turn this is GRPO.
"""

from gxpo.credit.pooled_turns import PooledTurns
from gxpo.keys import Definition
from gxpo.signals.answer_belief import AnswerBelief

igpo = Definition(
    name="igpo",
    title="Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
    arxiv="2510.14967",
    authors="Wang, Guoqing and Dai, Sunhao and Ye, Guangze and Gan, Zeyu and Yao, Wei and Deng, Yong and Wu, Xiaofeng "
    "and Ying, Zhenzhe",
    year=2025,
    idea="each turn is rewarded by the rise in the policy's own probability of the right answer",
    formula="r_t = b_t - b_(t-1), r_T = R; A_t = sum_(k>=t) (r_k - mean_g) / std_g over all turns of the group",
    evidence="reference-code",
    keys={"credit": PooledTurns, "signal.answer_belief": AnswerBelief, "signal.answer_belief.answered": True},
    paper_defaults={"objective.kl.coef": 0.001, "rollout.group_size": 16, "update.lr": 1e-6},
    choices="the paper's normalised sum, not the code's position-wise baseline; the last turn has the task's outcome",
    cost="a forward pass over the rollouts and, after every turn, over cue and answer",
)
