"""Methods that learn in a model of a world, in a bank of experience, or as a population under codes."""

from gxpo.parts.definition import Definition

wmpo = Definition(
    r"""WMPO: GRPO on episodes in a frozen model of the world, with a judge's success as the reward.

    o_{t+1} = model(o_t, a_t) from the world's first observation on;   R = [judge(o) >= 0.82];   G = 8
    A, L as in GRPO, clip 0.2 and 0.28, no KL; groups with 1 to 7 successes of 8 are trained

    Choices. From the authors' code. Its model makes videos and is trained before on recorded trajectories; here it is
    `rollout.model`, by default a table of what the world answered in the first `rollout.exploration_steps` steps, which
    are real and trained on. Its judge is a classifier of videos (`rollout.judge`, `rollout.threshold`); without one the
    model says what is a success. Its filter of groups (accuracy from .1 to .9) is what GRPO does by itself: other
    groups have advantage 0. Component "agreement" is the share of a played-back episode's answers that the model had
    right: where it falls and the reward rises, the policy exploits the model. Stand-in: worlds of text, no robots.
    """,
    cite="zhu2025wmpo",
    evidence="reference-code",
    code="WM-PO/WMPO@0d0bd49bbd907f904e367143398044dd3f1bd15a examples/mimicgen/coffee/train_wmpo_128.sh",
    keys={"rollout": "imagined", "objective.clip_high": 0.28, "objective.aggregate": "token_mean"},
    paper_defaults={"tasks.per_step": 64, "optim.lr": 5e-6, "sampling.temperature": 1.6},
    cost="real episodes in the steps that fill the table, and one that is played back a step",
)

training_free_grpo = Definition(
    r"""Training-Free GRPO: a bank of experiences before the prompt, edited by contrasts within groups; no gradient.

    E_{t+1} = edits(E_t): for each group with 0 < mean r < 1 the model compares attempts and says one operation,
      ADD, MODIFY or MERGE;   the prompt is E and the task;   no weight changes

    Choices. From the authors' code, with groups of 5. There each attempt is summarised first, and a last call revises
    all edits of a batch together: here the model reads a right and a wrong attempt and writes one line, since small
    models follow nothing longer (`rollout.writer=FILE.py:NAME` writes as you like; `edit` in that module has the plan).
    Its prompts state the solution; ours does not. The bank has at most 32 entries, of 400 characters each (there: no
    bound), and the oldest go. What can't be read as an operation edits nothing and is counted (component "edits").
    `rollout.writer: example` stores the task with its right attempt, which needs no writer. `rollout.train_attempts:
    true` trains the policy under the bank as well.
    """,
    cite="cai2025trainingfree",
    evidence="reference-code",
    code="TencentCloudADP/youtu-agent@8a8ada94f789ef4a6a5c76e10d505d93ac271741 training_free_grpo/math/experience.py",
    keys={"rollout": "bank"},
    paper_defaults={"rollout.group_size": 5, "sampling.temperature": 0.7},
    cost="the bank in every prompt, and an answer of the writer for each group that has both verdicts; no update",
)

compass_latent = Definition(
    r"""COMPASS (latent): a policy conditioned on codes, of which only the best attempt of a group is reinforced.

    y_k ~ pi(. | q, z_k);   A_k = r_k - mean_{j != k} r_j for the best k, 0 for the others;   search over z at test

    Choices. From the authors' code, where z is uniform in [-1, 1]^16, enters the decoder's keys, and CMA-ES searches it
    for each instance; its baseline is the mean over the starting points of a route, or nothing, and the best alone is
    reinforced, none of several that are best. A text has no starting point: here the baseline is the mean of the
    others. z is a word in the prompt (`rollout.codes`), which can be read; the search goes through the codes:
    `eval.samples` as many, and the figure is pass@k. No std, no KL. The codes mean nothing before training: take some
    that say something ("short", "by hand", "check twice"), or give the policy time to tell them apart.
    """,
    cite="chalumeau2023compass",
    evidence="reference-code",
    code="instadeepai/compass@89582ad8306573d395b10f6cf61d78fb29d3d8cf compass/trainers/routing/trainer_routing.py",
    keys={"rollout": "coded", "credit": "pass_at_k", "credit.kind": "max_mean"},
)
