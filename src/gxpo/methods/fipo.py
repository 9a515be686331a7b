r"""FIPO: token weights from the future KL: the discounted sum of log-ratios of the rest of the trajectory.

F_t = sum_{k >= t} g^{k-t} log rho_k, g = 2^(-1/32), tokens of rho > 10 left out;   f_t = clip(exp(F_t), 1, 1.2)
l_t = stop(f_t) * DAPO's clipped loss, dual clip at 10; f is held in [0.8, 1] where A < 0 and rho > 10; token mean
A trajectory with two or more dual-clipped tokens is dropped, from the denominator too.

Choices. Constants of the authors' script for 32B; the code's own defaults are a half-life of 128, a dual clip at 3 and
a bound of 4 on rho where A < 0 (`objective.safe_ratio`). `objective.factor_low: 0.8` lets f shrink losses as well, as
they do for small models; `objective.dual_clipped_max: null` drops nothing. The code drops and divides within each
micro-batch, here it is the optimiser step. On policy f is 1: it takes several updates a step, so there are four
(`fipo@paper`: eight). Of DAPO only the loss is taken; compose `fipo+dapo` for its rollouts.
"""

from gxpo.algorithms.objectives.surrogate_clips import FutureDrift
from gxpo.parts.definition import Definition

fipo = Definition(
    name="fipo",
    doc=__doc__,
    title="FIPO: Eliciting Deep Reasoning with Future-KL Influenced Policy Optimization",
    arxiv="2603.19835",
    authors="Ma, Chiyu and Yang, Shuo and Huang, Kexin and Lu, Jinda and Meng, Haoming and Wang, Shangshang and "
    "Ding, Bolin and Vosoughi, Soroush and Wang, Guoyin and Zhou, Jingren",
    year=2026,
    formula="L = sum stop(clip(exp(sum_{k>=t} g^{k-t} log rho_k), 1, 1.2)) max(-A rho, -A clip(rho)) / tokens",
    evidence="reference-code",
    code="qwenpilot/FIPO@ee25452087c73ead4278b7f80766cac4fe18bf74 verl/trainer/ppo/core_algos.py "
    "recipe/fipo/run_fipo_qwen2.5_32b.sh",
    keys={
        "objective.surrogate": FutureDrift,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "update.minibatches": 4,
    },
    paper_defaults={"rollout.group_size": 16, "tasks.per_step": 512, "update.minibatches": 8, "optim.lr": 1e-6},
    cost="where an optimiser step is cut, a forward pass more: dropped rows change the denominator",
)
