r"""ROVER: random policy valuation: Bellman regression of log-ratios on values of the uniform policy.

Q_t = log policy - log old;   y_t = r_i - mean_g r + u_{t+1}, u = change of mean_v log policy(v | s) since the old one
L = mean over tokens of (Q_t - stop(y_t))^2, u = 0 after the last token

In a tree with rewards of 0 and 1 at its leaves, the best action under the uniform policy's values is optimal; the mean
over the vocabulary of log policy is what that policy expects of Q in a state.

Choices. `old` is the policy at the start of the step, for log-probs and for u alike; on the first update Q and u are 0
and the gradient is REINFORCE's, times 2. Rewards are centred only, as in the code for Countdown (its code for
mathematics takes z-scores). The next state is that of the trajectory's next trained token, across turns too. The code's
optional forms, by response and clipped, are not here. Advantages are not read.
"""

from gxpo.algorithms.objectives.uniform_value import UniformValue
from gxpo.algorithms.signals.policy_outputs import mean_logprob
from gxpo.parts.definition import Definition

rover = Definition(
    name="rover",
    doc=__doc__,
    title="Random Policy Valuation is Enough for LLM Reasoning with Verifiable Rewards",
    arxiv="2509.24981",
    authors="He, Haoran and Ye, Yuxiao and Cai, Qingpeng and others",
    year=2025,
    formula="L = mean_t (Q_t - stop(r - mean_g r + u_{t+1}))^2, Q = log(pi/old), u = change of mean_v log pi(v|s)",
    evidence="reference-code",
    keys={"objective": UniformValue, "signal.mean_logprob": mean_logprob},
    refuses={"objective.kl.place": ("reward",)},
    cost="a forward pass over the rollouts before the update",
    code="tinnerhrhe/ROVER@b0fa5878a0c7a29a9d18205b19d024b779b0609c Countdown/verl/trainer/ppo/core_algos.py "
    "Countdown/verl/workers/actor/dp_actor.py Countdown/verl/utils/torch_functional.py",
)
