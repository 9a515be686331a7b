"""Methods whose reward comes from judges, rubrics, listeners and reward models."""

from gxpo.parts.definition import Definition

# comparisons
arena_rl = Definition(
    r"""ArenaRL: a knockout tournament within the group, seeded by matches against the first attempt; the place is the
    reward.

    r_i = 1 - rank_i / (G - 1);   A as in GRPO

    Choices. A judge of `scoring.options.judge` (or of the section `teacher`) gives a verdict on each match in both
    orders; the code adds up two scores from 0 to 10 of both orders and takes the larger sum. Seeds without an opponent
    have a bye: the code drops byes before it pairs, so that with six attempts the first two seeds have none. Equal
    places of a knockout share the mean of their ranks, and where every match is a tie all are equal; there the order in
    the list decides, and equal attempts are paid from 1 to 0. Attempts of one text are one contestant (code: each is
    one, `scoring.options.judge.contestants: attempts`). `scoring.options.judge.compare`: round_robin, anchor (both pay
    1 - rank / largest rank, equal ones the least of their ranks, as the code, which pays 0 where all are equal and here
    1/2), swiss, double_elim (seeded by their order, where the code draws pairs at random). A bye in a Swiss round is no
    match, and opponents are compared by their mean; there it is a win, and by their sum. Its scripts' clip is
    `arena_rl@paper`.
    """,
    cite="zhang2026arenarl",
    evidence="reference-code",
    code="Alibaba-NLP/qqr@944a2e2fbfe9e7e4e5fca49c75813d85da1fc9a3 qqr/reward_models/arena/single_elimination.py "
    "qqr/reward_models/arena/double_elimination.py qqr/reward_models/arena/swiss.py "
    "qqr/reward_models/arena/round_robin.py qqr/reward_models/arena/anchor.py scripts/travel/run-qwen3-8B.sh",
    keys={"reward": "judge", "scoring.options": {"judge": {"mode": "pairwise", "compare": "single_elim"}}},
    paper_defaults={
        "rollout.group_size": 16,
        "tasks.per_step": 16,
        "sampling.temperature": 0.8,
        "objective.clip_high": 0.28,
        "optim.lr": 1e-6,
        "credit.eps": 1e-6,
    },
    cost="at most 2 (G - 1) matches a group, two questions each",
)

heron = Definition(
    r"""HERON: rewards by a hierarchy of factors: attempts are compared at the first factor that tells them apart.

    i beats j at the first factor k with R_ik > R_jk + m sigma_k;   r_i = share of the group that i beats, a tie half;
      A as in GRPO

    Choices. The factors are the judges of `scoring.options.judge.panel`, in the order of their importance; sigma_k over
    the step's attempts (n - 1), m = `scoring.options.judge.margin`. The code trains a Bradley-Terry reward model on
    pairs drawn at random; here the share of pairs won is the reward, and `objective=preference_pairs` with
    `objective.pairs=outcome` trains on the pairs. The code's third and fourth factor take the second one's m; here each
    has the same m. The order is not transitive where m > 0: a beats b, b beats c and c beats a can hold at once, and
    each then has the same share.
    """,
    cite="bukharin2023heron",
    evidence="reference-code",
    code="abukharin3/HERON@677beb54e2fbf576575a8f582d9e7d6e37f19712 robots/stable_baselines3/ppo/heron.py",
    keys={"reward": "judge", "scoring.options": {"judge": {"combine": "lexicographic"}}},
    cost="an answer of each judge of the panel for each attempt",
)

# frozen models that read the answer
listener = Definition(
    r"""Listener: a frozen model reads the reasoning, and its probability of the right answer is part of the reward.

    r = format + 0.5 correct + 0.5 p_listener(right answer | task, reasoning);   A as in GRPO

    Choices. From a summary; the preprint is recorded as withdrawn in its third version. The listener is a checkpoint of
    the section `teacher`, as `teacher.models={listener: {role: judge, model: DIR}}`: a server gives no log-probs of a
    text. The probability is of all the answer's tokens together, among `info["choices"]` where a task has some. What it
    reads is all of the attempt, the answer too, unless `scoring.options.judge.answer_pattern` says where the answer
    begins: leave it out, and the listener copies what it is told. A listener that reads pictures is shown the task's.
    """,
    cite="gambashidze2025listener",
    evidence="secondary",
    keys={
        "scoring.weights": {"format": 1.0, "correct": 0.5, "judge": 0.5},
        "scoring.options": {"judge": {"mode": "confidence"}},
    },
    cost="a frozen model's forward pass over every attempt",
)

