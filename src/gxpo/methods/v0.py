r"""V0: adaptive group sizes: split a fixed rollout budget across prompts by predicted success rate.

U(n, p) = n (1 - p) (1 - (1 - p)^(n - 1)): expected failures in a group with a success, of n attempts at success rate p
max sum_q U(n_q, p_q) with sum_q n_q = the budget and 2 <= n_q <= 128, greedily;   A = GRPO's over the n_q rows

Choices. Read in a note; the authors' repository (Now-Join-Us/V0) holds the value model alone, no allotment. The paper's
p is that model's, given other prompts' outcomes as context, which gxpo does not have: here it is the task's discounted
rate of success in earlier steps, drawn towards the mean over all tasks (one half before there is any). The budget is
`rollout.group_size` times the number of tasks. Greedy, as in the paper: hard tasks, for which U is convex in n, may
stay at two attempts. Where a sequence mean is taken, as by default, tasks with more attempts weigh more. Routing
between models is not part of this.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.adaptive_group_size import AdaptiveGroupSize

v0 = Definition(
    name="v0",
    doc=__doc__,
    title="V_0: A Generalist Value Model for Any Policy at State Zero",
    arxiv="2602.03584",
    authors="Zhang, Yi-Kai and Yao, Zhiyuan and Hao, Hongyan and Sun, Yueqing and Gu, Qi and Su, Hui and "
    "Cai, Xunliang and Zhan, De-Chuan and Ye, Han-Jia",
    year=2026,
    formula="max sum_q n_q (1 - p_q) (1 - (1 - p_q)^(n_q - 1)), sum_q n_q fixed",
    evidence="secondary",
    keys={"rollout": AdaptiveGroupSize},
    cost="none in samples; two numbers a task in the checkpoint; useful only where tasks repeat",
)
