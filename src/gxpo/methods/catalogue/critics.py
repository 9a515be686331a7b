"""Methods with value heads: over tokens, turns, actions and options."""

from gxpo.parts.definition import Definition

# values of tokens
gae = Definition(
    r"""GAE: token-level generalized advantage estimation (PPO), with a value head on the policy's hidden states.

    delta_t = r_t + V_{t+1} - V_t;   A_t = delta_t + lambda A_{t+1}, lambda 1;   V_end = 0
    L = PPO's clip + 0.5 mean_t (V - target)^2 / 2,   target_t = A_t + V_t with the values at the start of the step

    Choices. discount 1 and lambda 1 as in verl (0.95 is common in agents); t runs over the trajectory's trainable
    tokens, so observations never enter, as in newer verl and Agent-R1: the token after a turn's last is the next turn's
    first. Not whitened (verl whitens over tokens: `credit.whiten: token`; so does the author's own code, over all steps
    with the population std, with discount 0.99 and V of the last state where an episode was cut). The head shares the
    policy's body and its optimiser; verl keeps a second model as critic, which has the value's gradient to itself. A
    trajectory cut at the length limit is over: value 0 beyond it. A group of one learns, and so does a group of equal
    rewards. The head begins at 0 and moves `learner.value_lr` times as fast as the rest.
    """,
    cite="schulman2015gae",
    evidence="reference-code",
    code="joschu/modular_rl@6970cde3da265cf2a98537250fea5e0c0d9a7639 modular_rl/core.py",
    keys={"credit": "gae", "objective.add.value": "value_regression"},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

t_ppo = Definition(
    r"""T-PPO: truncated rollouts: PPO on windows of tokens; the critic is trained once a rollout is finished.

    rollout: at most half of its tokens a step; an unfinished one goes on in the next step
    policy:  the tokens of the newest window. A_t of an unfinished rollout: GAE backwards with V(s_l) := V(s_{l-1}),
             nothing paid, and 0 for its last 8 tokens
    critic:  the Monte-Carlo return on all tokens of a rollout, in the step in which it ends, a mean over rollouts

    Choices. The authors' code is a recipe proposed to verl, two of them its co-authors. discount 1, lambda 0.95 for the
    policy and 1 for the critic, the tail of 8 and the critic's mean over rollouts are its own (defaults changed on
    2026-11-28: before, `credit.truncation: extend`, which keeps the tail, and a mean over tokens). Two windows; the
    paper has three, 8k of 24k tokens (`t_ppo@paper`). Its script also whitens the newest windows' advantages and holds
    them in [-10, 10], lets lambda grow with the length l (1 - 1 / (.05 l), at least 0.95, l half a window more where
    unfinished), clips values at -.5 and +.6, and imitates right rollouts with weight .1: left out. The tokens of
    earlier windows stay in the policy term's denominators, where the code counts the newest. Each step starts its tasks
    in addition to unfinished ones, so its number of rollouts varies; theirs fills up to a constant one. Until something
    has ended, and the value with it, nothing is learned; an unfinished rollout teaches where its window has more than 8
    tokens (`credit.tail`).
    """,
    cite="fan2025tppo",
    evidence="reference-code",
    code="HanlinDu/verl@5a66921112a5b641ff46621d34d4f5403bc9f180 recipe/tppo/tppo_algos.py "
    "recipe/tppo/tppo_trainer.py recipe/tppo/tppo_actor.py recipe/tppo/tppo_critic.py recipe/tppo/run_tppo.sh",
    keys={
        "rollout": "partial_rollouts",
        "credit": "gae",
        "credit.lam": 0.95,
        "credit.target_lam": 1.0,
        "credit.truncation": "trim",
        "weight.newest_version": "token_weight",
        "weight.newest_version.score": "version",
        "weight.newest_version.curve": "at_maximum",
        "weight.newest_version.scope": "trajectory",
        "objective.add.value": "value_regression",
        "objective.add.value.aggregate": "sequence_mean",
    },
    paper_defaults={"rollout.windows": 3, "objective.clip_high": 0.28},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

# values of turns and actions
gae_turn = Definition(
    r"""GAE over turns: turn-level generalized advantage estimation for agents, with the value at the turn's beginning.

    delta_k = r_k + gamma V_{k+1} - V_k;   A_k = delta_k + gamma lambda A_{k+1};
      V_k read before the turn's first token
    L = PPO's clip + 0.5 mean_k (V_k - target_k)^2 / 2 at first tokens, target_k = A_k + V_k of the start of the step

    Bi-level GAE (VAGEN, RAGEN) is `credit.level: both`: over turns with `turn_discount`, each turn's last token is then
    paid A_k + V_k, and GAE runs over the turn's tokens. VAGEN: target_at all, anchor last, turn_discount 0.95, lam
    0.95, whiten token. With lambda 1 and no discount it would be GAE over tokens, and is refused.

    Choices. gamma 1 and lambda 1 as in verl; Turn-PPO's figures (0.99, 0.9) and its ratio of whole turns:
    `gae_turn@paper`, from summaries, since its code isn't public. Not whitened (Agent-R1 whitens over turns: `steppo`).
    The recursion is that of Agent-R1 and of HiPER's baseline. The value is trained where it is read, as HiPER's
    baseline does; Agent-R1 trains it on all tokens of the turn (`credit.target_at: all`), and reads it at the first.
    Agent-R1 takes a truncated trajectory for one that is over, and so does this. Head and optimiser as in `gae`.
    """,
    cite="li2025gaeturn",
    evidence="secondary",
    keys={
        "credit": "gae",
        "credit.level": "turn",
        "credit.target_at": "anchor",
        "objective.add.value": "value_regression",
    },
    paper_defaults={"credit.turn_discount": 0.99, "credit.lam": 0.9, "objective.ratio": "turn"},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

steppo = Definition(
    r"""StepPO: turn-level PPO for agents: GAE over turns, whitened over turns.

    delta_k = r_k + gamma V_{k+1} - V_k;   A_k = delta_k + gamma lambda A_{k+1};   A = (A_k - mean) / (std + 1e-8)
    L = PPO's clip by the token's ratio + 0.5 mean_t (V_t - (A_k + V_k))^2 / 2 over all tokens of the turn

    Choices. As in the released code: V_k is read before the turn's first token but trained on all tokens of the turn,
    the ratio is the token's (the paper's step is in advantage and critic), std with ddof 1, gamma 1 and lambda 1.
    Without whitening and with the value trained where it is read this is `gae_turn`. Its scaling of rewards by a
    running std, an option there, is not part of it here. Its critic's loss is verl's, which clips values at +-0.5 from
    those at the start of the step by default: not here, `objective.add.value.clip` (`steppo@paper`).
    """,
    cite="wang2026steppo",
    evidence="reference-code",
    code="AgentR1/StepPO@26107f1d6d4c5438abe29b21a6ad085d8d1d4ac9 arft/core_algos.py arft/ray_agent_trainer.py",
    keys={"credit": "gae", "credit.level": "turn", "credit.whiten": "turn", "objective.add.value": "value_regression"},
    paper_defaults={"objective.add.value.clip": 0.5},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

poad = Definition(
    r"""POAD: action decomposition: GAE over the tokens of an action, discounted between actions only.

    inside an action:  delta_j = V_{j+1} - V_j,               A_j = delta_j + lambda A_{j+1}
    its last token:    delta = r + gamma V(next action) - V,   A = delta + gamma lambda A(next action)

    The optimal policy over tokens is then that over actions. Discounting inside too (NTPO, the paper's contrast) is
    `credit.discount: 0.95`; one value an action (TWOSOME) `gae_turn`; gamma 1 is GAE over tokens.

    Choices. gamma 0.95, lambda 0.95 as in the released code, which also whitens advantages before the update
    (population std, over a mini-batch's tokens whose advantage is not 0) and has an entropy coefficient of 0.01: both
    in `poad@paper`. The critic is a head on the policy's body, there a network of its own.
    """,
    cite="wen2024poad",
    evidence="reference-code",
    code="morning9393/ADRL@5ec1aa5450d150906455056c2a6718fcaeb2d12b mappo/utils/language_buffer.py "
    "mappo/config.py mappo/trainers/llm_trainer_tppo.py",
    keys={"credit": "gae", "credit.turn_discount": 0.95, "credit.lam": 0.95, "objective.add.value": "value_regression"},
    paper_defaults={"credit.whiten": "token", "objective.entropy.coef": 0.01},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

_ARCHER_HEADS = ("q1", "q2", "v1", "v2", "baseline")

# two levels
archer = Definition(
    r"""ArCHer: hierarchical actor-critic with utterance-level double Q and V critics and a token-level policy gradient.

    A   = min(Q1, Q2) - min(V1, V2) of the utterance;   advantage of a token: A - b_t, b_t a baseline fitted to A
    Q_i -> r + gamma V_i(next turn), V_i -> Q_i(what was said): squared errors;   actor: -A log pi, no ratio, no clip

    Choices. On policy: the reference keeps a replay buffer, samples the utterance again for the targets of V and for
    the actor, and has target networks that follow with 0.1 a step. Here the utterance is already a sample of the
    policy, the step's own rollouts are all there is, and targets are of the heads at the start of the step: with that
    nothing is off policy, and each rollout is learned from once. The critic is linear heads on the policy's own body
    (there a second model). They begin at 0, and the two of a pair differ because each learns from half of the rollouts
    (there by random initialisation). Q is read in the state before the utterance's last token. gamma 0.9 is the
    trainer's; their configurations have 0.95 (`archer@paper`) and no token baseline (`use_baseline`). The loss of a
    rollout is the mean over its tokens (the base's); there it is the sum over an utterance. Other epochs and rates of
    the reference are not taken over.
    """,
    cite="zhou2024archer",
    evidence="reference-code",
    code="YifeiZhou02/ArCHer@7c771a7610cb34e54ba53d69d1fb7337103e5648 archer/algorithms/archer/trainer.py "
    "archer/models/archer_agent.py archer/models/critic.py scripts/config/default.yaml",
    keys={
        "credit": "twin_critic",
        "objective.surrogate": "unclipped",
        **{f"objective.add.{name}": "value_regression" for name in _ARCHER_HEADS},
        **{f"objective.add.{name}.head": name for name in _ARCHER_HEADS},
    },
    paper_defaults={"credit.discount": 0.95},
    cost="a forward pass for five values at the start of the step; five vectors of parameters",
)

_HIPER_HEADS = ("low", "high", "switch")

hiper = Definition(
    r"""HiPER: options-style agent (switch, sub-goal and action tokens) with a separate advantage for each level.

    A turn: <switch>KEEP|SWITCH</switch><subgoal>...</subgoal><action>...</action>;
      an option: turns up to the next SWITCH
    action tokens    A_t = r_t + g V' - VL_t + g l A_{t+1} inside the option; V' = VL_{t+1}, at its end VH of the next
    sub-goal tokens  where an option begins: D = sum_j g^j r_j + g^d VH(next) - VH, A = D + g^d l_H A(next)
    switch tokens    T_t - VT_t;  T_t = r_t + g T_{t+1}, g VH(next) at the option's end
    each of the three over its own turns: (A - mean) / (std + 1e-8)

    Choices. After the released code and its scripts: g = l = 1, l_H 0.95; a keep costs 0.3 / T, one with another
    sub-goal than before 0.3; truncated episodes end with the value expected at their last turn. The first switch tag
    decides: any word in it but KEEP begins an option, with or without a sub-goal; without one, or with none in it, the
    turn goes on. A turn without an action is the action as a whole. The switch advantage is the return's, not the
    option-critic form that the code has commented out. Values at the turn's first token (VH, VT) and the first after
    the sub-goal (VL). Tokens outside the tags have advantage 0, but stay in the mean's denominator and in the KL (there
    they are masked); a token that two tags share is the earlier kind's (there the sum). Of several actions all count,
    there the first. The penalty for actions that can't be read, 0.1 there, is left to the environment here. The prompt
    or the system message has to describe the format: `untagged_turns` counts the turns without any tag, and a run of
    such turns alone is warned of. KL coefficient: `@paper`.
    """,
    cite="peng2026hiper",
    evidence="reference-code",
    code="JonP07/HiPER-agent@9d3c118 hiper_hae/core_hae.py hiper_hae/hier_mask.py verl/trainer/ppo/ray_trainer.py "
    "example_scripts/HiPER_trainer/run_alfworld.sh",
    keys={
        "segment": "spans",
        "segment.patterns": (
            r"\A(?:(?!<switch>).)*(<switch>\s*(?i:keep)?\s*</switch>)",
            r"\A.*?(<switch>.*?</switch>)",
            r"\A.*?(<subgoal>.*?</subgoal>)",
            r"<action>.*?</action>",
        ),
        "credit": "hierarchical_gae",
        "credit.keep_penalty": -0.3,
        "credit.consistency_penalty": -0.3,
        "credit.truncation": "extend",
        **{f"objective.add.{name}": "value_regression" for name in _HIPER_HEADS},
        **{f"objective.add.{name}.head": name for name in _HIPER_HEADS},
    },
    paper_defaults={"objective.kl.coef": 0.01, "optim.lr": 1e-6},
    cost="a forward pass for three values at the start of the step; three vectors of parameters",
)
