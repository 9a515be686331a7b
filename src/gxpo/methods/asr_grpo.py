r"""ASR-GRPO: the word error rate of a transcript, taken off 1, as reward.

r = 1 - (S + D + I) / N, words against the reference's N;   A as in GRPO

Choices. From the paper (arXiv 2509.01939v1, eqs. 3, 4 and 7), where r is -WER: the 1 cancels in A. A WER above 1 is not
clipped, so that transcripts which are all worse than none are told apart; `clip: [0, 1]` ends that. It also tries exact
match (`scoring.options: {match: {metric: exact}}`) and the number of errors, of which A is the same as of the WER,
since a group has one reference. beta 0.04 is under `asr_grpo@paper`. The whole text is the transcript. Stand-in: text
to text; no audio was tried here.
"""

from gxpo.parts.definition import Definition

asr_grpo = Definition(
    name="asr_grpo",
    doc=__doc__,
    title="Group Relative Policy Optimization for Speech Recognition",
    arxiv="2509.01939",
    authors="Shivakumar, Prashanth Gurunath and Gu, Yile and Gandhe, Ankur and Bulyko, Ivan",
    year=2025,
    evidence="paper",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "wer", "pattern": None}},
    },
    paper_defaults={"objective.kl.coef": 0.04},
)
