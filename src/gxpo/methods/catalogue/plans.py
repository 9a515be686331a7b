"""Methods that sample plans and their executions, or single steps of an expert's way."""

from gxpo.parts.definition import Definition

himac = Definition(
    r"""HiMAC: alternate GRPO over plans (macro, greedy execution) and over executions of the best plan (micro).

    macro  A_m = (R(z_m) - mean) / (std + eps) over M plans of a task, on plan tokens only
    micro  A_n = (R_n - mean) / (std + eps) over N executions of z* = argmax R(z_m), on execution tokens only
    The phases alternate, a step each; both are GRPO's objective.

    Choices. From secondary notes; there is no code. M = N = 8: the group sizes are not known. The micro phase makes and
    tries out plans of its own. In an environment a plan is written before the episode, a list of sub-goals; the
    executor acts under one at a time, turn by turn in a context of its own, and says <sub_done> to go on to the next.
    It may accompany an action; alone it takes no turn of the environment. Trials are greedy, as there; a small policy
    that remembers nothing then goes in circles: `rollout.trial_temperature: 1.0` tries plans out as the run samples. On
    tasks of prompts a plan is the first stretch of the answer, up to a delimiter, and the execution goes on from it,
    unless the templates ask for a plan in words. The KL coefficient, 0.01 in both phases: `himac@paper`. With a random
    z* the paper loses about 2 points.
    """,
    cite="jin2026himac",
    evidence="secondary",
    keys={"rollout": "plan_execute"},
    paper_defaults={"objective.kl.coef": 0.01},
    cost="a greedy execution of every plan; in the micro phase these and all plans but one are discarded",
)

pta_grpo = Definition(
    r"""PTA-GRPO: plan-then-act rollouts: several executions of each plan, plus a reward for the plan's success rate.

    4 plans of a task, 3 executions of each:  s_i = mean_j correct(i, j),  r_plan(i) = softmax(s / tau)_i,  tau 1
    r_ij = r_out(i, j) + 0.5 r_plan(i);   A_ij = (r_ij - mean) / std over all 12 attempts, population std,
      on plan and execution

    Choices. From the paper (ICML 2026, eq. 2 to 4, 9, 10, appendices A.1 and A.10); there is no code. It does not state
    tau: 1 is ours (`reward.add.plan_success.temperature`; `reward.add.plan_success.function: plan_success` pays the
    mean s itself). Left out: 0.2 for a response that follows the template, which is the task's (`reward`), and the term
    for length, alpha exp(-| |o| - T | / (T_max - T)) with T the shortest right response, whose alpha it does not state.
    The first stage, which fine-tunes on plans distilled from a larger model, is a warm start and not built. The
    executions of a plan share its tokens, which are trained with the sum of their credits; there each pair is a
    response by itself, which is the same. On prompts a plan is the first stretch of the answer, unless the templates
    ask for it in words; in an environment it is the sub-goals that an executor acts under.
    """,
    cite="dou2025ptagrpo",
    evidence="paper",
    keys={
        "rollout": "planned",
        "rollout.plans": 4,
        "rollout.executions": 3,
        "reward.add.plan_success": "shape",
        "reward.add.plan_success.function": "plan_softmax",
        "credit.ddof": 0,
    },
    cost="none beyond the base's attempts: a plan is sampled once for its executions",
)

thor = Definition(
    r"""THOR: episode-level GRPO, step-level GRPO on regenerated failing tool calls, and imitation of positive tokens.

    L = L_episodes + L_steps + 0.01 mean_{t: A_t > 0} -log pi(t)
    steps: an episode's failing call, cut before the call, is sampled again n times;
      r_j = 1 where it can be carried out,
    A_j = (r_j - mean) / (std + eps) over the n, on the regenerated tokens

    Choices. As the code: the groups of steps are a batch with the episodes, so both are in one mean; the cut drops the
    last 100 tokens of the failing action. Not followed: the prefix is not tokenised again; where no call failed there
    is no second group (the code takes one random episode); n is 8, the code's 16, with its clip of 0.28, dual clip 3
    and token mean, is `thor@paper`. A failing call is an action that the environment calls malformed or illegal; the
    first of an episode is taken. The paper's correction of failed calls at inference is no training and is left out.
    """,
    cite="chang2025thor",
    evidence="reference-code",
    code="JingMog/THOR@eeabad026970a96fb20851a1e89d3a1509590ac2 verl/workers/actor/dp_actor.py "
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py run_code_grpo.sh",
    keys={"rollout": "regenerate", "objective.add.positive": "positive_likelihood"},
    paper_defaults={
        "rollout.group_size": 16,
        "rollout.samples": 16,
        "objective.surrogate": "dual_clip",
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
    },
    cost="`samples` more actions for as many failed episodes as there are tasks",
)

step_grpo_router = Definition(
    r"""Step-GRPO (R1-Router): single-step GRPO behind an expert's history, with a reward for each kind of step.

    rows (question, expert's history up to step t); G samples of the next step;  A = z within (question, t)
    r = 0.5 cos(query, the expert's) + 0.5 [the same source alone is called]    on a step that calls a source
    r = recall of the expert's answer, 1 or 0 where that is short              on the last step

    Choices. As the code, but for the cosine: there of sentence embeddings, here of word counts. A source is the name of
    what is called (a tool, a verb of the world), a query its argument; one step of an expert's way is drawn for each
    task (`rollout.steps: 0` takes them all), where the paper's data set lists all. Histories are the expert's, so the
    policy never acts on what it did itself: no credit goes from step to step, and nothing is off-policy in the loss.
    """,
    cite="peng2025stepgrporouter",
    evidence="reference-code",
    code="OpenBMB/R1-Router@c0a0c1ba3480c0a9832cf85cf6f3e085a31d2b7e Easy-R1/verl/utils/reward_score/step.py",
    keys={"rollout": "expert_steps", "reward.shape.agreement": "agreement"},
    cost="one action a sample, where an episode has many; needs an expert",
)
