r"""SofT-GRPO: GRPO for soft thinking (mixtures of tokens), by the density of the Gumbel noise.

p on its top-k/top-p support;  y = log p + g,  g ~ Gumbel held in [-1.5, 3];  input = softmax(y / 0.1) @ embeddings
log pi(step) = mean over ids with log p > -3 of (-g' - e^{-g'}),  g' = y - log p_theta held in [-1.5, 3]
rho = exp(new - old) of these, of log-probs after </think>; GRPO's loss

Choices. As in the reference: the mean over ids, where a density is a sum; the bounds, beyond which there is no
gradient. p_theta is renormalised on the old support, and the counted ids are those of the sampler's p, so that the
ratio compares one quantity. Noise at a bound keeps its gradient, whatever the rounding.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.soft_thinking import SoftThinking

soft_grpo = Definition(
    name="soft_grpo",
    doc=__doc__,
    title="SofT-GRPO: Surpassing Discrete-Token LLM Reinforcement Learning via Gumbel-Reparameterized Soft-Thinking "
    "Policy Optimization",
    arxiv="2511.06411",
    authors="Zheng, Zhi and Lee, Wee Sun",
    year=2025,
    formula="y = log p + g; log pi = mean_k(-g' - e^{-g'}), g' = clamp(y - log p_theta, -1.5, 3); L = L_GRPO",
    evidence="reference-code",
    keys={"rollout": SoftThinking},
    paper_defaults={"objective.kl.coef": 0.001},
    cost="as sampling and training with stored support; mixtures of K embeddings",
    code="zz1358m/SofT-GRPO-master@2b9d8ec6d8f022f2aefe7a1c2512dcb9924cddfe "
    "verl-0.4.x/verl/utils/torch_functional.py verl-0.4.x/verl/workers/actor/dp_actor.py",
)
