"""Self-play: two outcomes of one episode, proposers of tasks, answers under peers, trees of several policies."""

from gxpo.parts.definition import Definition

mars_turn = Definition(
    r"""MARSHAL (first named MARS): self-play in games of two; returns of turns less the mean of the role's turns.

    R_{i,k} = sum_{k' >= k} r_{i,k'};   A_{i,k} = R_{i,k} - mean of R over all turns of the role in the batch
    L: PPO's clip, 0.2, with a dual clip at 3 (and 0.2 KL to the policy that the run starts from: `@paper`)

    Choices. The paper's order: sum, then take the mean off. The authors' code takes it off the rewards first, whitens,
    sums, takes off the mean of the distinct values and whitens again, which gives middling turns other signs. There a
    draw pays 0.1 in noughts and crosses and an invalid or too long move loses for the offender alone, as with
    `tasks.options: {draw: 0.1}` of task `tictactoe`. One batch is one game here (there a mean for each of three).
    Both seats are the policy's (`rollout.opponents: self`); past policies are `past`.
    """,
    cite="yuan2025marshal",
    evidence="reference-code",
    code="thu-nics/MARS@5979f75c8fa5 roll/utils/functionals.py",
    keys={
        "rollout": "seats",
        "credit.value": "return",
        "credit.group_by": ("batch", "agent"),
        "credit.scale": "none",
        "objective.surrogate": "dual_clip",
    },
    paper_defaults={"objective.kl.coef": 0.2, "optim.lr": 1e-6, "sampling.temperature": 0.6},
    cost="an episode gives a trajectory for each seat",
)

search_self_play = Definition(
    r"""Search Self-play: one model proposes questions that have a given answer and solves them; hard valid ones pay.

    r_proposer = 1 - mean_j s_j for a valid question, else the penalty;   r_solver = s_j, n = 5;   they sum to 1
    A_i = (r_i - mean_g r) / (std_g r + eps), among the attempts at one question, and among the proposals for one answer

    Choices. Authors' code, in which a proposer has one sample for an answer, and so its raw reward as the advantage:
    here it has `rollout.proposals: 2`, which are compared. Validity there is by rules and by answering with the
    proposer's documents and noise; here by `rollout.question_format`, a function of yours, by default for sums:
    stand-in. 1 - acc pays most for what can't be solved, so the check carries the method. There invalid questions are
    replaced by stored ones, which are charged to a proposer that did not write them; here nobody solves in their place.
    Both sides are one update (there one after the other). `rollout.reward_shape: parabola` is their other reward.
    """,
    cite="lu2025ssp",
    evidence="reference-code",
    code="Alibaba-Quark/SSP@b4797e185437 quarl/trainer/ppo/ssp_ray_trainer.py",
    keys={"rollout": "proposer", "objective.clip_high": 0.285},
    paper_defaults={"objective.kl.coef": 0.01, "optim.lr": 1e-6},
    cost="group_size attempts at each valid question, and the questions",
)

kairos = Definition(
    r"""KAIROS: GRPO on questions that peers of known reliability have answered before.

    r = format + correct;   G = 8, clip 0.2 and 0.28, 4 passes over each step's rollouts;   beta 0.04 (`@paper`)
    U = P(right with peers | wrong alone), Q = P(right with peers | right alone), F1 = 2 U Q / (U + Q)

    Choices. Authors' code without its debate reward (voices in the answer, counted by embeddings). Questions are task
    `peers`, sums with the answers of others (`tasks.options: {reliability: 0.5}`): stand-in for theirs. U, Q and F1 are
    `social_figures` of the answers alone and with peers.
    """,
    cite="song2025kairos",
    evidence="reference-code",
    code="declare-lab/KAIROS@a22b81cb1c7b src/MAS/rewards.py src/MAS/grpo.py",
    keys={"objective.clip_high": 0.28, "update.epochs": 4},
    paper_defaults={"objective.kl.coef": 0.04, "optim.lr": 3e-6},
)

mars2 = Definition(
    r"""MARS^2: several policies grow one tree of answers per task; scores shaped by parents and siblings.

    b = (1 - lambda) s_parent + lambda mean of the siblings' s;   r = s + gamma (s - b);   gamma = lambda = 0.5
    A = (r - mean_tree r) / (std_tree r + eps), whoever answered;   L: GSPO's ratio (0.001 KL: `@paper`)
    next answer: at each node Thompson draws between a new answer of each policy and its children

    Choices. All right-hand sides are the unshaped scores (the authors' code shapes in place, so that the order of the
    nodes matters, and its published workflow stores no parents, so that nothing is shaped). Policies are
    `rollout.players: [a, b]`, adapters over one model (`learner.lora_rank`), each trained on its own nodes; there
    different models. They train on trees with mean scores between 0 and 1, which the advantages here do by themselves.
    """,
    cite="li2026mars2",
    evidence="reference-code",
    code="TsinghuaC3I/MARTI@a2fe2c7b9ec4 marti/verifiers/auto_reward_alloc.py "
    "marti/agent_workflows/ab_mcts_processor.py",
    keys={
        "rollout": "answer_tree",
        "credit.value": "tree_shaped",
        "objective.ratio": "sequence",
    },
    paper_defaults={"objective.kl.coef": 0.001, "optim.lr": 1e-6},
    cost="group_size answers of a tree, one after another",
)
