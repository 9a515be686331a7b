"""Methods for teams whose roles call one another: groups of invocations, leaders, trained planners, plans."""

from gxpo.parts.definition import Definition

mm_grpo = Definition(
    r"""mmGRPO: GRPO for programs of several modules: the k-th calls of one module in a task's attempts are a group.

    group (q, m, k): the k-th calls of module m in the attempts at q, whatever their prompts;   r = the attempt's score
    A = (r - mean) / (std + eps) in the group;   L as in GRPO

    Choices. From DSPy's optimiser. Attempts differ in their number of calls: here a group has the attempts that have a
    k-th call ("ragged" there, whose code runs past the end); DSPy's default drops all calls beyond the fewest of any
    attempt, so that a module that one attempt skips is not trained, and "fill" repeats calls, which then count twice. A
    group of one has advantage 0. Where an output can't be parsed it pays a role -1, or a part of it: give the role a
    `local` (`rollout.reward_scope: role`). Its trainer, Arbor, leaves out the std (`credit.scale: none`).
    """,
    cite="ziems2025mmgrpo",
    evidence="reference-code",
    code="stanfordnlp/dspy@45facc4c94f8eccb31d15eedb082e02203b40b82 dspy/teleprompt/grpo.py",
    keys={
        "rollout": "team",
        "credit.value": "return",
        "credit.discount": 0.0,
        "credit.group_by": ("agent", "step_info.call"),
        "credit.unit": "step",
        "rollout.reward_scope": "role",
    },
    cost="one sample per turn of each attempt",
)

matpo = Definition(
    r"""MATPO: one model plans and works: workers that the planner calls as tools get the planner's advantage.

    R = 0.9 acc + 0.1 fmt,   fmt = half the planner's format + half the mean of the workers'
    A = (R - mean) / (std + eps) over the planner's attempts, the same for every token of the attempt and its workers
    L = mean over attempts of the mean over all tokens of the family

    Choices. The paper's text normalises over planners and workers together; its code over planners, and that is here.
    The code copies the planner's advantage token by token, so that a worker's tokens beside the planner's tool results
    get 0, and its script aggregates over tokens: neither is followed. A role's `local` says whether its text has its
    format. With no worker called a perfect attempt has 0.95. Workers' contexts are their own (`Call`, `helpers`).
    """,
    cite="mo2025matpo",
    evidence="reference-code",
    code="mzf666/MATPO@ee2bef7efcee7f0a55c573926f8ee7d6a2b128df verl/trainer/ppo/ray_trainer.py",
    keys={
        "rollout": "team",
        "rollout.graph": "asking",
        "rollout.reward_scope": "role",
        "reward.shape.family_format": "team_shape",
        "reward.shape.family_format.function": "family_format",
    },
    paper_defaults={"rollout.group_size": 2, "tasks.per_step": 8, "optim.lr": 1e-5},
    cost="the workers' turns",
)

mlpo = Definition(
    r"""MLPO: a leader that reads the answers of frozen agents and gives the team's answer; the leader alone is trained.

    c = (q, s_1 ... s_K), s_k of the frozen agents;   A = r - mean_G r;   L as in Dr. GRPO, over the leader's tokens

    Choices. No code was found; from a review and summaries. There the agents' answers are sampled before the run and
    drawn for each context, and tasks that 75 % of them solve are dropped; here the agents are the model that the run
    starts from (stand-in for three other models), which answer anew in each attempt, so that contexts in a group
    differ. The format's share of the reward is `reward.add`. Several rounds are inference (`rounds` of a graph).
    """,
    cite="estornell2025mlpo",
    evidence="secondary",
    keys={
        "rollout": "team",
        "rollout.graph": "led",
        "rollout.frozen_roles": ["first", "second"],
        "credit.scale": "none",
        "objective.aggregate": "sequence_sum",
    },
    cost="an answer of each frozen agent for each attempt; adapters (learner.lora_rank)",
)

agentflow = Definition(
    r"""AgentFlow (Flow-GRPO of agents): train the planner in the loop; the outcome is broadcast to all of its turns.

    A = (R - mean_G R) / (std_G R + eps), one for each attempt
    L = mean_i 1/T_i sum_t 1/|a_it| sum_j PPO-min,   T_i the planner's turns of attempt i

    Choices. The paper's formula. The code takes mean and std over turns, so that long attempts weigh more (outcomes 1
    and 0 with 1 and 3 turns: 1.5 and -0.5, here 0.707 and -0.707), and averages over tokens. There the executor and the
    verifier are other models; here they are the model that the run starts from (`rollout.frozen_roles`; name those of
    your graph). `flow_grpo` is another method, for flows.
    """,
    cite="li2025agentflow",
    evidence="reference-code",
    code="lupantech/AgentFlow@c852141381ec2d3d0c575a63cf6f65bb2a19d315 agentflow/agentflow/models/planner.py "
    "agentflow/agentflow/solver.py",
    keys={
        "rollout": "team",
        "rollout.frozen_roles": ["verifier"],
        "weight.turns": "token_weight",
        "weight.turns.score": "turn",
        "weight.turns.curve": "equal_values",
        "weight.turns.scope": "trajectory",
    },
    paper_defaults={"tasks.per_step": 32, "optim.lr": 1e-6, "objective.clip_high": 0.3, "objective.kl.coef": 0.001},
    cost="the frozen roles' turns; adapters (learner.lora_rank)",
)

_HIERSEARCH = {
    "method": "grpo",
    "rollout": "team",
    "reward.shape.called": "team_shape",
    "reward.shape.called.function": "called_or_right",
}

