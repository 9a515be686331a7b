r"""PAPO: KL between the full and the masked observation as a perception bonus, with an entropy penalty.

L = L_GRPO - coef mean_t k3 + entropy_coef mean_t (-log policy),   k3 = e^d - d - 1, d = log masked - log policy
coef 0.01, entropy_coef 0.03; 60% of the observation hidden

Choices. Patches of pictures are black, as in the code: here what the tower makes one row of, there 14 pixels wide
(`signal.masked_observation.patch: 14`). On text, prompt and observation tokens are hidden. Both means are over all
trained tokens of the step, whatever the rewards. A token's k3 is held at 10, as in the code (null in
`objective.add.masked_kl.kl_max`: no bound). Masked log-probs are the policy's at the start of the step, as in the code;
its second entropy term is then a constant and is left out. `papo+dapo` is the paper's PAPO-D.
"""

from gxpo.algorithms.objectives.masked_kl import MaskedKl
from gxpo.algorithms.signals.masked_observation import MaskedObservation
from gxpo.parts.definition import Definition

papo = Definition(
    name="papo",
    doc=__doc__,
    title="Perception-Aware Policy Optimization for Multimodal Reasoning",
    arxiv="2507.06448",
    authors="Wang, Zhenhailong and Guo, Xuehang and Stoica, Sofia and others",
    year=2025,
    formula="L = L_GRPO - c mean k3(pi(.|o), pi(.|masked o)) + e mean(-log pi)",
    evidence="reference-code",
    keys={
        "objective.add.masked_kl": MaskedKl,
        "objective.add.masked_kl.kl_max": 10.0,
        "signal.masked_observation": MaskedObservation,
    },
    cost="a forward pass over the rollouts with masked observations",
    code="MikeWangWZHL/PAPO@fb63bf4533b78da5a2bb17bc812375dcb620887d verl/workers/actor/dp_actor.py "
    "verl/trainer/core_algos.py examples/configs/config_grpo_papo.yaml",
)
