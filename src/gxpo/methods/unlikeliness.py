r"""Unlikeliness: reward discount for likely correct answers, so that rare ones are reinforced.

r'_i = r_i (1 - 0.25 rank_i / G);   rank: of the mean log-prob under the sampler within the group, 0 the least likely

Choices. Log-probs are length-normalised, as in the code (the paper says probability). Ranks include wrong answers.
Equal log-probs share their mean rank; the code takes them in some order. Groups in which all are correct stay equal,
as in the recipe, which drops them before; `reward.shape.likelihood_discount.all_correct: true` lets them learn. More
epochs are the paper's second remedy, and with its KL they are `unlikeliness@paper`.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

unlikeliness = Definition(
    name="unlikeliness",
    doc=__doc__,
    title="Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening",
    arxiv="2506.02355",
    authors="He, Andre and Fried, Daniel and Welleck, Sean",
    year=2025,
    evidence="reference-code",
    keys={
        "reward.shape.likelihood_discount": Shape,
        "reward.shape.likelihood_discount.function": "likelihood_discount",
    },
    paper_defaults={"update.epochs": 2, "objective.kl.coef": 0.1},
    code="AndreHe02/rewarding-unlikely-release@ca1cff05ebdf2cfe9737fd416897da838a93e11a "
    "verl/trainer/ppo/ray_lean_trainer.py examples/lean/grpo.sh",
)
