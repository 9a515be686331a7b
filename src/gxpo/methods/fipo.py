r"""FIPO: a token's loss counts more where the rest of its trajectory has become likelier since it was sampled.

F_t = sum_{k >= t} g^{k-t} log rho_k, g = 2^(-1/32), tokens of rho > 10 left out;   f_t = clip(exp(F_t), 1, 1.2)
l_t = stop(f_t) * DAPO's clipped loss, dual clip at 10; f is held in [0.8, 1] where A < 0 and rho > 4; token mean

Choices. Constants of the port's script (its default has no dual clip and no filter). `objective.factor_low: 0.8` lets f
shrink losses as well. On policy f is 1: it takes several updates a step, so there are four. Of DAPO only the loss is
taken; compose `fipo+dapo` for its rollouts.
"""

from gxpo.keys import Definition
from gxpo.objectives.gate_future import FutureDrift

fipo = Definition(
    name="fipo",
    title="FIPO: Eliciting Deep Reasoning with Future-KL Influenced Policy Optimization",
    arxiv="2603.19835",
    authors="Ma, Chiyu and Yang, Shuo and Huang, Kexin and Lu, Jinda and Meng, Haoming and Wang, Shangshang and "
    "Ding, Bolin and Vosoughi, Soroush and Wang, Guoyin and Zhou, Jingren",
    year=2026,
    idea="the drift of what follows a token says how much the token matters",
    formula="L = sum stop(clip(exp(sum_{k>=t} g^{k-t} log rho_k), 1, 1.2)) max(-A rho, -A clip(rho)) / tokens",
    evidence="secondary",
    keys={
        "objective.gate": FutureDrift,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "update.minibatches": 4,
    },
    choices="half-life 32, f in [1, 1.2], dual clip and filter at 10; four updates a step",
)
