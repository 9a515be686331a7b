"""Methods that move the KL or the entropy: mirror descent, schedules, bands, temperatures."""

from gxpo.parts.definition import Definition

# KL coefficients
mdpo = Definition(
    r"""MDPO: mirror descent policy optimization: annealed KL penalty to the old policy, several updates a step.

    L = mean over tokens of -A rho + (1 / t_k) (rho log rho - rho + 1),   t_k = 1 - k / K over the run, not below 0.05
    Over all policies the minimum is pi_{k+1}(a) ~ pi_k(a) exp(t_k A(a)): no clip.

    Choices. The authors' code is for control: L is their loss in expectation over the old policy. They have KL(pi ||
    pi_k), the new policy first, between distributions, which are not kept here: it is estimated from samples of pi_k by
    rho log rho - rho + 1, unbiased as rho log rho is, but without noise on the first update, where its gradient is 0.
    So there are four updates of all data a step (ten in their command, `mdpo@paper`): with one, the term is idle. Their
    t_k is one step late, from 1 + 1 / K to 2 / K, their advantage GAE standardised over the step. Nothing bounds rho,
    there or here: where it overflows (a log-ratio above 88 in float32) L has no finite gradient, and the step is left
    out and counted.
    """,
    cite="tomar2020mdpo",
    evidence="reference-code",
    code="manantomar/Mirror-Descent-Policy-Optimization@c9bd3ba080e3 mdpo_on/mdpo.py mdpo_on/run_mujoco.py",
    keys={
        "objective.surrogate": "unclipped",
        "objective.aggregate": "token_mean",
        "objective.add.mirror_kl": "mirror_kl",
        "objective.add.mirror_kl.aggregate": "token_mean",
        "update.epochs": 4,
    },
    paper_defaults={"update.epochs": 10},
)

grpo_d = Definition(
    r"""GRPO-D: KL coefficient schedule: low early to explore, high late to exploit.

    L = L_GRPO + beta(s) mean k3;   w = 0.3 t of the run's t steps, b and B the least and the most, 0 and 0.02
    beta(s) = m - (m - b) s / w, m = (b + B) / 2, until s = w;   b + (B - b) (s - w) / (t - w) from then on

    Choices. The paper's text has beta rise from a small value; its eq. 3, which is followed, begins in the middle,
    falls to b and rises to B (`objective.kl.control.shape: linear` rises throughout). b = 0 and B = 0.02 are those of
    its geometry task, 0.04 and 0.1 those of counting. `objective.kl.coef` is b, `objective.kl.control.to` B, `.turn` w
    / t.
    """,
    cite="liu2025grpod",
    evidence="paper",
    keys={"objective.kl.control": "schedule", "objective.kl.control.shape": "dip", "objective.kl.control.to": 0.02},
    cost="the reference's log-probs",
)

fg_expo = Definition(
    r"""FG-ExPO: questions of medium accuracy are drawn more often, and the KL coefficient grows with the step's
    accuracy.

    P(q) ~ exp(-(a_q - 1/2)^2 / (2 sigma^2)),  a_q <- .9 a_q + .1 acc_q at each visit, from 1/2;   sigma 0.35
    beta = .02 (tanh(acc) + 1) / 2

    Choices. From the paper (arXiv 2605.11403v1, eqs. 4 to 8 and section 4.1). Its accuracy is that of the step itself,
    here of the step before, since a coefficient holds for a whole step. To weigh the loss of questions that come in any
    case instead of drawing them: `weight.NAME: group_weight`, `weight.NAME.curve: gaussian_rate`.
    """,
    cite="lin2026fgexpo",
    evidence="paper",
    keys={
        "tasks.sampler": "gaussian",
        "tasks.sampler.discount": 0.9,
        "objective.kl.coef": 0.02,
        "objective.kl.control": "by_accuracy",
    },
    paper_defaults={"rollout.group_size": 8},
    cost="a frozen reference model; two numbers a task in the checkpoint; useful only where tasks repeat",
)

# entropy bonuses
epo = Definition(
    r"""EPO: entropy bonus over the turns of an agent, with a smoothing band around each turn's past entropy.

    L = L_GRPO - c (mean_turns H - s w mean_turns P),   P_t = distance of H_t to [0.5, 1.5] Hbar_turn
    w = 1 - 0.2 (1 - e^{-2p}) in the first half of training, 0.8 e^{-3p} in the second, p the progress inside the half

    Choices. The published P is a constant where H_t lies outside the band (0.1, found by comparison): it shifts the
    loss and has no gradient. Here it is a hinge, with which the bonus vanishes above the band and doubles below it;
    `objective.add.entropy_band.hinge: false` is the published form. Band of the launch script (the actor's default:
    0.8, 1.2; the commands of the README: 0, 2), at every turn (the code: where the micro-batch reaches the second half
    of an episode). w is on (the README's commands; the script's default is off). c is 0.001, s 1. Training is the run's
    length (the code: 150 epochs, whatever it is). A turn without history has no band (the code: a band around 1).
    """,
    cite="xu2025epo",
    evidence="reference-code",
    code="WujiangXu/EPO@5b6fa98e034639b95afbfb24f98d1cb1e5197542 verl/workers/actor/dp_actor.py "
    "examples/general_running_server.sh README.md",
    keys={"objective.add.entropy_band": "entropy_band"},
)

aepo = Definition(
    r"""AEPO: entropy control by REINFORCE on positive samples drawn at a higher or lower temperature.

    h = mean -log p of the last step;   T = 1.2 if h <= H* else 0.8
    samples of the first quarter of the prompts at T with advantage > 0.05: the first m = min(60, all) of them
      (m / 2 where h > H*) take the place of the step's first m rollouts, with A = 1;
      then GRPO's update, ratio over the policy at temperature 1

    Choices. The rollouts that are replaced stay in their groups' statistics, as in the code, where advantages are known
    by then. h is an estimate from sampled tokens, not the entropy; H* is 0.5. The first step, which knows no h, draws
    nothing more: ours.
    """,
    cite="wang2025aepo",
    evidence="reference-code",
    code="597358816/AEPO@b353a05441e9cedaed154d29aa75bcae472a6a27 verl/trainer/ray_trainer.py "
    "examples/qwen-math-7b-AEPO.sh",
    keys={"rollout": "hot_cold_replay", "credit.add.for_origin": "constant_advantage"},
    cost="a quarter of the prompts are sampled twice",
)
