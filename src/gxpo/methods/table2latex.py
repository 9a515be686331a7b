r"""Table2LaTeX-RL: 1 where the structure of a LaTeX table is nearly the reference's.

r = [TEDS-structure >= .9]: trees of rows and cells, spans but not texts;   A as in GRPO

Choices. The second reward of the paper, that the rendered picture is alike, is left out: its released "CW-SSIM" gives a
blank page against text .76, above its gate of .6 (see the errata). `structure_only: false` compares the texts instead.
The code's gate is > .9. Rows are as wide as the widest, as in the code and in LaTeX, so that a short row is a padded
one, and one cell too many is one in every row (changed on 2026-11-28: before, rows had the cells that were written).
Its conversion knows more LaTeX than ours (colours, dashed rules). Stand-in: no pictures.
"""

from gxpo.parts.definition import Definition

table2latex = Definition(
    name="table2latex",
    doc=__doc__,
    title="Table2LaTeX-RL: High-Fidelity LaTeX Code Generation from Table Images via Reinforced Multimodal Language "
    "Models",
    arxiv="2509.17589",
    authors="Ling, Jun and Qi, Yao and Huang, Tao and others",
    year=2025,
    evidence="reference-code",
    keys={
        "reward": "match",
        "scoring.options": {
            "match": {"metric": "teds", "pattern": None, "structure_only": True, "gate": 0.9, "pay": "pass"}
        },
    },
    code="newLLing/Table2LaTeX-RL@cff3258f389054f20cf5b8a871c96c1cc7c43bbb examples/train/grpo/plugin/plugin.py",
)
