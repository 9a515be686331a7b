"""Methods known from abstracts: models of worlds, banks of experience, codes, guards and constraints."""

from gxpo.parts.definition import Definition

# models of worlds
world4rl = Definition(
    r"""World4RL: PPO with a value head in a frozen model of the world.

    o_{t+1} = model(o_t, a_t);   A by GAE, discount 1, lambda 1;   L = PPO's clip + 0.5 mean (V - target)^2 / 2

    Choices. From the abstract: no code was found. The model is that of `wmpo`, frozen after `rollout.exploration_steps`
    steps; the paper's is a diffusion model of videos, trained before, with a classifier for the reward, and its policy
    comes from imitation. Stand-in: worlds of text.
    """,
    cite="jiang2025world4rl",
    evidence="reconstruction",
    keys={"rollout": "imagined", "credit": "gae", "objective.add.value": "value_regression"},
    cost="as `wmpo`, and a forward pass for the values",
)

ctrl_world = Definition(
    r"""Ctrl-World: imitation of the episodes that succeed in a model of the world.

    L = mean over the tokens of successful imagined episodes of -log policy

    Choices. From the abstract, which fine-tunes a policy on synthetic successes. An episode counts as one where its
    advantage in the group is above 0, so that a group of successes alone teaches nothing. The model is that of `wmpo`.
    Left out: a model that several cameras agree on, which is the paper's own subject. Stand-in: worlds of text.
    """,
    cite="guo2025ctrlworld",
    evidence="reconstruction",
    keys={"rollout": "imagined", "objective": "positive_likelihood", "objective.coef": 1.0},
    cost="as `wmpo`",
)

starwm = Definition(
    r"""StarWM: propose an action, read what a model of the world predicts, then act.

    a' ~ pi(. | o);   o' = model(o, a');   a ~ pi(. | o, a', o');   only a is carried out;   A, L as in GRPO over both

    Choices. From the abstract; the repository it names holds the model's training. There the loop is inference alone,
    and the model a language model trained on 50,000 transitions; here proposal and action are trained with the
    episode's outcome, and the model is `rollout.model`, by default a table of what the world has answered, which says
    "unknown" elsewhere. Held-out tasks are rehearsed, too. Stand-in: no game.
    """,
    cite="zhang2026starwm",
    evidence="reconstruction",
    keys={"rollout": "imagined", "rollout.place": "turn"},
    cost="two actions for each one that is carried out",
)

# banks of experience
mars_prompt = Definition(
    r"""MARS (prompts): an instruction before the prompt, rewritten by the model and kept where it does better.

    E' = rewrite(E | a right and a wrong attempt);   half of the next attempts read E', half E;
      E <- E' if their mean reward is higher;   no weight changes

    Choices. From the abstract: seven agents, of which a teacher asks, a critic judges and a student rewrites. Here one
    model writes one line, and the rewards are the critic. One entry (`rollout.max_experiences: 1`), so an added one
    replaces it. The planner and the questions between the agents are left out; prompts that are optimised by programs
    of their own (dspy, gepa) need no method here.
    """,
    cite="zhang2025marsprompt",
    evidence="reconstruction",
    keys={"rollout": "bank", "rollout.max_experiences": 1, "rollout.acceptance": "better", "rollout.entry": "{text}\n"},
    cost="as `training_free_grpo`",
)

compass_skills = Definition(
    r"""COMPASS (skills): a library of what has worked, as texts before the prompt, from the policy's own successes.

    library <- library + (task, right attempt) of each group with successes and failures;   no weight changes

    Choices. From the abstract: a planner that sees composes skills, which are programs, from a library that begins with
    demonstrations. Here a skill is the text of an attempt that succeeded where others failed: in a world its actions
    with what came of them. At most 8, the newest. Planning, communication and repair of a skill's code are left out.
    Stand-in: no StarCraft.
    """,
    cite="li2025compassskills",
    evidence="reconstruction",
    keys={"rollout": "bank", "rollout.writer": "example", "rollout.max_experiences": 8},
    cost="the library in every prompt; no update",
)

