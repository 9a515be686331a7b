"""Reconstructed methods of several phases."""

from gxpo.parts.definition import Definition

mixed_po = Definition(
    r"""Mixed PO (MPO): DPO on pairs far apart in reward, then online RL with the policy that DPO has made as reference.

    phase 1: L_DPO over pairs with r_w - r_l >= tau;   phase 2: GRPO - beta KL(pi || pi_1),
      pi_1 the policy after phase 1

    Choices. No code was found. The paper splits a data set of pairs by the gap of a reward model; here pairs are of the
    step's own rollouts (`rollout: logged` reads a data set) and tau is `objective.least_gap`: with verdicts every pair
    is 1 apart. The paper's second stage is PPO on the prompts of close pairs; here it is GRPO on the run's tasks
    (`tasks.sampler: hardest` prefers the hard ones of a data file). Both phases share `trainer.steps` equally.
    """,
    cite="gou2024mixedpo",
    evidence="reconstruction",
    keys={
        "phases": [
            {"method": "dpo", "objective.pairs": "outcome", "objective.least_gap": 0.5},
            {"method": "grpo", "reference": "previous", "objective.kl.coef": 0.05},
        ]
    },
    cost="a frozen copy of the policy, made anew at the boundary",
)

_VERIPO_PAIRS = {"rollout": "logged", "rollout.file": "previous", "reference": "previous"}

veripo = Definition(
    r"""VerIPO (mostly ours): GRPO, then DPO on pairs that a verifier makes of GRPO's own rollouts, in turns.

    repeat: GRPO for n steps;   pairs (right, wrong) of these steps' groups;   DPO on them against the policy after GRPO

    Choices. The authors have released no training code. Their verifier asks small models whether an answer's reasoning
    is consistent with it and prefers long ones among these; here the run's verdict makes the pairs (a judge as a
    reward, and `objective.pairs: outcome`, is its place). DPO reads what the phase before has sampled (`rollout.file:
    previous`), so that it costs no sampling. Two turns; the four phases share `trainer.steps` equally.
    """,
    cite="li2025veripo",
    evidence="reconstruction",
    keys={
        "phases": [{"repeat": 2, "phases": [{"method": "grpo"}, {"method": "dpo", **_VERIPO_PAIRS}]}],
        "trainer.rollouts_every": 1,
    },
    cost="a frozen copy of the policy; the rollouts of every step on the disk",
)

_BFS_PROVER_V2_IMITATE = {"method": "grpo", "objective": "positive_likelihood", "objective.coef": 1.0}
_BFS_PROVER_V2_POOL = {"rollout": "logged", "rollout.file": "earlier", "weights": "reset"}

bfs_prover_v2 = Definition(
    r"""BFS-Prover-V2 (its training; mostly ours): expert iteration, and the base model retrained on what all rounds
    found.

    repeat: imitate the step's own right attempts;   then, from the base model: imitate all right attempts so far

    Choices. The training is not released, and nothing of the prover (Lean, best-first search, planner) is here: a
    stand-in for the schedule. An attempt is imitated where it is right and others of its group are not, which filters
    what is too easy (the paper filters tactics by perplexity: `weight.NAME: token_weight`). The second phase starts
    from the weights that the run began with (`weights: reset`) and reads the rollouts of the phases that sample
    (`rollout.file: earlier`).
    """,
    cite="xin2025bfsproverv2",
    evidence="reconstruction",
    keys={
        "phases": [
            {"repeat": 2, "phases": [_BFS_PROVER_V2_IMITATE, {**_BFS_PROVER_V2_IMITATE, **_BFS_PROVER_V2_POOL}]}
        ],
        "trainer.rollouts_every": 1,
    },
    cost="the rollouts of every step on the disk",
)
