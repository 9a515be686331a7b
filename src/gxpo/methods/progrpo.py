r"""ProGRPO: advantage shift by confidence: less for confident answers, more for uncertain ones.

A'_i = A_i + alpha (c(q) - c(o_i)) where the group has a correct answer, A_i where all are wrong;  alpha 0.3
c = geometric mean of token probabilities: of the prompt over all its tokens, of an answer over its least probable 20%

Choices. From a review that states A' and its case split; no code of the authors could be found. Which tokens the
confidences are taken over is known from summaries, alpha is ours. Prompt log-probs are at temperature 1 and leave out
the first token, which nothing predicts; answers' are the sampler's. Wrong answers of a solved group get the bonus too,
and groups in which all are correct learn. The bonus is added to the base's advantage, and composes with any other.
"""

from gxpo.algorithms.credit.bonus import Bonus
from gxpo.algorithms.signals.policy_outputs import prompt_confidence
from gxpo.parts.definition import Definition

progrpo = Definition(
    name="progrpo",
    doc=__doc__,
    title="Back to Basics: Revisiting Exploration in Reinforcement Learning for LLM Reasoning via Generative "
    "Probabilities",
    arxiv="2602.05281",
    authors="Li, Pengyi and Goncharova, Elizaveta and Kuznetsov, Andrey and Oseledets, Ivan",
    year=2026,
    formula="A' = A + a (c(q) - c(o)) if any of the group is correct, else A",
    evidence="secondary",
    keys={
        "credit.add.confidence_gap": Bonus,
        "credit.add.confidence_gap.value": "confidence_gap",
        "credit.add.confidence_gap.factor": 0.3,
        "signal.prompt_confidence": prompt_confidence,
    },
    cost="a forward pass over the distinct prompts",
)
