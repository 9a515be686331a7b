r"""LUSPO: length-unbiased GSPO: the loss of each sequence times its length.

s_i = exp(mean_t log rho);   l_i = max(-A_i s_i, -A_i clip(s_i, 1 - 2e-3, 1 + 2.5e-3));   L = mean_i |o_i| l_i

In the form of GSPO-token, |o_i| l_i is the sum over the answer's tokens: GSPO with `sequence_sum`, horizon 1.
Choices. Bounds as in the paper (eq. 7, section 5.1) and in TRL; its code was announced and has not been found.
`objective.horizon` divides the loss by a constant and changes nothing else; 1 is the paper's scale, where gradients are
as large as answers are long.
"""

from gxpo.parts.definition import Definition

luspo = Definition(
    name="luspo",
    doc=__doc__,
    title="Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in RLVR",
    arxiv="2602.05261",
    authors="Liu, Fanfan and Yin, Youyang and Shi, Peng and Yang, Siqi and Zeng, Zhixiong and Qiu, Haibo",
    year=2026,
    evidence="paper",
    keys={
        "objective.ratio": "sequence",
        "objective.clip_low": 2e-3,
        "objective.clip_high": 2.5e-3,
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 1.0,
    },
    refuses={"objective.aggregate": ("sequence_mean",)},
)
