r"""SPAE: step-level advantages from the probability of the correct answer and the confidence after each step.

Phi_k = 1.5 acc conf + 0.5 acc - conf after step k: acc the mean probability of the right answer's tokens, conf
        exp(-mean entropy) there;   d_k = Phi_k - Phi_(k-1), 0 for the first
f_k   = 1 - alpha (1 - exp(-#{t < k: Phi_t > 0.9})),   g_k = exp(d~_k) - mean exp(d~), d~ in [0, 1] over the batch
A     = whiten((R - mean_g) f_k + xi g_k), over the batch's tokens; xi = alpha = 0.5

Choices. Of the authors' code only the probe is public (cii030/SPAE-RL@ed529f8 inference/probe_mechanism_example.py);
the advantage is from a detailed note. Its potential and its first difference are the ones here. It samples 5 answers of
10 tokens a step at temperature 0.6 and reads off them the log-prob of the right answer's k-th token after k - 1 sampled
ones (-10 outside the top 20), and the entropy over those 20: acc = exp(sum log p) / n, conf = exp(-sum H) / n. For an
answer of one token that is p and exp(-H), as here; one of n tokens has neither above 1/n, so nothing saturates at 0.9.
The paper's mean probability is used (the code's: `signal.answer_belief.reduce: joint_over_length`), and the mean
entropy, both over the right answer's own tokens, teacher-forced: nothing is generated, and one pass gives both.
Extremes and mean of g are over the batch's steps, each once; the note does not say. f shrinks advantages of either
sign. Steps end with ".\n\n" in the whole answer, not inside <think> alone. The paper builds on DAPO: `spae+dapo`. With
xi = alpha = 0 it is REINFORCE++-baseline.
"""

from gxpo.algorithms.credit.step_potential import potential_shaped
from gxpo.algorithms.segments import Delimiter
from gxpo.algorithms.signals.answer_belief import AnswerBelief
from gxpo.parts.definition import Definition

spae = Definition(
    name="spae",
    doc=__doc__,
    title="Step Potential Advantage Estimation: Harnessing Intermediate Confidence and Correctness for Efficient "
    "Mathematical Reasoning",
    arxiv="2601.03823",
    authors="Wu, Fei and Zhang, Zhenrong and Chang, Qikai and Zhang, Jianshu and Liu, Quan and Du, Jun",
    year=2026,
    formula="A = whiten((R - mean_g) f + xi g), Phi = 1.5 acc conf + 0.5 acc - conf after each step",
    evidence="secondary",
    keys={
        "segment": Delimiter,
        "segment.text": ".\n\n",
        "credit": potential_shaped,
        "signal.answer_belief": AnswerBelief,
        "signal.answer_belief.at": "segment",
        "signal.answer_belief.cue": "\n**Final Answer**\n\\boxed{",
        "signal.answer_belief.reduce": "mean_prob",
    },
    cost="a forward pass over the rollouts and, after every step, over cue and answer",
)
