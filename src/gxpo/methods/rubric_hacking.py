r"""Rubric hacking: GRPO on a judge's rubric score, watched by a judge without the rubric that is never paid.

exploitation = sum w N J / sum w N;   N: credited by the training judge, J: rejected by all held-out judges;   A as in
GRPO

Choices. A measurement, not a way to train. The paper counts what is newly credited since the checkpoint before, on the
same prompts, by criterion (`rewards.panel.exploitation_rate`); the figure `reward_exploitation` is the share among the
attempts that a step credits. Held-out judges are of other model families there; here one question without a rubric to
the same judge, until `scoring.options.judge.held_out` names others. `gxpo doctor` reports `judge_hacked`. The
self-internalisation gap (`rewards.panel.self_internalisation_gap`) is a function of log-probs under two prompts, for a
loop of your own.
"""

from gxpo.parts.definition import Definition

rubric_hacking = Definition(
    name="rubric_hacking",
    doc=__doc__,
    title="Reward Hacking in Rubric-Based Reinforcement Learning",
    arxiv="2605.12474",
    authors="Mahmoud, Anas and Rezaei, MohammadHossein and Wang, Zihao and Gunjal, Anisha and Liu, Bing and He, "
    "Yunzhong",
    year=2026,
    evidence="paper",
    keys={
        "reward": "judge",
        "scoring.options": {"judge": {"held_out": [{"name": "plain", "rubric": "Is this a good answer to the task?"}]}},
    },
    cost="a held-out judge's answer for each attempt",
)
