"""Methods that compare the policy with itself under a masked observation."""

from gxpo.parts.definition import Definition

papo = Definition(
    r"""PAPO: KL between the full and the masked observation as a perception bonus, with an entropy penalty.

    L = L_GRPO - coef mean_t k3 + entropy_coef mean_t (-log policy),   k3 = e^d - d - 1, d = log masked - log policy
    coef 0.01, entropy_coef 0.03; 60% of the observation hidden

    Choices. Patches of pictures are black, as in the code: here what the tower makes one row of, there 14 pixels wide
    (`signal.masked_observation.patch: 14`). On text, prompt and observation tokens are hidden. Both means are over all
    trained tokens of the step, whatever the rewards. A token's k3 is held at 10, as in the code (null in
    `objective.add.masked_kl.kl_max`: no bound). Masked log-probs are the policy's at the start of the step, as in the
    code; its second entropy term is then a constant and is left out. `papo+dapo` is the paper's PAPO-D.
    """,
    cite="wang2025papo",
    evidence="reference-code",
    code="MikeWangWZHL/PAPO@fb63bf4533b78da5a2bb17bc812375dcb620887d verl/workers/actor/dp_actor.py "
    "verl/trainer/core_algos.py examples/configs/config_grpo_papo.yaml",
    keys={
        "objective.add.masked_kl": "masked_kl",
        "objective.add.masked_kl.kl_max": 10.0,
        "signal.masked_observation": "masked_observation",
    },
    cost="a forward pass over the rollouts with masked observations",
)

vppo = Definition(
    r"""VPPO: train only the tokens most dependent on the observation; weigh trajectories by their dependence.

    D_t = e^d - d - 1, d = log masked - log policy: held in [0, 10];
      w_t = [D_t among the top 40% of its trajectory] scale_i
    scale_i = 0.9 + 0.1 x_i / mean x, x_i = mean_t D_t brought to [0, 1] by the step's extremes;   loss = GRPO's times w

    Choices. 60% of the patches of pictures are black, as in the code; on text, prompt and observation tokens are
    hidden. Tokens that are masked out stay in the denominators; where all depend alike the scale is 1, as in the code.
    Extremes and mean are over the step (the code: of mini- and micro-batches). The paper builds on DAPO (`vppo+dapo`);
    its scripts penalise the mean of -log policy by 0.06: `vppo@paper`.
    """,
    cite="huang2025vppo",
    evidence="reference-code",
    code="huaixuheqing/VPPO-RL@a23c54b83565c48e9e1fb54cc1e18a1c63557c99 verl/workers/actor/dp_actor.py "
    "examples/configs/train_vppo_7b.sh",
    keys={
        "weight.perception": "token_weight",
        "weight.perception.score": "dependency",
        "weight.perception.curve": "top_scaled",
        "weight.perception.scope": "trajectory",
        "signal.masked_observation": "masked_observation",
    },
    paper_defaults={
        "objective.add.masked_kl": "masked_kl",
        "objective.add.masked_kl.coef": 0.0,
        "objective.add.masked_kl.entropy_coef": 0.06,
    },
    cost="two forward passes over the rollouts before the update, one with masked observations",
)
