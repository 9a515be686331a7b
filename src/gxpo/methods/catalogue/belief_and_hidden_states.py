"""Methods that read the policy's belief in the answer, its hidden states, or positions in the text."""

from gxpo.algorithms.weighting.phrases import PLANNING, as_pattern
from gxpo.parts.definition import Definition

# belief in the right answer
igpo = Definition(
    r"""IGPO: information-gain turn rewards: the rise in the policy's own probability of the correct answer.

    b_t = exp(mean_j log pi_old(a*_j | what stands before turn t + 1, cue, a*_<j)), a* the right answer, teacher-forced
    r_t = b_t - b_(t-1) for every turn but the last, which has the outcome; b_0 of the first prompt
    A_t = sum_(k >= t) gamma^(k-t) (r_k - mean) / s, s = sqrt(var + 1e-8) + 1e-6, over all turns of the group; gamma 1

    Choices. The paper's form with one degree of freedom, as GRPO's, and the floor of the authors' code of February 2026
    (there the population variance: `igpo@paper`), which they call the paper's method; the code before, without std and
    with a baseline by token position, was by their word an early attempt. The 1e-8 is a floor of 1e-4: where a whole
    group fails and beliefs move by 1e-5, a turn has an advantage of about .1; without it (`credit.floor: 0`) of 2, with
    `credit.scale: none` of 1e-5. Adam makes whole steps of any of these once all groups are such: see the figure
    `belief_moved`. The code's train.sh scales outcomes and gains separately (`credit.pool: separate`) and takes gains
    of log b (`credit.gain: log`). A gain of exactly 0 is a gain; the code, which finds turns by rewards that are not 0,
    leaves it out. What the environment answered belongs to the turn that asked, as in the code, whose loss is a sum
    over tokens (`objective.aggregate: sequence_sum`). The code's reward of the last turn is F1 of the answer, -2 for a
    bad format; here it is the task's. `signal.answer_belief.cue` should be how the policy answers; the code's is a
    whole pseudo-answer in tags.
    """,
    cite="wang2025igpo",
    evidence="reference-code",
    code="GuoqingWang1/IGPO@745078b5a35d0b84d3d9184e0f0de05ed04e11ad verl/trainer/ppo/core_algos.py "
    "scrl/llm_agent/generation.py verl/utils/reward_score/info_gain.py train.sh",
    keys={
        "credit": "pooled_turns",
        "signal.answer_belief": "answer_belief",
        "signal.answer_belief.ends_with_answer": True,
    },
    paper_defaults={"credit.ddof": 0, "objective.kl.coef": 0.001, "rollout.group_size": 16, "optim.lr": 1e-6},
    cost="a forward pass over the rollouts and, after every turn, over cue and answer",
)

grpo_vps = Definition(
    r"""GRPO-VPS: segment-level bonus for the rise in the policy's probability of the correct answer.

    C_k = pi_old(a* | x, z_<=k, cue), the product over a*'s tokens, teacher-forced; C_0 of the prompt alone
    A_k = R_i - mean_g + alpha (C_k - C_(k-1)) on the tokens of segment k; alpha 1.2
    Segments: one for every 4 uncertain tokens, with equally many in each

    Choices. From the paper (arXiv 2604.20659v1, eqs. 1 to 7). Which percentile makes a token uncertain is not stated:
    the quantile 0.8 of the answer's entropies is ours. Nothing is divided by a std, so alpha weighs probabilities
    against verdicts. Its eq. 7 sums over an answer's tokens; `objective.aggregate` says what is done here. A product is
    near 0 for long answers: `signal.answer_belief.reduce: exp_mean_log` is its root. After the segment that gives the
    answer, too, the policy is asked; if it can make nothing of a cue there, right answers are held against it:
    `signal.answer_belief.ends_with_answer: true` gives a trajectory's last segment no gain. With alpha 0 this is GRPO
    without std.
    """,
    cite="wang2026grpovps",
    evidence="paper",
    keys={
        "segment": "entropy_segments",
        "credit.scale": "none",
        "credit.add.progress": "value_delta",
        "credit.add.progress.value": "belief",
        "credit.add.progress.factor": 1.2,
        "signal.answer_belief": "answer_belief",
        "signal.answer_belief.unit": "segment",
        "signal.answer_belief.reduce": "joint",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6},
    cost="a forward pass for entropies, one over the rollouts and, after every segment, over cue and answer",
)

spae = Definition(
    r"""SPAE: step-level advantages from the probability of the correct answer and the confidence after each step.

    Phi_k = 1.5 acc conf + 0.5 acc - conf after step k: acc the mean probability of the right answer's tokens,
      conf exp(-mean entropy) there;   d_k = Phi_k - Phi_(k-1), 0 for the first
    f_k   = 1 - alpha (1 - exp(-#{t < k: Phi_t > 0.9})),   g_k = exp(d~_k) - mean exp(d~), d~ in [0, 1] over the batch
    A     = whiten((R - mean_g) f_k + xi g_k), over the batch's tokens; xi = alpha = 0.5

    Choices. Of the authors' code only the probe is public (cii030/SPAE-RL@ed529f8
    inference/probe_mechanism_example.py); the advantage is from a detailed note. Its potential and its first difference
    are the ones here. It samples 5 answers of 10 tokens a step at temperature 0.6 and reads off them the log-prob of
    the right answer's k-th token after k - 1 sampled ones (-10 outside the top 20), and the entropy over those 20: acc
    = exp(sum log p) / n, conf = exp(-sum H) / n. For an answer of one token that is p and exp(-H), as here; one of n
    tokens has neither above 1/n, so nothing saturates at 0.9. The paper's mean probability is used (the code's:
    `signal.answer_belief.reduce: joint_over_length`), and the mean entropy, both over the right answer's own tokens,
    teacher-forced: nothing is generated, and one pass gives both. Extremes and mean of g are over the batch's steps,
    each once; the note does not say. f shrinks advantages of either sign. Steps end with ".\n\n" in the whole answer,
    not inside <think> alone. The paper builds on DAPO: `spae+dapo`. With xi = alpha = 0 it is REINFORCE++-baseline.
    """,
    cite="wu2026spae",
    evidence="secondary",
    keys={
        "segment": "delimiter",
        "segment.text": ".\n\n",
        "credit": "step_potential",
        "signal.answer_belief": "answer_belief",
        "signal.answer_belief.unit": "segment",
        "signal.answer_belief.cue": "\n**Final Answer**\n\\boxed{",
        "signal.answer_belief.reduce": "mean_prob",
    },
    cost="a forward pass over the rollouts and, after every step, over cue and answer",
)

