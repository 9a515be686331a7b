r"""Mixed-R1: one reward for mixed tasks, by the kind of their answers.

r = exact match [choice, number], IoU [box], (mean_i max_j S_ij + mean_j max_i S_ij) / 2 [open]

S are cosines of the tokens of answer and reference (BMAS); `info.kind` of a task says of which kind its answer is.
Choices. Embeddings are all-MiniLM-L6-v2's last hidden states (`gxpo[embedding]`), the paper's are the tokenizer's own
table. Their similarity is high for fluent nonsense: `baseline` takes off what random pairs have. Charts are numbers by
exact match here; the paper's format term is left out (add `format`). Tasks of `shapes` and `charts` have a kind (with
`scoring.options.match.pattern: null`). Stand-in: toy pictures, and no open questions about them.
"""

from gxpo.parts.definition import Definition

mixed_r1 = Definition(
    name="mixed_r1",
    doc=__doc__,
    title="Mixed-R1: Unified Reward Perspective For Reasoning Capability in Multimodal Large Language Models",
    arxiv="2505.24164",
    authors="Xu, Shilin and Li, Yanwei and Yang, Rui and others",
    year=2025,
    formula="r = exact match, IoU of boxes, or BMAS of open texts, by the task's kind of answer",
    evidence="secondary",
    keys={
        "reward": "match",
        "scoring.options": {
            "match": {
                "by": "info.kind",
                "route": {
                    "choice": {"metric": "exact"},
                    "number": {"metric": "exact"},
                    "box": {"metric": "box_iou"},
                    "open": {"metric": "embedding", "align": "tokens"},
                },
            }
        },
    },
)
