r"""MaxRL: maximum-likelihood RL: centred rewards divided by the group mean instead of the std.

A_i = (r_i - mean_g r) / (mean_g r + 1e-6): for rewards 0 and 1, (1 - p) / p for a success and -1 for a failure.

Its sum over a group is 0. A rare success has a far larger advantage than under GRPO: 1 of 8 has 7 against 2.47.
Choices. For outcomes >= 0; a group whose mean is not above 0 (all wrong) has 0. The code's main estimator: another of
its switches by the same name divides by the std, too, and a clipped one holds the mean above 0.125; neither is here. It
gives a group of one its reward over 1 + eps, here 0. The paper's gradient is of whole answers; the code's loss, verl's
default, is a mean over tokens (`maxrl@paper`), here the base's over sequences. One update a step, so that no clip
binds.
"""

from gxpo.parts.definition import Definition

maxrl = Definition(
    name="maxrl",
    doc=__doc__,
    title="Maximum Likelihood Reinforcement Learning",
    arxiv="2602.02710",
    authors="Tajwar, Fahim and Zeng, Guanning and Zhou, Yueer and others",
    year=2026,
    evidence="reference-code",
    code="tajwarfahim/maxrl@c0698ebb439a81ae1c6b01a842df3f2541816b4d verl/trainer/ppo/core_algos.py "
    "verl/trainer/config/ppo_trainer.yaml maze/maze_17.sh qwen3_experiments/run_qwen3_training.sh",
    keys={"credit.scale": "mean"},
    paper_defaults={"objective.aggregate": "token_mean"},
)