hiersearch = Definition(
    r"""HierSearch: train search agents first, then a planner that calls them as tools, their weights held.

    phase 1: the agents "local" and "web";   phase 2: the planner, which calls them
    r = F1 of the answer; where that is 0, 0.1 (tools used at least once) / (tools);   A, L as in GRPO

    Choices. From the authors' code; F1 is the task's reward. There each agent is trained on tasks of its own before;
    here phase 1 trains both on what the planner asks, by the team's outcome, the planner at rest
    (`rollout.paused_roles`). Its penalty for searching the web early belongs to a baseline, and turns into the bonus of
    tools there (-1 is not above 0). A wrong format earns 0: make it part of the task's reward. The refiner, which keeps
    what an agent quotes and 30 % of the rest, is a `Call.reply` of yours. The phases share `trainer.steps` equally.
    """,
    cite="tan2025hiersearch",
    evidence="reference-code",
    code="plageon/HierSearch@2019e1f436655f38f779a48727a1c8cec737cf90 src/verl/utils/reward_score/hier_search.py",
    keys={
        "phases": [
            {**_HIERSEARCH, "rollout.paused_roles": ["planner"]},
            {**_HIERSEARCH, "rollout.paused_roles": ["local", "web"]},
        ],
        "rollout": "team",
        "rollout.graph": "searching",
        "rollout.policy": "per_role",
    },
    cost="the agents' turns; an adapter for each role (learner.lora_rank)",
)

marft = Definition(
    r"""MARFT: PPO over a team's turns in the order of the roles, with a value before each turn.

    delta = r + gamma V_next - V,   next: the turn of the role that acts next, across steps
    A = delta + gamma lambda A_next;   L = PPO's clip by the turn's ratio + 0.5 mean (V - target)^2 / 2

    Choices. From the authors' code, its action-level form with the log-ratio divided by tokens; its plain form has the
    product of all ratios (`objective.ratio: sequence_product` is over the attempt). gamma 0.99, lambda 0.95. It
    normalises advantages over the batch and drops exact zeros as missing, which is not followed; neither are its value
    of its own network and the early stop at a KL of 1e-3, tested after the gradient was added up. Training one role at
    a time in turns is `phases` with `rollout.paused_roles`. The reward is paid after the last turn.
    """,
    cite="liao2025marft",
    evidence="reference-code",
    code="jwliao-ai/MARFT@4bf341e9b31384403980ce6505cb20dc17839135 marft/algorithms/appo_trainer.py "
    "marft/buffers/action_level_buffer.py marft/critics/action_level_critic.py",
    keys={
        "rollout": "team",
        "credit": "gae",
        "credit.level": "turn",
        "credit.turn_discount": 0.99,
        "credit.lam": 0.95,
        "credit.target_at": "anchor",
        "objective.ratio": "turn",
        "objective.add.value": "value_regression",
    },
    paper_defaults={"update.epochs": 5, "optim.lr": 5e-7},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)

magrpo = Definition(
    r"""MAGRPO: roles that answer at the same time, each compared over the joint answers of the group.

    R_j = reward of joint answer j;   score of a role's k-th text = mean of R over the joint answers that have it
    A = score - mean over the role's texts;   L = -mean A log pi, no ratio, no clip

    Choices. From the authors' code. `rollout.joint: cross` joins each text of a role with each of the others', K^n
    joint answers; their code sums over them, so that advantages grow with K^(n-1): here the mean. "aligned", their
    default, joins k-th with k-th ("crossed" there is read as aligned without a word). Its second turn with returns
    discounted by 0.9 is left out: the roles answer once. Each role has a policy (`rollout.policy: per_role`); all take
    one optimiser step together.
    """,
    cite="liu2025magrpo",
    evidence="reference-code",
    code="OpenMLRL/CoMLRL@bb779554bac9d6c95a44504184f41d00ac751db1 comlrl/trainers/reinforce/magrpo.py",
    keys={
        "rollout": "team_joint",
        "credit.scale": "none",
        "objective.surrogate": "log_likelihood",
    },
    paper_defaults={"rollout.group_size": 4, "sampling.temperature": 0.6, "optim.lr": 5e-6},
    cost="a score for each joint answer",
)

meta_plan = Definition(
    r"""MPO (meta plans): DPO on plans, by how often a frozen executor succeeds under them.

    value(plan) = mean outcome of N attempts of the executor that reads the plan
    pairs: the best plans of a group with the worst, where they differ;   L = DPO's

    Choices. From the authors' code, which takes the first best and the first worst plan; here ties are averaged over
    (values .2, .8, .8: the second and the third against the first). A pair may differ by noise alone:
    `objective.min_gap`. Their executor plays whole episodes of a world; here it answers the task with the plan before
    the prompt (`rollout.refine_template`), 4 times. The planner is fine-tuned on plans before, there.
    """,
    cite="xiong2025metaplan",
    evidence="reference-code",
    code="WeiminXiong/MPO@ee5ea3b7a21c66b0b768ace4dcf6a91761768925 scripts/construct_metaplan_pairs.py",
    keys={
        "rollout": "critique",
        "rollout.roles": ["planner", "executor"],
        "rollout.attempts": 0,
        "rollout.refinements": 4,
        "rollout.template": "{prompt}\n\nWrite a short plan for this task. Do not solve it.",
        "rollout.refine_template": "{prompt}\n\nA plan:\n{critique}\n\nSolve the task.",
        "objective": "preference_pairs",
        "objective.pairs": "outcome",
    },
    cost="4 answers of the frozen executor for each plan; adapters (learner.lora_rank); a frozen reference",
)
