r"""GRPO-VPS: segment-level bonus for the rise in the policy's probability of the correct answer.

C_k = pi_old(a* | x, z_<=k, cue), the product over a*'s tokens, teacher-forced; C_0 of the prompt alone
A_k = R_i - mean_g + alpha (C_k - C_(k-1)) on the tokens of segment k; alpha 1.2
Segments: one for every 4 uncertain tokens, with equally many in each

Choices. From the paper (arXiv 2604.20659v1, eqs. 1 to 7). Which percentile makes a token uncertain is not stated: the
quantile 0.8 of the answer's entropies is ours. Nothing is divided by a std, so alpha weighs probabilities against
verdicts. Its eq. 7 sums over an answer's tokens; `objective.aggregate` says what is done here. A product is near 0 for
long answers: `signal.answer_belief.reduce: exp_mean_log` is its root. After the segment that gives the answer, too, the
policy is asked; if it can make nothing of a cue there, right answers are held against it:
`signal.answer_belief.answered: true` gives a trajectory's last segment no gain. With alpha 0 this is GRPO without std.
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.segments import entropy_segments
from gxpo.algorithms.signals.answer_belief import AnswerBelief
from gxpo.parts.definition import Definition

grpo_vps = Definition(
    name="grpo_vps",
    doc=__doc__,
    title="GRPO-VPS: Enhancing Group Relative Policy Optimization with Verifiable Process Supervision for Effective "
    "Reasoning",
    arxiv="2604.20659",
    authors="Wang, Jingyi and Zhu, Lei and Weng, Tengjin and Wu, Song-Li and Tan, Haochen and Chen, Jierun and "
    "Tao, Chaofan and Bai, Haoli and Hou, Lu and Shang, Lifeng and Zhang, Xiao-Ping",
    year=2026,
    formula="A_k = R - mean_g + 1.2 (C_k - C_(k-1)), C_k = pi(a* | x, z_<=k)",
    evidence="paper",
    keys={
        "segment": entropy_segments,
        "credit.scale": "none",
        "credit.add.progress": ValueDelta,
        "credit.add.progress.value": "belief",
        "credit.add.progress.factor": 1.2,
        "signal.answer_belief": AnswerBelief,
        "signal.answer_belief.at": "segment",
        "signal.answer_belief.reduce": "joint",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6},
    cost="a forward pass for entropies, one over the rollouts and, after every segment, over cue and answer",
)
