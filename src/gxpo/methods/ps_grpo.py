r"""PS-GRPO (Con-RAG): similarity to the answers that other wordings of the question got, and F1 to the true one.

r_ij = mean over wordings u other than i, answers m of BLEU(o_ij, o_um) + F1(o_ij, answer)

Tasks that are one question in several wordings have one `same_as`, and are drawn in one step.
Choices. All pairs, where the paper also samples some for speed. BLEU is not symmetric: the own answer is the
hypothesis. F1 has weight 1, which is ours; without it (`scoring.weights: {consistency: 1}`) being consistently wrong is
optimal. No retrieval: what is retrieved is part of the prompt.
"""

from gxpo.parts.definition import Definition

ps_grpo = Definition(
    name="ps_grpo",
    doc=__doc__,
    title="Improving Consistency in Retrieval-Augmented Systems with Group Similarity Rewards",
    arxiv="2510.04392",
    authors="Hamman, Faisal and Zhu, Chenyang and Kumar, Anoop and others",
    year=2025,
    evidence="secondary",
    keys={
        "scoring.weights": {"consistency": 1.0, "match": 1.0},
        "scoring.options": {
            "consistency": {"metric": "bleu", "pattern": None},
            "match": {"metric": "f1", "pattern": None},
        },
    },
)
