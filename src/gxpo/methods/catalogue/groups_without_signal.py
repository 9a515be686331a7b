"""Methods for groups of equal verdicts: more attempts, stored rows, other starting states."""

from gxpo.parts.definition import Definition

eframe = Definition(
    r"""EFRame: twenty hotter attempts where all fail, a filter on |A|, replay of the rollouts with a large |A|.

    n = 5 at T = 1; all wrong: 20 at T = 1.2 in their place, A = GRPO's among them. Trained: |A| > 0.05, of the twenty
    |A| > 1, no truncated row with A > 0. Every 5 steps: also stored rows with |A| > 1, over the log-probs of their time

    Choices. The code recomputes log-probs of the hot rows at T = 1, so that their ratio of 1 hides who sampled them;
    here they are read, trained and replayed at 1.2. Its test for "all wrong", score < 0.01, a format reward switches
    off; here verdicts decide. It repeats the first hard prompts until their number is a multiple of 32, and fixes the
    upper clip at 0.2 whatever is configured: not here. It gathers kept rows until they fill a batch, of two at most,
    and trains on whole ones; here a row left out keeps its place in the denominator. Replay there is an update of its
    own, of the newest two batches of stored rows, or of whole batches drawn while there are fewer; here its rows join
    the step's, two for each fresh one at most. No dual clip (code: 3). KL 0.01 is `eframe@paper`'s. Kept advantages do
    not add up to 0.
    """,
    cite="wang2025eframe",
    evidence="reference-code",
    code="597358816/EFRame@173b698f3202156769b29c36a762e94d11c69327 verl/trainer/ray_trainer.py verl/trainer/buffer.py",
    keys={
        "rollout": "group_replay",
        "rollout.retry_if": "all_wrong",
        "rollout.retry_with": "hotter",
        "rollout.keep": "newest",
        "rollout.choice": "largest",
        "rollout.replay_ratio": 2.0,
        "rollout.every": 5,
        "weight.informative": "token_weight",
        "weight.informative.score": "credit",
        "weight.informative.curve": "informative",
        "weight.informative.unit": "trajectory",
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 5, "objective.kl.coef": 0.01, "sampling.top_p": 0.99, "optim.lr": 1e-6},
    cost="20 more samples of a task that failed, and up to three times the trajectories in every fifth update",
)

r3 = Definition(
    r"""R^3: replay of the other verdict into uniform groups, reflection on stored failures, ranks of truncated answers.

    all wrong: + 1 stored right row of the task; all right: + 1 stored wrong row;
      A over all of them (four and one: -0.447214 x 4 and 1.788854, or the negative).
      Right below 1/2 the last time: G more attempts with a stored failure in the prompt, a group of their own.
      Truncated, not right: r + 0.1 rank / (N - 1), rank by how many truncated members j it dominates: peak_i > peak_j
      and mean_i < mean_j; peak: mean of the largest fifth of the token entropies, mean: of all

    Choices. The method section was read up to the weight of replayed rows: 1 here (`rollout.coef`); k = 1, 1/2, the
    words of the prompt and a fifth are ours. The paper ranks by sort order, so that three who dominate nobody have 2/3,
    1/3 and 0; here they share 1/3. Its R_max is not known to us; 0.1 stays far below a right answer. It is above a
    finished wrong one, so that running into the limit may be learnt: so it was in our study, where accuracy fell.
    `credit.last_reward: -0.1` with `credit.first_reward: 0` does not pay for it. Pushing down a stored failure is off
    policy: ratios are over the log-probs of its time. Rows with a failure in the prompt are not stored.
    `rollout.retry_with: once` leaves them out.
    """,
    cite="jiang2026r3",
    evidence="paper",
    keys={
        "rollout": "replay",
        "rollout.groups": "uniform",
        "rollout.statistics": "mixed",
        "rollout.replays": 1,
        "rollout.min_stored": 1,
        "rollout.choice": "random",
        "rollout.retry_with": "reflect",
        "signal.structural_entropy": "structural_entropy",
        "credit": "unfinished_by_rank",
        "objective.ratio_over": "behaviour",
    },
    cost="as many attempts again at tasks that failed before; a forward pass for entropies",
)

arpo_gui = Definition(
    r"""ARPO (of GUI agents): in a group without a success a stored success of the task takes the place of one attempt.

    B_q: the newest 8 successes of task q. All of q's group failed and B_q is not empty: one of B_q, at random,
      for one row.
    r = verdict + 0.5 format; A, L as in GRPO, clip 0.2 / 0.3, no KL. Verdicts 0, formats 1 1 0 1 1 1 1 0 (eps 1e-6):
    A = .540059 x 6, -1.620178 x 2 without replay, 2.160242, 0, -1.080121, 0, 0, 0, 0, -1.080121 with it

    Choices. The code's `enable_replay` is read nowhere: replay is always on. It recomputes log-probs of what it
    replays, so that a ratio of 1 hides how old it is; here the ratio is over the log-probs of its time. Its test for a
    dead group is a std of the verdicts below 0.05 and a mean below 0.2, before the format reward is added; here no
    verdict is a success. It replaces the first row, here the last that failed. No dual clip (code: 3). Tasks were
    chosen beforehand by the base model's success, for which there is `gxpo filter-tasks`; 0.5 format is
    `scoring.weights`. It shares its name with another, `arpo_agentic`.
    """,
    cite="lu2025arpogui",
    evidence="reference-code",
    code="dvlab-research/ARPO@7489ae309e90d8b3b9e823f495b63e5116434060 verl/trainer/ray_trainer.py "
    "verl/trainer/replay_buffer.py",
    keys={
        "rollout": "retry",
        "rollout.retry_with": "once",
        "rollout.reuse": True,
        "rollout.coef": 1.0,
        "objective.clip_high": 0.3,
        "objective.aggregate": "token_mean",
        "objective.ratio_over": "behaviour",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "env.max_turns": 15},
    cost="about 70 bytes of memory for every stored token; pays only where tasks come round again",
)

snapshot_rl = Definition(
    r"""Snapshot RL: episodes begin in states on a teacher's way, in the first steps of a run.

    s_0 ~ states of stored trajectories of the task (all turns equally likely), steps 1..F;
      s_0 = the task's own, after
    A, L as in GRPO: the G episodes of a group begin in one state, and what was said before it is their prompt

    Choices. There it is TD3, SAC and PPO in MuJoCo: snapshots of ten episodes of a trained policy, every tenth step, in
    six clusters by its critic's value, a cluster and then a snapshot of it at random; episodes are cut 100 steps later,
    and the first 100,000 steps of 1,000,000 are sampled so. Here there is no critic, so that turns are drawn instead of
    clusters; nothing is cut (`env.max_turns` counts from the snapshot), since a group has no critic that would
    bootstrap. F = 100 is ours. The teacher is the environment's expert; `rollout.teacher: own` takes successes of the
    run's earlier policies, a folder of records (RUN/rollouts) those of another run. Later states are nearer to success,
    so that groups that all fail from the start differ from there; the policy still has to learn the first moves, of
    which these episodes say nothing.
    """,
    cite="zhao2024snapshotrl",
    evidence="reference-code",
    code="sdpkjc/snapshotrl@02918ec8a272784eee946c9cbaf5cfdb76e8997f src/snapshot_ppo_fix_mujoco.py",
    keys={"rollout": "snapshot_start", "rollout.first_steps": 100},
    cost="a stored way is gone once more in the environment, without sampling",
)