# populations under codes
mra = Definition(
    r"""MRA: a set of strategies in one policy, each attempt under a code that it draws.

    y_i ~ pi(. | q, z_i), z_i drawn for each attempt;   A, L as in GRPO over the group

    Choices. From the abstract, for teams of varying size: latent variables hold what games have in common and what
    they don't, by a bound on mutual information, which is left out; here nothing but the reward tells codes apart.
    Compare with `compass_latent`, which reinforces the best alone.
    """,
    cite="zhang2021mra",
    evidence="reconstruction",
    keys={"rollout": "coded", "rollout.assignment": "each"},
)

# guards and constraints
stepmix = Definition(
    r"""StepMix: attempts shared between the policy and a safe baseline, so that the mixture stays above a floor.

    share of the policy = 1 if LCB >= f b, else (b - f b) / (b - LCB);   b the baseline's mean, f = 0.9
    A, L as in GRPO over the policy's own attempts

    Choices. From the abstract, for tables; there the bound holds in every episode with high probability, by an
    optimistic model of the world. Here LCB is Hoeffding's of the policy's outcomes, those of earlier steps discounted,
    so the floor is kept on average and not in each episode. The baseline is the model that the run starts from.
    """,
    cite="li2023stepmix",
    evidence="reconstruction",
    keys={"rollout": "mixture"},
    cost="the baseline's attempts, which nothing is learned from; adapters (learner.lora_rank)",
)

tscac = Definition(
    r"""TSCAC: first a policy for the auxiliary reward, then one for the outcome that stays near it.

    phase 1: A of the auxiliary reward alone;   phase 2: A of the outcome, KL to the policy after phase 1, 1 / kappa
    at the optimum pi ~ pi_1 exp(kappa A)

    Choices. The authors' code (AIDefender/TSCAC@9d8ef5f) weighs log-likelihoods of logged actions by pi_1 and a softmax
    over the batch of kappa A, so that a weight shrinks with the batch; the paper has a product of one policy for each
    auxiliary reward. Here there is one, component "format" (state `phases` for another: `credit.value: reward.NAME`),
    and the KL to it has the same optimum. kappa 20. Videos and logged data are left out.
    """,
    cite="cai2023tscac",
    evidence="reconstruction",
    keys={
        "phases": [
            {"method": "grpo", "credit.value": "reward.format"},
            {"method": "grpo", "reference": "previous", "objective.kl.coef": 0.05},
        ]
    },
    cost="a frozen copy of the policy, made at the boundary",
)

veriguard = Definition(
    r"""VeriGuard: actions that a checked rule refuses are not carried out, and the agent reads why.

    refused if check(o, a) gives a reason: the world stays, o' = reason + o;   A, L as in GRPO

    Choices. From the abstract. There a model writes the check as code from a policy in words, with pre- and
    postconditions that a verifier proves; here it is yours (`rollout.check=guard.py:check`), and is tried on cases
    (`rollout.cases`) before the run, one wrong decision of which refuses it. Training under the guard is ours: the
    paper guards agents that are not trained. A refusal uses a turn. `rollout.on_refusal: end` ends the episode.
    """,
    cite="miculicich2025veriguard",
    evidence="reconstruction",
    keys={"rollout": "guarded"},
)

primal_dual_marl = Definition(
    r"""Primal-dual (teams): a bound on a cost, held by a multiplier that rises as long as the team exceeds it.

    A = (A_R - m A_C) / (1 + m);   m <- max(0, m + 0.1 (mean C - bound)) after each step

    Choices. From the abstract: general utilities of each agent's occupancy, with truncated neighbourhoods. Here the
    utility is the mean of a component, the same for the team (`credit.cost`, `credit.cost_limit`, yours to state), and
    what is compared is the team's attempts. On single policies: `--set credit=dual`. The division by 1 + m, which keeps
    the size of the advantage, is customary, not of that paper.
    """,
    cite="ying2023primaldual",
    evidence="reconstruction",
    keys={"rollout": "team", "credit": "dual"},
    cost="one sample per turn of each attempt",
)
