r"""MPO: a model rewrites the judge's rubric every ten steps, from answers and the scores they were given.

r = judge's score under rubric v;   v + 1 = writer(rubric v, 20 scored answers) after every 10th step;   A as in GRPO

Choices. PPO with a KL penalty in the paper; the advantage here is GRPO's, and `meta_po+gae` adds a critic. The code
asks for an analysis, refinements and their merger in turn; here one question asks for all. Its 20 answers are drawn
from all steps since the last time; here they are of the step itself, evenly spread. The writer is the judge unless
`scoring.options.judge.refresh` names another (by, ask, server). Scores of two versions are not comparable: a group has
one version, replay, moving baselines and async.max_staleness are refused, and the curve of the reward jumps where the
version does (`reward_rubric_version`). Not Mixed Preference Optimization, which has the same short name.
"""

from gxpo.parts.definition import Definition

meta_po = Definition(
    name="meta_po",
    doc=__doc__,
    title="Toward Evaluative Thinking: Meta Policy Optimization with Evolving Reward Models",
    arxiv="2504.20157",
    authors="Kim, Zae Myung and Park, Chanwoo and Raheja, Vipul and Kim, Suin and Kang, Dongyeop",
    year=2025,
    evidence="reference-code",
    code="minnesotanlp/mpo@19972d3b961c9906f0f69622cfe2081ba0a800a1 trl/trainer/mpo_trainer.py "
    "trl/extras/mpo/rm_essay_writing.py",
    keys={"reward": "judge", "scoring.options": {"judge": {"refresh": {"every": 10, "samples": 20}}}},
    cost="a judge's answer for each attempt, and one more every ten steps",
)
