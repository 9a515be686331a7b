r"""VSRM: verifiable stepwise rewards: the change in success rate of answers forced after each reasoning step.

acc_j = mean outcome of 5 answers asked for after the first j steps;  d_j = acc_{j+1} - acc_j;
r_j = d_k 0.7^(k - j), d_k the first of d_j ... d_{j+4} that is not 0, and 0 if all are (steps that lead nowhere)
A_t = whitened over tokens (outcome + r_j + r_{j+1} + ... from token t's step on)

Choices. REINFORCE++ of the paper's two (the other is PPO with a critic). All tokens of step j have r_j; the code writes
it on the first one, so that the others of the step do not have it and all steps before do. The last acc is of the whole
chain, where the attempt ended it by itself; of one that did not, the code measures the first 7 characters, and here its
last step has no reward. The code's outcome of -9.5 or -10 for answers of the wrong form is left to the task. Steps
begin at words like wait, but, however..., after 1000 characters and 400 apart, and answers are asked for by "</think>",
of 768 tokens, as in the code (default changed on 2026-11-28: before, the comma and "#" of the built-in arithmetic, for
which `segment: delimiter`, `segment.text: ","`, `rollout.answer_cue: "#"` and `rollout.answer_tokens: 0` are right).
"""

from gxpo.algorithms.credit.value_trend import value_trend
from gxpo.algorithms.segments import Pattern
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.monte_carlo_values import MonteCarloValues

vsrm = Definition(
    name="vsrm",
    doc=__doc__,
    title="Promoting Efficient Reasoning with Verifiable Stepwise Reward",
    arxiv="2508.10293",
    authors="Yue, Chuhuai and Dong, Chengqi and Gao, Yinan and He, Hang and Chai, Jiajun and Yin, Guojun and Lin, Wei",
    year=2025,
    formula="A = whiten(R + sum of later r_j), r_j the next change of the answers' success rate, 0.7 a step away",
    evidence="reference-code",
    keys={
        "credit": value_trend,
        "rollout": MonteCarloValues,
        "rollout.samples": 5,
        "rollout.prompt": False,
        "rollout.answer_cue": "</think>",
        "rollout.answer_tokens": 768,
        "segment": Pattern,
        "segment.first": 1000,
        "segment.apart": 400,
    },
    paper_defaults={"sampling.temperature": 0.6, "sampling.top_p": 0.95, "optim.lr": 1e-6},
    cost="5 short answers after every step of every attempt, generated and discarded",
    code="1benwu1/VSRM-Efficient-LRMs@e4e928b4307056d7b04b2a06a76e518481245760 verl/workers/rollout_postprocess.py",
)
