r"""HRM: a reward model that judges single steps and consecutive ones together; its scores credit the steps.

f: probe on hidden states, examples (step, V) and (step before + step as one, V); V = mean outcome after the step
r_k = (f(step_k) + f(step_{k-1} + step_k)) / 2
A   = A^E + A^S;   A^E = (R - mean_g) / std_g over attempts, A^S = (r_k - mean_g) / std_g over all steps of the group

Choices. The paper trains a language model as reward model, on labels of PRM800K or of a tree search, and picks steps
with it at inference; it trains no policy. Taken is the merging: a pair of steps is one more example, with the label of
its second step, so that an error which is put right is none. The reward model is a linear probe on the policy, fitted
on the rollouts of earlier steps, labelled by what came of them (of a search's nodes: by all attempts through them);
pairs are all merged, not one in two by chance. A^S as in OPRL. A step is a segment (`segment`), or a turn.
"""

from gxpo.credit.piece_reward import PieceReward
from gxpo.keys import Definition
from gxpo.signals.merged_steps import MergedSteps

hrm = Definition(
    name="hrm",
    title="Towards Hierarchical Multi-Step Reward Models for Enhanced Reasoning in Large Language Models",
    arxiv="2503.13551",
    authors="Wang, Teng and Jiang, Zhangyi and He, Zhenqi and Yang, Wenhan and Zheng, Yanan and Li, Zeyu and "
    "He, Zifan and Tong, Shenyang and Gong, Hailei",
    year=2025,
    idea="two consecutive steps judged as one: a step that puts the one before it right is not punished for it",
    formula="A = (R - mean_g) / std_g + (r_k - mean_g) / std_g, r_k a probe's mean score of step k and of k-1 with k",
    evidence="reconstruction",
    keys={"credit": PieceReward, "signal.merged_steps": MergedSteps},
    choices="a linear probe on the policy in the place of a language model; its scores as credit, which is ours",
    cost="a forward pass for hidden states; a closed-form regression; the buffer in the checkpoint",
)
