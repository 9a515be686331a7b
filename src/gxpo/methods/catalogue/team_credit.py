"""Methods that decide what the members of a team are paid, and whose rollouts a run trusts."""

from gxpo.parts.definition import Definition

mac_spgg = Definition(
    r"""MAC-SPGG: each agent is paid by a public-goods game, so that resting on the others does not pay.

    u_i = -cost effort_i + 0.3 (c_1 + ... + c_{i-1}) + 1.5 C / n - [C < B],   C = c_1 + ... + c_n
    A = (u - mean) / (std + eps) over the agent's turns in the group;   L as in GRPO

    Choices. The utility's terms are from the authors' README; its constants are in no source, and those here are ours,
    with effort the turn's tokens over the longest turn's. The contribution c in [0, 1] is the role's own reward
    (`Role.local`), there an evaluator's score. The released code trains no language model: a small network picks the
    decoding settings of frozen ones, and its PPO is not in it. Here the agents' texts are trained. B: at 2 and three
    agents who give 0.6, 0.8 and 0.9, the third is paid 1.37, and 0.12 if it gives nothing.
    """,
    cite="liang2025macspgg",
    evidence="secondary",
    keys={
        "rollout": "team",
        "rollout.reward_scope": "role",
        "reward.step.utility": "turn_utility",
        "reward.step.utility.function": "public_goods",
        "credit.value": "return",
        "credit.discount": 0.0,
        "credit.group_by": ("agent",),
        "credit.unit": "step",
    },
    cost="one sample per turn of each attempt",
)

optima = Definition(
    r"""Optima: reward for the answer less its tokens, with readability; DPO on the group's best and worst attempts.

    R = R_task - 0.6 tokens / (most of the group) + 0.7 / (largest NLL of a turn)
    pairs: best with worst where R differs by at least 0.3;   L = DPO's

    Choices. From the authors' code and paper. NLL is there a frozen base model's, here the sampler's, which is the same
    at first; it is at least 0.1, since repetition makes it small and pays without bound. Attempts of more than 500
    tokens have -1 in its place, as there. Their pairs are turns of a search tree, and rounds of DPO follow rounds of
    imitation (`phases`): here pairs are attempts of the step.
    """,
    cite="chen2024optima",
    evidence="reference-code",
    code="thunlp/Optima@f9dd9bedd0ffa94f6dede9b7355328dd2b830712 reward/reward.py",
    keys={
        "rollout": "team",
        "reward.shape.readable": "team_shape",
        "reward.shape.readable.function": "readable_and_short",
        "objective": "preference_pairs",
        "objective.pairs": "outcome",
        "objective.min_gap": 0.3,
    },
    cost="a frozen reference model and its forward pass over the rollouts",
)

sapo_swarm = Definition(
    r"""SAPO (swarm): runs side by side publish their completions, and train on their own and on some of the others'.

    the step's groups: its own, and J = 4 of others' groups of the same tasks whose rewards differ, drawn uniformly
    A = (r - mean) / (std + 1e-8);   L = mean over tokens of PPO-min, clip 0.2 and 0.28

    Choices. From the authors' code: texts are encoded anew and rewarded by the receiver; their ratio is 1 at the first
    update, so that nothing corrects for who wrote them. `rollout.folders` has the others' `rollouts`. There groups of
    others are of other tasks, sent with their answer keys; here of tasks that this run has drawn itself, so that a
    sender can't choose what is right: give all runs one `tasks.seed`. Without folders it is the group's own GRPO.
    `sapo_gate` is another method.
    """,
    cite="amico2025sapo",
    evidence="reference-code",
    code="gensyn-ai/genrl@b688ae3de0bbe6ef168748dc4c1b84b8ec478422 src/genrl/trainer/grpo_trainer.py",
    keys={
        "rollout": "shared",
        "credit.eps": 1e-8,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "objective.on_unknown_behaviour": "one",
    },
    cost="scores of others' completions; runs that write their rollouts (trainer.rollouts_every)",
)

thief_defence = Definition(
    r"""Hail to the Thief: defences of a swarm against poisoned completions: what is implausible is rejected, a judge
    gates the reward.

    rejected: a completion with a token of probability < 0.001 under the receiver's policy
    r = r_task r_judge, r_judge in [0, 1];   the rest as in `sapo_swarm`, horizontal sharing

    Choices. From the paper. Its first defence rejects tokens outside the receiver's top 50, or top-p; a bound on the
    probability (ours) stands in for both. It stops foreign phrases and code, not a wrong step in a right solution, nor
    long answers; the judge (`scoring.options.judge`) stops the first and, there, unlearns the second. With k of G
    completions passing, their total push is sqrt(k (G - k)), so that an attacker with half of a group moves it most;
    without the std as well. The judge's component is called `judge`; name others in `reward.shape.factored.factors`.
    """,
    cite="blagoev2025thief",
    evidence="paper",
    keys={
        "rollout": "shared",
        "rollout.min_probability": 0.001,
        "reward.shape.factored": "shape",
        "reward.shape.factored.function": "factored",
        "reward.shape.factored.factors": ["judge"],
        "objective.on_unknown_behaviour": "one",
    },
    cost="as `sapo_swarm`; a forward pass over others' completions; a judge's answer for each",
)

eir_mappo = Definition(
    r"""EIR-MAPPO (Byzantine teams): a member may be an adversary, drawn by chance, and the others learn to cope.

    with probability 0.5 a task's attempts have a traitor, one role at random;   A by GAE over turns;   PPO's clip 0.05
    robust return: the mean of attempts with a traitor, beside the clean one

    Choices. From the authors' code, for games with observations in numbers. There the adversary is trained by PPO on
    the negative reward beside the team, and a belief network learns to tell who it is, as an input of actor and critic;
    here the traitor is a prompt (`rollout.traitor_prompt`) that the same model follows and is not trained, and nothing
    asks who it is: a role of yours may. `rollout.traitor: trained` trains it on the negative outcome, with
    `credit.value: return`. Clean 1 and .4 and .7 with each role attacked: worst .4, mean .55. gamma 0.99.
    """,
    cite="li2023bardec",
    evidence="reference-code",
    code="DIG-Beihang/EIR-MAPPO@9d1c75b519d9745cffc22ed2bc85a60182de2a49 eir_mappo/algo/mappo_traitor_belief.py "
    "eir_mappo/algo/mappo_advt_with_belief.py",
    keys={
        "rollout": "team",
        "rollout.traitor_rate": 0.5,
        "credit": "gae",
        "credit.level": "turn",
        "credit.turn_discount": 0.99,
        "credit.lam": 0.95,
        "credit.target_at": "anchor",
        "objective.clip_low": 0.05,
        "objective.clip_high": 0.05,
        "objective.add.value": "value_regression",
    },
    paper_defaults={"update.epochs": 5, "optim.lr": 5e-4},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)
