r"""HRM: hierarchical reward model trained on single steps and merged step pairs, scoring steps for the advantage.

f: probe on hidden states, examples (step, V) and (step before + step as one, V); V = mean outcome after the step
r_k = f(step_k)
A   = A^E + A^S;   A^E = (R - mean_g) / std_g over attempts, A^S = (r_k - mean_g) / std_g over all steps of the group

Choices. The authors train a language model as reward model, on labels of PRM800K or of a tree search, and pick steps
with it at inference; the policy is trained by supervision alone. Taken from their code are the label (right ends below
a node over all ends below it) and the merging: a pair of steps is one more example, with the label of its second step,
so that an error which is put right is none. As there the reward is that of the single step
(`signal.merged_steps.scored: blend` takes pairs in). The reward model is a linear probe on the policy, fitted on the
rollouts of earlier steps; all are examples, where theirs are drawn to balance scores, and some pairs (one in two by
chance) take the place of their second step in the tree. A^S as in OPRL. A step is a segment (`segment`), or a turn.
"""

from gxpo.algorithms.credit import Relative
from gxpo.algorithms.signals.merged_steps import MergedSteps
from gxpo.parts.definition import Definition

hrm = Definition(
    name="hrm",
    doc=__doc__,
    title="Towards Hierarchical Multi-Step Reward Models for Enhanced Reasoning in Large Language Models",
    arxiv="2503.13551",
    authors="Wang, Teng and Jiang, Zhangyi and He, Zhenqi and Yang, Wenhan and Zheng, Yanan and Li, Zeyu and "
    "He, Zifan and Tong, Shenyang and Gong, Hailei",
    year=2025,
    formula="A = (R - mean_g) / std_g + (r_k - mean_g) / std_g, r_k a probe's score of step k, trained on pairs, too",
    evidence="reference-code",
    code="tengwang0318/hierarchial_reward_model@cc638d02c9bf self-training/construct_hrm_train_data.py "
    "self-training/best_of_n_math500.py self-training/sft_rm.py",
    keys={
        "credit": Relative,
        "credit.add.process": Relative,
        "credit.add.process.value": "piece_reward",
        "credit.add.process.unit": "segment",
        "signal.merged_steps": MergedSteps,
    },
    cost="a forward pass for hidden states; a closed-form regression; the buffer in the checkpoint",
)
