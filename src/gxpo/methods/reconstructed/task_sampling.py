"""Reconstructed methods that decide which tasks are drawn."""

from gxpo.parts.definition import Definition

craft_gui = Definition(
    r"""CRAFT-GUI (mostly ours): curriculum by level: the first one not mastered, with a fifth of the draws over all
    levels.

    P(level) = 1/5 / levels + 4/5 [level = l],  l the first whose newest 3 success rates have a mean below 0.7;
      A: GRPO's

    Choices. From the abstract and a summary: levels are lengths of trajectories, and the mix moves on. The threshold,
    the 3 visits and the fifth are ours (`tasks.sampler.mastered`, `window`, `uniform`). Levels are a column of the
    tasks called "level" (`tasks.sampler.by`), or an option of a source that generates them, with
    `tasks.sampler.levels`. Of `task: buttons` with `tasks.options.pool` they are the numbers of actions asked for. Its
    reward of rules and a judge is the task's: `scoring.weights`. Stand-in: toy screens, where the level is exact; the
    paper's are lengths of recorded ways.
    """,
    cite="nong2025craftgui",
    evidence="reconstruction",
    keys={"tasks.sampler": "first_unmastered", "tasks.sampler.by": "level", "tasks.sampler.uniform": 0.2},
    cost="none in samples; a few numbers a level in the checkpoint; only where tasks have levels",
)

videorl_select = Definition(
    r"""Temporal-RLT (mostly ours): data selection: tasks whose repeated answers are neither all wrong nor all right
    stay.

    tasks of epoch 2 and later = those with 0.1 <= p <= 0.9 in what was seen of them, 0.25 being the largest p (1 - p)

    Choices. The paper selects before training, by repeated inference; its release (appletea233/Temporal-R1) has no
    selection, and its threshold is not known to us. The first epoch of training takes the place of that inference;
    `gxpo filter-tasks` does it before, and writes a file. Its temporal IoU reward is user code; no video: a stand-in on
    tasks of text.
    """,
    cite="li2025videorlselect",
    evidence="reconstruction",
    keys={"tasks.sampler": "band", "tasks.sampler.epochs": True, "tasks.sampler.prior": 0.0},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)

favchat_degrpo = Definition(
    r"""DE-GRPO (FaVChat; mostly ours): tasks drawn by how far the rewards and the likelihoods of their answers differ.

    P(q) ~ std of the outcomes of q's group * std of its answers' mean log-probs, discounted over visits;  A as in GRPO

    Choices. Not the released gate, which multiplies A by tanh(delta (mean gap - baseline)): its utility, a geometric
    mean over pairs, is near 0 wherever two rewards are equal, so delta and nearly all advantages are 0, and where it is
    on, a gap below the baseline turns their sign round (see docs/errata/methods.md). What is left is its measure of a
    task, as a chance to be drawn. A task that was not seen counts as the largest known. Video is not part of this: a
    stand-in on tasks of text.
    """,
    cite="zhao2025favchatdegrpo",
    evidence="reconstruction",
    keys={"tasks.sampler": "disagreement", "tasks.sampler.uniform": 0.1},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
