r"""ASR-GRPO: 1 - WER of a transcript as reward.

r = max(0, 1 - (S + D + I) / N), words against the reference's N;   A as in GRPO

Choices. The paper also tries exact match and edit distance: `scoring.options: {match: {metric: exact}}` or `cer`. Its
summaries do not say whether a WER above 1 is clipped; here it is, and `clip: null` keeps apart transcripts that are all
worse than none. The whole text is the transcript. Stand-in: text to text; no audio was tried here.
"""

from gxpo.definition import Definition

asr_grpo = Definition(
    name="asr_grpo",
    doc=__doc__,
    title="Group Relative Policy Optimization for Speech Recognition",
    arxiv="2509.01939",
    authors="Shivakumar, Prashanth Gurunath and Gu, Yile and Gandhe, Ankur and Bulyko, Ivan",
    year=2025,
    evidence="secondary",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "wer", "pattern": None, "clip": [0.0, 1.0]}},
    },
)
