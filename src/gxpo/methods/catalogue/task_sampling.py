"""Methods that decide which tasks are drawn, and how often."""

from gxpo.parts.definition import Definition

vas = Definition(
    r"""VAS: variance-aware sampling: half of the draws in proportion to the variance of a task's verdicts, half
    uniform.

    w_q = p_q (1 - p_q), stretched over the tasks to [0, 1];   P(q) = 1/2 / N + 1/2 w_q / sum w
    p_q = right / verdicts of the task's newest visit

    Choices. From the authors' code, whose released settings score by the variance of 8 answers alone. It answers the
    whole data set anew every 4 steps; here p is what training saw last, and 1/2 for a task that was never drawn, so
    that those come first. Half of its batch comes from each kind of draw; here that holds on average. The paper's
    second score, the diversity of answers, is left out: the code adds self-BLEU, which is the opposite. Its momentum of
    1.0, "none", keeps old weights; its script sets 0, as here (`tasks.sampler.discount`).
    """,
    cite="leng2025vas",
    evidence="reference-code",
    code="LengSicong/MMR1@d8161a0c0bb2933cae38b782aa75181663328de5 verl/curriculum/samplers.py "
    "verl/curriculum/metrics.py verl/trainer/ray_trainer.py examples/mmr1.yaml",
    keys={
        "tasks.sampler": "variance",
        "tasks.sampler.uniform_share": 0.5,
        "tasks.sampler.stretch": True,
        "tasks.sampler.discount": 0.0,
        "tasks.sampler.prior": 0.0,
    },
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat: a list, or `pool`",
)

cures = Definition(
    r"""CurES: tasks drawn by a softmax of the std of their verdicts, and attempts in proportion to it.

    P(q) ~ exp(sqrt(p_q (1 - p_q)) / 0.1),  p_q = (1 + right) / (2 + verdicts);   n_q ~ sqrt(p_q (1 - p_q)), 2 <= n_q

    Choices. The temperature is open: 0.1 is the default of the code's `entropy_param`, 1.0 what its scripts pass
    (`cures@paper`), and it is never read. Its sampler divides by 100 (right answers + 1) instead, so that what it draws
    is all but uniform: rates .1, .5, .9 after 0, 3, 7 right answers have chances .3338, .3332, .3329. Attempts: its
    sigma for equal gradient norms (those of answers cost a backward pass each), rounded there one by one, here to the
    budget, and anew each step, not once. There p of the attempts is right / verdicts, so that all-wrong tasks have
    none; here it is the p above, and 0, 4 and 8 right of 8 have 7, 11 and 6 of 24 attempts (`rollout.prior`; default
    changed on 2026-11-28, before it their p was drawn to the mean of all tasks). Tasks of a step differ. Counts are
    never discounted (`discount: 1` in both places).
    """,
    cite="zeng2025cures",
    evidence="reference-code",
    code="ZexuSun/CurES@0d65c47addf1fa76fb852f80312c30deb6440cc6 epic/epic_sampler.py "
    "epic/stage_0_init_difficulty_sample_size.py epic/run_loop.sh",
    keys={
        "tasks.sampler": "std",
        "tasks.sampler.temperature": 0.1,
        "tasks.sampler.discount": 1.0,
        "rollout": "adaptive_group_size",
        "rollout.value": "mean_error",
        "rollout.discount": 1.0,
        "rollout.prior": "uniform",
    },
    paper_defaults={
        "rollout.group_size": 4,
        "tasks.per_step": 1024,
        "tasks.sampler.temperature": 1.0,
        "optim.lr": 1e-6,
        "objective.kl.coef": 1e-3,
    },
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)

srpo_history = Definition(
    r"""SRPO (history resampling): each epoch leaves out the tasks whose answers were all right in the last; DAPO's
    loss.

    tasks of epoch e + 1 = those of epoch e without the ones whose group was all right: mixed and all-wrong groups stay
    L = sum_{i,t} max(-A rho, -A clip(rho, 0.8, 1.28)) / number of tokens of the batch; A as in GRPO

    Choices. From the model card and translations; no code was found. No group is drawn in another's place, unlike
    dynamic sampling: the share of groups with signal rises an epoch late. A dropped task does not return
    (`tasks.sampler.min_streak` all-right visits drop it, 1). Its two stages are two runs: mathematics, then `init_from`
    it with code added.
    """,
    cite="zhang2025srpohistory",
    evidence="secondary",
    keys={
        "tasks.sampler": "drop_solved",
        "tasks.sampler.epochs": True,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"tasks.per_step": 256, "rollout.group_size": 32, "optim.lr": 1e-6, "optim.betas": [0.9, 0.95]},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)

drive = Definition(
    r"""DRIVE: hard-focus curriculum: in phases, the tasks with the lowest success rates of the phase before are kept.

    kept_0 = all;  kept_j = the hardest share s_j of kept_{j-1}, once each of it was drawn j times;  A as in GRPO
    s = 72 / 175, 50 / 72, 25 / 50

    Choices. From the paper (arXiv 2511.06307v1, section 3.2); there is no code. This is its second stage, in which 175
    tasks become 72, 50 and 25, for 64, 32 and 32 steps; here a phase ends by draws, since a step has as many tasks as
    `tasks.per_step` says. The first stage is `grpo` with 8 attempts on all tasks, and the second begins from it:
    `init_from: RUN`. Shares are `tasks.sampler.shares`. Rates are the newest, so a task that has become easy makes room
    for one that was left out. 64 attempts are under `drive@paper` (the paper says 80 in one place): tasks that are
    never solved cost as many and teach nothing.
    """,
    cite="zhu2025drive",
    evidence="paper",
    keys={
        "tasks.sampler": "keep_hardest",
        "tasks.sampler.epochs": True,
        "tasks.sampler.shares": (72 / 175, 50 / 72, 25 / 50),
    },
    paper_defaults={"rollout.group_size": 64},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
