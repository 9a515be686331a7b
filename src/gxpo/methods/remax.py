r"""ReMax: REINFORCE with the reward of the greedy answer as baseline.

A_i = r_i - r(greedy answer to the same prompt);   the same for every token, nothing is scaled

Choices. Paper and code have one sample a prompt (`remax@paper`); more are measured against the one greedy answer, each
on its own. The greedy answer is scored like any other and shaped like any other, but is not compared, not trained and
in no denominator. The loss is the base's: at one update a step its ratio is 1 and its gradient that of -A log pi, in
the mean over an answer's tokens. The code's is a mean over the tokens of a device's batch: one answer in the script for
Llama 2, which is the base's mean, four in that for OPT (`objective.aggregate: token_mean`); the paper sums them
(`sequence_sum`). The code also clips r_i - r(greedy) to [-5, 5], takes it times 0.99 for each token up to the answer's
end, and adds 0.05 (log reference - log pi) of the token itself. Here the KL in the reward is `objective.kl.place:
reward`, the baseline has none subtracted, and nothing is discounted. Groups of equal rewards learn unless the greedy
answer has the same reward.
"""

from gxpo.algorithms.signals.rollout_baseline import rollout_baseline
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.baseline import BaselineRollouts

remax = Definition(
    name="remax",
    doc=__doc__,
    title="ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models",
    arxiv="2310.10505",
    authors="Li, Ziniu and Xu, Tian and Zhang, Yushun and Lin, Zhihang and Yu, Yang and Sun, Ruoyu and Luo, Zhi-Quan",
    year=2023,
    evidence="reference-code",
    code="liziniu/ReMax@536ba49cc2f9a1a76941045388a44757e2533e75 step3_rlhf_finetuning/remax_trainer.py "
    "step3_rlhf_finetuning/training_scripts/llama2/run_llama2_7b.sh",
    keys={
        "credit.center": "baseline",
        "credit.scale": "none",
        "rollout": BaselineRollouts,
        "rollout.temperature": 0.0,
        "signal.rollout_baseline": rollout_baseline,
    },
    paper_defaults={"rollout.group_size": 1},
    cost="one more generated answer a prompt, not trained on",
)