debate_reward = Definition(
    r"""Debate reward: an opponent argues against each answer, and a frozen judge's verdict is part of the reward.

    r = (1 - lambda) r_env + lambda 1[judge prefers the case for the answer];   lambda 0.25;   A as in GRPO

    Choices. Two roles speak: the policy answers with its evidence, and the opponent, which stays the model that the run
    starts from (`rollout.frozen_roles`, so set learner.lora_rank), argues for another answer; their texts are the two
    cases, asked in both orders, a tie counting 0 as in the code (`scoring.options.judge.tie`; default changed on
    2026-11-28, it was 0.5). Both are shown the task's prompt first, whatever it asks for, and then our sentence. In the
    code the cases are sets of a state's features in favour of two treatments, both debaters are trained before the
    policy, a DQN on recorded patients whose rewards are multiplied by 15 and the debate's by 10, and the judge is a
    network trained on preferences; here it is whoever `scoring.options.judge` names. lambda is the weight of judge in
    `scoring.weights`. r_env is the verdict, 0 or 1. Other teams: `rollout.graph=FILE.py:NAME` with `cases`.
    """,
    cite="sukovic2024debatereward",
    evidence="reference-code",
    code="aleksa-sukovic/iclr2024-reward-design-for-justifiable-rl@f3740902578497ea4726f20ed2b930e21ea80aec "
    "argo/datasets/sepsis.py argo/library/evaluation.py argo/scripts/protagonist.py",
    keys={
        "rollout": "team",
        "rollout.graph": "debate",
        "rollout.frozen_roles": ["opponent"],
        "scoring.weights": {"correct": 0.75, "judge": 0.25},
        "scoring.options": {"judge": {"mode": "debate", "tie": 0.0}},
    },
    cost="the opponent's action and two questions to the judge for each attempt",
)

# rubrics
meta_po = Definition(
    r"""MPO: a model rewrites the judge's rubric every ten steps, from answers and the scores they were given.

    r = judge's score under rubric v;   v + 1 = writer(rubric v, 20 scored answers) after every 10th step;
      A as in GRPO

    Choices. PPO with a KL penalty in the paper; the advantage here is GRPO's, and `meta_po+gae` adds a critic. The code
    asks for an analysis, refinements and their merger in turn; here one question asks for all. Its 20 answers are drawn
    from all steps since the last time; here they are of the step itself, evenly spread. The writer is the judge unless
    `scoring.options.judge.refresh` names another (by, ask, server). Scores of two versions are not comparable: a group
    has one version, replay, moving baselines and async.max_staleness are refused, and the curve of the reward jumps
    where the version does (`reward_rubric_version`). Not Mixed Preference Optimization, which has the same short name.
    """,
    cite="kim2025metapo",
    evidence="reference-code",
    code="minnesotanlp/mpo@19972d3b961c9906f0f69622cfe2081ba0a800a1 trl/trainer/mpo_trainer.py "
    "trl/extras/mpo/rm_essay_writing.py",
    keys={"reward": "judge", "scoring.options": {"judge": {"refresh": {"every": 10, "samples": 20}}}},
    cost="a judge's answer for each attempt, and one more every ten steps",
)

rubric_hacking = Definition(
    r"""Rubric hacking: GRPO on a judge's rubric score, watched by a judge without the rubric that is never paid.

    exploitation = sum w N J / sum w N;   N: credited by the training judge, J: rejected by all held-out judges;
      A as in GRPO

    Choices. A measurement, not a way to train. The paper counts what is newly credited since the checkpoint before, on
    the same prompts, by criterion (`rewards.panel.exploitation_rate`); the figure `reward_exploitation` is the share
    among the attempts that a step credits. Held-out judges are of other model families there; here one question without
    a rubric to the same judge, until `scoring.options.judge.held_out` names others. `gxpo doctor` reports
    `judge_hacked`. The self-internalisation gap (`rewards.panel.self_internalisation_gap`) is a function of log-probs
    under two prompts, for a loop of your own.
    """,
    cite="mahmoud2026rubrichacking",
    evidence="paper",
    keys={
        "reward": "judge",
        "scoring.options": {"judge": {"held_out": [{"name": "plain", "rubric": "Is this a good answer to the task?"}]}},
    },
    cost="a held-out judge's answer for each attempt",
)
