r"""ReAgent-V (mostly ours): a conservative, a neutral and an aggressive judge pay the mean; the best draft is revised.

r = mean of three rubrics' scores;   o_i ~ pi(q + best draft);   A as in GRPO under q + best draft

Choices. From an abstract, and a stand-in: the paper's agent watches videos, asks itself questions and filters data for
training with a critic's reward. Kept are the three points of view as the panel `scoring.options.judge.panel`, and one
revision of the best draft as iGRPO has it (`rollout.how=best_draft`).
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

reagent_v = Definition(
    name="reagent_v",
    doc=__doc__,
    title="ReAgent-V: A Reward-Driven Multi-Agent Framework for Video Understanding",
    arxiv="2506.01300",
    authors="Zhou, Yiyang and He, Yangfan and others",
    year=2025,
    evidence="reconstruction",
    keys={
        "rollout": Again,
        "rollout.when": "always",
        "rollout.how": "best_draft",
        "rollout.keep": "newest",
        "reward": "judge",
        "scoring.options": {
            "judge": {
                "panel": [
                    {"name": "conservative", "rubric": "Credit only what is certainly right and shown to be so."},
                    {"name": "neutral", "rubric": "How good is the answer? Judge whether it is correct and complete."},
                    {"name": "aggressive", "rubric": "Credit every idea that may lead to the right answer."},
                ]
            }
        },
    },
    cost="three answers of a judge for each attempt, and drafts",
)
