r"""DE-GRPO (FaVChat; mostly ours): tasks drawn by how far the rewards and the likelihoods of their answers differ.

P(q) ~ std of the outcomes of q's group * std of its answers' mean log-probs, discounted over visits;  A as in GRPO

Choices. Not the released gate, which multiplies A by tanh(delta (mean gap - baseline)): its utility, a geometric mean
over pairs, is near 0 wherever two rewards are equal, so delta and nearly all advantages are 0, and where it is on, a
gap below the baseline turns their sign round (see docs/errata/methods.md). What is left is its measure of a task, as a
chance to be drawn. A task that was not seen counts as the largest known. Video is not part of this: a stand-in on
tasks of text.
"""

from gxpo.environments.tasks.task_scores import disagreement
from gxpo.parts.definition import Definition

favchat_degrpo = Definition(
    name="favchat_degrpo",
    doc=__doc__,
    title="FaVChat: Hierarchical Prompt-Query Guided Facial Video Understanding with Data-Efficient GRPO",
    arxiv="2503.09158",
    authors="Zhao, Fufangchen and Qiu, Xuerui and Xu, Linrui and Li, Ming and Jiang, Wenhao and Zheng, Jinkai and "
    "Fan, Hehe and Gao, Jian and Yan, Danfeng",
    year=2025,
    evidence="reconstruction",
    keys={"tasks.sampler": disagreement, "tasks.sampler.uniform": 0.1},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
