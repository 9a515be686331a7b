r"""Speech GRPO: BLEU of the answer as reward.

r = BLEU(answer, reference), of the sentence;   A as in GRPO

Choices. sacrebleu's sentence BLEU with effective order and smoothing "exp": without both a short answer is 0 for lack
of 4-grams. The paper's second variant has the reference answer as one more, off-policy member of the group: `rollout:
reference_in_group` and `objective.on_unknown_behaviour: one`. The whole text is the answer. Stand-in: text to text; no
audio was tried here.
"""

from gxpo.definition import Definition

speech_grpo = Definition(
    name="speech_grpo",
    doc=__doc__,
    title="Advancing Speech Understanding in Speech-Aware Language Models with GRPO",
    arxiv="2509.16990",
    authors="Elmakies, Avishai and Aronowitz, Hagai and Shabtay, Nimrod and Schwartz, Eli and Hoory, Ron and "
    "Dekel, Avihu",
    year=2025,
    evidence="secondary",
    keys={"reward": "match", "scoring.options": {"match": {"metric": "bleu", "pattern": None}}},
)
