"""Methods that change how the parameters move in a step."""

from gxpo.parts.definition import Definition

sfpo = Definition(
    r"""SFPO: slow-fast updates: K fast steps on one batch, interpolation back to the start, one slow correction.

    theta_K = K steps from theta_0;  theta~ = theta_0 + alpha (theta_K - theta_0);  theta_new = one step from theta~.
    K = 3, alpha = 0.8. Once the entropy of a step is one standard deviation above the mean of its window of 30 steps,
      every later step is one plain step.

    Choices. As in the reference: the rise alone counts (not |z|), with the population std of a window that holds the
    newest entropy; entropy is that of the correction; Adam's moments are not pulled back. Every step is on the whole
    batch, where the reference's can be a pass of minibatches. `update.alpha` was 0.9 for Qwen3-4B.
    """,
    cite="wang2025sfpo",
    evidence="reference-code",
    code="Urheen/SFPO@e7b765e6bfa2e12baf95315471a1ea0f3d1210e4 Code/SFPO/verl/workers/fsdp_workers.py "
    "Code/SFPO/verl/trainer/ppo/ray_trainer.py",
    keys={"update": "slow_fast"},
    cost="4 updates a step, and a copy of the parameters",
)

trpo = Definition(
    r"""TRPO: trust region policy optimization: natural gradient with line search under a KL limit of 0.01.

    max E_old[rho A]  subject to  E[KL(pi_old || pi)] <= delta:
    H x = g with H = F + 0.1 I by 10 conjugate gradients;  theta <- theta + c sqrt(2 delta / x^T H x) x,  c = 1, 1/2,
      1/4... until the surrogate is better and the KL within 1.5 delta

    Choices. As in openai/baselines with its settings for MuJoCo; the first author's modular_rl has damping 1e-3, asks
    for a tenth of the expected gain and for no bound on the KL. `update.slack: 1` holds the paper's constraint,
    `update.damped_length: false` takes the length from F alone. F and the KL are estimated on the sampled tokens, F as
    the mean of squared scores over all of them (baselines: over a fifth), KL(old || new) as E_old[rho - 1 - log rho];
    full distributions are not kept. Means are over tokens. The advantage is the base's, relative to the group, where
    theirs is GAE standardised over the step. `optim.lr` is not used.
    """,
    cite="schulman2015trpo",
    evidence="reference-code",
    code="openai/baselines@ea25b9e8b234 baselines/trpo_mpi/trpo_mpi.py baselines/trpo_mpi/defaults.py "
    "baselines/common/cg.py",
    keys={"update": "natural_gradient", "objective.surrogate": "unclipped", "objective.aggregate": "token_mean"},
    cost="11 gradients and some 25 forward passes a step; four copies of the trained parameters",
)

seeupo = Definition(
    r"""SeeUPO: sequential turn updates in reverse order, with advantages corrected by the later turns' ratios.

    A = the outcome less its group's mean, over the batch's std, held in +-3;  c = 1;
      for turns k = T .. 1 (from the end):
      one step on   max(-c A rho_k, -c A clip(rho_k, 0.8, 1.2))
      c <- clip(c clip(r_k)),  r_k = exp(mean over turn k of log pi_new/pi_old), both clips to (0.8, 1.2)

    Choices. As in the authors' code (branch seeupo of modelscope/AgentEvolver): pi_old is the policy before the step on
    the turn, so that rho is 1 with its one mini-batch a turn; turns are taken by their number from the beginning, the
    highest first. `update.reduce=product update.old_policy=step update.count=end` is the correction by the product over
    the turn since the start of the step, with turns by their distance from the end. Where gxpo differs from it. A
    trajectory without turn k sits out; there it is a row of copied tokens that is in the loss's mean, and its c drifts
    with those tokens. A group of one has advantage 0, there its raw outcome (`credit.singleton`). Its launch files set
    algorithm.loss_mode: gspo, which nothing reads: the ratio is the token's; at rho 1 that is the same. One optimiser
    step for each turn, over all groups.
    """,
    cite="hu2026seeupo",
    evidence="reference-code",
    code="modelscope/AgentEvolver@e59dea41e7211f31d04993bbb28c6666bd153e73 "
    "beyondagent/module/trainer/ba_ray_trainer.py launcher/qwen3_bfcl/qwen3-seeupo-bfcl.yaml "
    "context_manager_templates/cmt_linear_think.py",
    keys={
        "update": "turns_reversed",
        "credit": "batch_whiten",
        "credit.center": "mean",
        "credit.batch_unit": "trajectories",
        "credit.bound": 3.0,
        "credit.eps": 0.0,
        "objective.ratio": "turn",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "objective.kl.coef": 0.002},
    cost="an update and a forward pass for each turn of the longest trajectory",
)
