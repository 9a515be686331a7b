r"""Dr. GRPO: GRPO without the std (difficulty bias) and without 1/length (length bias).

A_i = r_i - mean_g r
L   = mean_i sum_t l_{i,t} / H, H a constant: `objective.horizon`, the longest trainable length a trajectory can have
      (filled by the trainer from sampling.max_new_tokens).

Choices. As in the authors' code, whose H is the longest answer that may be generated (3000 in their scripts), clip 0.2,
one update, no KL. verl's name for the aggregation (`seq-mean-token-sum-norm`) has meant three different things, one of
them the padded width of the batch.
"""

from gxpo.parts.definition import Definition

dr_grpo = Definition(
    name="dr_grpo",
    doc=__doc__,
    title="Understanding R1-Zero-Like Training: A Critical Perspective",
    arxiv="2503.20783",
    authors="Liu, Zichen and Chen, Changyu and Li, Wenjun and others",
    year=2025,
    formula="A = r - mean_g; L = mean_i sum_t max(-A rho, -A clip(rho)) / horizon",
    evidence="reference-code",
    code="sail-sg/understand-r1-zero@dfca49dd460e train_zero_math.py examples/qwen2.5-math-7b.sh",
    keys={"credit.scale": "none", "objective.aggregate": "sequence_sum"},
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "objective.horizon": 3000.0},
)