# hidden states
verl_rank = Definition(
    r"""VERL: advantage bonus by the effective rank of hidden states, its velocity and its acceleration.

    ER  = exp(-sum p ln p), p = singular values of the centred states over their sum
    ERV = mean over prefixes of ER_j - mean(ER_1..ER_(j-1)), every 40 tokens;   ERA = mean of its differences
    dev X = (X - usual X) / |usual X|, held in [-5, 5];   beta = sigmoid(2 dev ERA)
    Phi = beta tanh(dev ER) + (1 - beta) tanh(dev ERV);   A' = A + min(max(Phi, 0), |A| / 2)

    Choices. Usual is an average over the steps before, begun with the first step's means (rate 0.3, as the script;
    yaml: 0.7); the code begins it at 0 and moves it a step late, so that all deviations of its second step are +-5.
    Every token of an answer has the bonus, as the paper says; the code adds it to the last token alone
    (`credit.add.bonus.position: last`). The last layer's states. Answers shorter than 80 tokens have ERV = ERA = 0.
    Nothing to do with the framework verl.
    """,
    cite="huang2025verlrank",
    evidence="reference-code",
    code="hf618/VERL@3de68f16e447647d3f80d11fdbe5816137b515aa verl/trainer/reward_manager_versions.py "
    "verl/trainer/ppo/ray_trainer.py verl/trainer/metrics_utils.py train.sh",
    keys={
        "credit.add.bonus": "bonus",
        "credit.add.bonus.low": 0.0,
        "credit.add.bonus.kappa": 2.0,
        "signal.effective_rank": "effective_rank",
    },
    cost="a forward pass for hidden states; a symmetric eigenvalue problem for every 40 tokens of an answer",
)

# kinds and positions of tokens
hicra = Definition(
    r"""HICRA: hierarchy-aware advantages: a bonus of alpha |A| on planning tokens.

    A'_t = A + alpha |A| where token t is of a planning phrase, A elsewhere; alpha 0.2

    Choices. A is GRPO's; the paper's equations (version 3) leave the group's std out: `hicra@paper`. The authors'
    repository (TIGER-AI-Lab/Hierarchical-Reasoner) held no code when it was read; by a port's account theirs does this
    only in right answers longer than their group's mean, and for the 30% most uncertain tokens too. The paper's phrases
    (3 to 5 words) are found by clustering sentence embeddings of n-grams and ranking clusters by document frequency;
    clusters are not built. Here is a short list of ours, and `gxpo.algorithms.weighting.phrases` has the document
    frequency of plain n-grams: `segment.patterns` takes its phrases, or any regular expressions. Phrases are matched in
    the text, whatever its tokens. With alpha 0 this is GRPO.
    """,
    cite="wang2025hicra",
    evidence="paper",
    keys={
        "segment": "spans",
        "segment.patterns": (as_pattern(PLANNING),),
        "weight.labelled": "token_weight",
        "weight.labelled.score": "label",
        "weight.labelled.curve": "raised",
    },
    paper_defaults={"credit.scale": "none"},
)

avatar_tas = Definition(
    r"""AVATAR: U-shaped token weights over the answer; replayed rollouts against the prompt's moving mean outcome.

    w_t   = 1 + 0.3 (2 t - 1)^2, t from 0 to 1 along the answer; not divided out
    fresh:    A = (R - mean_g) / std_g over the task's fresh rollouts
    replayed: A = (R - mean of the task's newest 20 outcomes) / std over its replayed rollouts
    L     = over fresh and replayed rows together, the ratio over the policy that sampled them

    Choices. From an analysis with formulas. An answer of one token has t = 0 and weight 1.3. Replayed rollouts of equal
    outcomes have no std and are not scaled, so that they teach where no group does. The paper's sequence ratio of
    replayed rows is the token's here, as for fresh ones (`objective.ratio: sequence` has it for both); `rollout.coef`
    weighs replayed rows. Not built: the buffer in tiers of easy, medium and hard prompts, from which prompts are drawn
    again (here a task's rollouts come back when the task does), and hints where a hard prompt's policy stops exploring.
    The weight alone: `grpo` with `weight.u_shape: u_shape`.
    """,
    cite="kulkarni2025avatartas",
    evidence="secondary",
    keys={
        "rollout": "replay",
        "rollout.choice": "random",
        "credit": "replay_baseline",
        "signal.newest_mean": "task_mean",
        "signal.newest_mean.prior": 0.0,
        "signal.newest_mean.window": 20,
        "weight.u_shape": "token_weight",
        "weight.u_shape.score": "position",
        "weight.u_shape.curve": "u_shape",
        "objective.ratio_over": "behaviour",
    },
    paper_defaults={"rollout.group_size": 4, "rollout.replays": 4, "rollout.min_stored": 4},
    cost="K more trajectories a task in the update; about 70 bytes of memory for every stored token",
)
