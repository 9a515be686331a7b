r"""Speech GRPO: BLEU of the answer as reward.

r = BLEU(answer, reference), of the sentence;   A as in GRPO;   L the mean over the step's tokens

Choices. From the paper (arXiv 2509.16990v1, sections 3 and 4.2), which does not name its BLEU: sacrebleu's sentence
BLEU with effective order and smoothing "exp", since without both a short answer is 0 for lack of 4-grams. Its KL of
0.02 and its groups of 8 are under `speech_grpo@paper`; without a KL its training diverged. Its second variant
(MP-GRPO) has the reference answer as one more, off-policy member of the group: `rollout: reference_in_group` and
`objective.on_unknown_behaviour: one`. The whole text is the answer. Stand-in: text to text; no audio was tried here.
"""

from gxpo.parts.definition import Definition

speech_grpo = Definition(
    name="speech_grpo",
    doc=__doc__,
    title="Advancing Speech Understanding in Speech-Aware Language Models with GRPO",
    arxiv="2509.16990",
    authors="Elmakies, Avishai and Aronowitz, Hagai and Shabtay, Nimrod and Schwartz, Eli and Hoory, Ron and "
    "Dekel, Avihu",
    year=2025,
    evidence="paper",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "bleu", "pattern": None}},
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"objective.kl.coef": 0.02, "rollout.group_size": 8},
)
