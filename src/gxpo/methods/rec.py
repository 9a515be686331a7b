r"""REC: off-policy group-relative REINFORCE with a one-sided clip and without importance weights.

A_i = r_i - mean;   l_t = -m_t A_i log pi(o_t), token mean;   m = 1 where rho <= 1.2 (A > 0), rho >= 0.8 (A < 0)

It is one gradient step on (r_i - r_j - tau (log-ratio_i - log-ratio_j))^2 over pairs of a group, whichever policy
sampled it. With `{"objective.importance": "ratio"}` it has PPO's gradient; `objective.side: two | ring` are the other
masks. RED-Weight is `{"weight.exponential_credit": "exponential_credit"}`; AsymRE is `asymre`.
Choices. REC-OneSide-NoIS of the family; bounds 0.2 as in the code, which also has 3e-4 / 4e-4 on the sequence ratio.
Mean without std, as derived (the code has a std as an option). RED-Drop, which leaves out surplus failures at random
and takes the mean again, is not here.
"""

from gxpo.algorithms.objectives.surrogate_weights import ratio_mask
from gxpo.parts.definition import Definition

rec = Definition(
    name="rec",
    doc=__doc__,
    title="Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm: Demystifying Some Myths About GRPO and Its "
    "Friends",
    arxiv="2509.24203",
    authors="Yao, Chaorui and Chen, Yanxi and Sun, Yuchang and others",
    year=2025,
    evidence="reference-code",
    keys={"objective.surrogate": ratio_mask, "objective.aggregate": "token_mean", "credit.scale": "none"},
    code="agentscope-ai/Trinity-RFT@1d7fae4a63f5e3a30e1927559d28a348a2167dd6 "
    "trinity/algorithm/policy_loss_fn/rec_policy_loss.py",
)
