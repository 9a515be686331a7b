r"""HICRA: hierarchy-aware advantages: a bonus of alpha |A| on planning tokens.

A'_t = A + alpha |A| where token t is of a planning phrase, A elsewhere; alpha 0.2

Choices. A is GRPO's; the paper's equations (version 3) leave the group's std out: `hicra@paper`. The authors'
repository (TIGER-AI-Lab/Hierarchical-Reasoner) held no code when it was read; by a port's account theirs does this only
in right answers longer than their group's mean, and for the 30% most uncertain tokens too. The paper's phrases (3 to 5
words) are found by clustering sentence embeddings of n-grams and ranking clusters by document frequency; clusters are
not built. Here is a short list of ours, and `algorithms.weighting.phrases` has the document frequency of plain n-grams:
`segment.patterns` takes its phrases, or any regular expressions. Phrases are matched in the text, whatever its tokens.
With alpha 0 this is GRPO.
"""

from gxpo.algorithms.segments import Spans
from gxpo.algorithms.weighting.phrases import PLANNING, as_pattern
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

hicra = Definition(
    name="hicra",
    doc=__doc__,
    title="Emergent Hierarchical Reasoning in LLMs through Reinforcement Learning",
    arxiv="2509.03646",
    authors="Wang, Haozhe and Xu, Qixin and Liu, Che and Wu, Junhong and Lin, Fangzhen and Chen, Wenhu",
    year=2025,
    evidence="paper",
    keys={
        "segment": Spans,
        "segment.patterns": (as_pattern(PLANNING),),
        "weight.labelled": TokenWeight,
        "weight.labelled.by": "label",
        "weight.labelled.keep": "raised",
    },
    paper_defaults={"credit.scale": "none"},
)
