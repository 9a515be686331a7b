r"""KPO: causal Kalman filter over token log-ratios before the clip.

x_t = x_{t-1} + w, w ~ N(0, Q);   log rho_t = x_t + v, v ~ N(0, V);   x^_t its filtered mean, x^_0 = 0, P_0 = 0
s_t = exp(stop(x^_t) + log pi - stop(log pi));   l_t = max(-A s_t, -A clip(s_t, 1 - 3e-4, 1 + 4e-4))

Choices. Constants (Q = 1e-6, V = 1) and the form (value of the filter, the token's own gradient) are those of the
authors' code. Gains are exact, where the code holds them in [1e-6, 1 - 1e-6], and log s is not bounded (code: at most
10). Tokens that are not trained are no observations and take no time; the code filters them as log-ratios of 0.
"""

from gxpo.algorithms.objectives.ratio_trajectory import filtered
from gxpo.parts.definition import Definition

kpo = Definition(
    name="kpo",
    doc=__doc__,
    title="Online Causal Kalman Filtering for Stable and Effective Policy Optimization",
    arxiv="2602.10609",
    authors="He, Shuo and Feng, Lang and Cheng, Xin and Feng, Lei and An, Bo",
    year=2026,
    formula="s_t = exp(Kalman(log rho_1 .. log rho_t; Q = 1e-6, V = 1)); L = mean_i mean_t max(-A s, -A clip(s))",
    evidence="reference-code",
    keys={"objective.ratio": filtered, "objective.clip_low": 3e-4, "objective.clip_high": 4e-4},
    paper_defaults={"update.minibatches": 4, "rollout.group_size": 8, "tasks.per_step": 32, "optim.lr": 1e-6},
    code="shuohe1995/verl-kpo@c3135943a0cda7ec2733530855040aedf67380b6 verl/trainer/ppo/core_algos.py "
    "examples/kpo_trainer/kpo_qwen3_4b.sh",
)
