r"""EPO: entropy bonus over the turns of an agent, with a smoothing band around each turn's past entropy.

L = L_GRPO - c (mean_turns H - s w mean_turns P),   P_t = distance of H_t to [0.5, 1.5] Hbar_turn
w = 1 - 0.2 (1 - e^{-2p}) in the first half of training, 0.8 e^{-3p} in the second, p the progress inside the half

Choices. The published P is a constant where H_t lies outside the band (0.1, found by comparison): it shifts the loss
and has no gradient. Here it is a hinge, with which the bonus vanishes above the band and doubles below it;
`objective.add.entropy_band.hinge: false` is the published form. Band of the launch script (the actor's default: 0.8,
1.2; the commands of the README: 0, 2), at every turn (the code: where the micro-batch reaches the second half of an
episode). w is on (the README's commands; the script's default is off). c is 0.001, s 1. Training is the run's length
(the code: 150 epochs, whatever it is). A turn without history has no band (the code: a band around 1).
"""

from gxpo.algorithms.objectives.entropy_band import EntropyBand
from gxpo.parts.definition import Definition

epo = Definition(
    name="epo",
    doc=__doc__,
    title="EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning",
    arxiv="2509.22576",
    authors="Xu, Wujiang and Zhao, Wentian and Wang, Zhenting and Li, Yu-Jhe and Jin, Can and Jin, Mingyu and "
    "Mei, Kai and Wan, Kun and Metaxas, Dimitris N.",
    year=2025,
    formula="L = L_GRPO - c (H - s w P), H, P means over turns, P = distance of H_t to [k_l, k_r] Hbar_turn",
    evidence="reference-code",
    keys={"objective.add.entropy_band": EntropyBand},
    code="WujiangXu/EPO@5b6fa98e034639b95afbfb24f98d1cb1e5197542 verl/workers/actor/dp_actor.py "
    "examples/general_running_server.sh README.md",
)
