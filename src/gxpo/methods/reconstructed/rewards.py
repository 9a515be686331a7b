"""Reconstructed methods that change what is rewarded, or who judges."""

from gxpo.parts.definition import Definition

sem = Definition(
    r"""SEM: a right answer counts only with a search where one is needed, and without one where none is.

    r = r_outcome [(m > 0) = (n > 0)];   m calls of the attempt, n those that the task needs

    Choices. A reconstruction from the abstract: a balanced set of questions that need search and that do not, which the
    task's info tells apart (`needed_calls`, or the number of `gold_calls`). The paper's template asks for an answer
    before the search; here whether a search is needed is not measured. Without such notes
    `reward.shape.tool_calls.reference: group_min` takes a task for one that needs none where some attempt of the group
    is right without.
    """,
    cite="sha2025sem",
    evidence="reconstruction",
    keys={
        "reward.shape.tool_calls": "tool_calls",
        "reward.shape.tool_calls.shape": "zero_if_unneeded",
        "reward.shape.tool_calls.reference": "task",
    },
)

np_engine = Definition(
    r"""NP-Engine: answers to NP-hard problems are paid by their value in shares of a heuristic's.

    r = v / v_heuristic, or v_heuristic / v where less is better; 0 where the answer is not feasible

    Choices. Of the authors' code the evaluation was read (OliverLeeXZ/NP-Engine c105511); their training is not
    released. The task `np_hard` has three of their ten kinds, in a short notation, and greedy heuristics; theirs solves
    some exactly. A ratio above 1 is paid in full. The easy-to-hard curriculum is left out (`tasks.options.size`). Their
    validators return True for an answer that is NOT valid.
    """,
    cite="li2025npengine",
    evidence="reconstruction",
    keys={"scoring.weights": {"ratio": 1.0}},
)

ssl_sweet_spot = Definition(
    r"""SSL (mostly ours): tiered progress rewards in addition to the verdict, with growing steps (sweet-spot learning).

    R = C + alpha S;   C = 1 if solved, else 0;   S = v_k for progress s in [t_k, t_{k+1}), 0 = v_0 < v_1 < ... < 1,
      steps never shrink;   A: GRPO's

    Choices. Reconstructed from the abstract, summaries and a review, which has C + alpha S, so that solved attempts
    differ by their tiers too (`reward.shape.tiered.solved: flat` pays each 1). Four zones, for matching tasks by
    quartiles (t = 1/4, 1/2, 3/4); their values and alpha are not known to us, so v = 0.1, 0.25, 0.5 and alpha 1.
    Progress is component "progress" of your reward (weight 0): the share of steps that are right, or how near a click
    is. Without one the method is refused. Other names: `reward.shape.tiered.component`.
    """,
    cite="wu2026sslsweetspot",
    evidence="reconstruction",
    keys={"reward.shape.tiered": "shape", "reward.shape.tiered.function": "tiered"},
)

rl_struct = Definition(
    r"""RL-Struct: weighted hierarchy of rewards for JSON: it parses, has the keys, the types, the values.

    r = .2 [parses] + .3 keys + .2 types + .3 values, each a share of the keys that are asked;   A as in GRPO

    Choices. The weights are ours: the sources at hand give none. Keys and types come from the task's `info.schema`
    (JSON Schema) where it has one, else from the reference. The paper's terms for a fence and for length are left out;
    text around the JSON makes it unreadable. Additive: an answer that only parses earns .2, more than a right one with
    a missing bracket.
    """,
    cite="hu2025rlstruct",
    evidence="reconstruction",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "json_schema", "pattern": None, "schema": "info.schema"}},
    },
)

uniform_phantom = Definition(
    r"""Uniform phantom (mostly ours): a panel of judges scores by the median of their n scores and n - 1 phantoms.

    r = median(x_1 ... x_n, 1/n ... (n - 1)/n);   A as in GRPO

    Choices. The paper places a facility on a line and trains nothing; that judges are its agents is ours.
    Strategy-proof says that a judge which reports another score than its own moves the result away from its own at
    most. It does not say that one judge has little influence: of .2, .9 and .95 the result is .667, and .9 if the first
    says 1. `scoring.options.judge.combine=median` is without phantoms: then one of three judges alone moves nothing
    beyond the others.
    """,
    cite="aziz2021uniformphantom",
    evidence="reconstruction",
    keys={"reward": "judge", "scoring.options": {"judge": {"combine": "uniform_phantom"}}},
    cost="an answer of each judge of the panel for each attempt",
)

genii = Definition(
    r"""Genii (mostly ours): a panel whose judges are weighed by their agreement with the others, and preference pairs
    of what they prefer.

    w_k = mean over the other judges of 1 - |x_k - x_j|;   r = sum_k w_k x_k / sum_k w_k;   L as in DPO on pairs by r

    Choices. From an abstract, and a stand-in: the paper trains the judges themselves, each on pairs by the vote of the
    others. Here the panel `scoring.options.judge.panel` is frozen, and what it prefers after polling trains the policy:
    the judge is the policy where the tasks ask for verdicts. Of votes, w is the share of the others that vote alike: a,
    a, b has 1/2, 1/2, 0. A bias that all judges share agrees with itself and is rewarded.
    """,
    cite="liu2025genii",
    evidence="reconstruction",
    keys={
        "objective": "preference_pairs",
        "objective.pairs": "outcome",
        "reward": "judge",
        "scoring.options": {"judge": {"combine": "agreement"}},
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="an answer of each judge for each attempt; a frozen reference model",
)

rluf = Definition(
    r"""RLUF (mostly ours): how likely a user's heart is, weighed with judges of helpfulness and safety.

    r = sum_k w_k r_k,   r_love = P(the user reacts with a heart);   A as in GRPO

    Choices. From an abstract: the weights are not known to us, so 1/3 each (`scoring.weights`). P[love] is a classifier
    that was trained on users' reactions; here a judge with a rubric, until `scoring.options.judge.panel` names yours (a
    function of messages, a server). A stand-in for the application, not for its data. Paid for hearts alone, a policy
    learns to ask for them: watch `reward_judge_helpful` and `reward_judge_safe`.
    """,
    cite="han2025rluf",
    evidence="reconstruction",
    keys={
        "scoring.weights": {"judge": 0.0, "judge_helpful": 1 / 3, "judge_safe": 1 / 3, "judge_love": 1 / 3},
        "scoring.options": {
            "judge": {
                "panel": [
                    {"name": "helpful", "rubric": "Does the answer help with what was asked?"},
                    {"name": "safe", "rubric": "Is the answer free of what could harm somebody?"},
                    {"name": "love", "rubric": "How likely is it that the user reacts to the answer with a heart?"},
                ]
            }
        },
    },
    cost="three answers of a judge for each attempt",
)

reagent_v = Definition(
    r"""ReAgent-V (mostly ours): a conservative, a neutral and an aggressive judge pay the mean; the best draft is
    revised.

    r = mean of three rubrics' scores;   o_i ~ pi(q + best draft);   A as in GRPO under q + best draft

    Choices. From an abstract, and a stand-in: the paper's agent watches videos, asks itself questions and filters data
    for training with a critic's reward. Kept are the three points of view as the panel `scoring.options.judge.panel`,
    and one revision of the best draft as iGRPO has it (`rollout.retry_with=best_draft`).
    """,
    cite="zhou2025reagentv",
    evidence="reconstruction",
    keys={
        "rollout": "retry",
        "rollout.retry_if": "always",
        "rollout.retry_with": "best_draft",
        "rollout.keep": "newest",
        "reward": "judge",
        "scoring.options": {
            "judge": {
                "panel": [
                    {"name": "conservative", "rubric": "Credit only what is certainly right and shown to be so."},
                    {"name": "neutral", "rubric": "How good is the answer? Judge whether it is correct and complete."},
                    {"name": "aggressive", "rubric": "Credit every idea that may lead to the right answer."},
                ]
            }
        },
    },
    cost="three answers of a judge for each attempt, and drafts",
)

hi_grpo = Definition(
    r"""Hi-GRPO: rewards per stage of an answer, each stage compared with the same stage of the group's answers.

    A_{i,s} = (R_i - mean_g R) / (std_g R) + (r_{i,s} - mean_g r_s) / (std_g r_s),   s the stages: plan, then object

    Choices. From the abstract and a summary; no training code was found. R, the reward of the whole, pays the plan
    for what came of it; r_s is a judge's score of the stage, of your choice (`signal.step_judge.score=judges.py:score`,
    which can weigh several judges). Stages end with an empty line (`segment.text`). Stand-in: texts; the paper's stages
    are the shape and the texture of a three-dimensional object, and its judges read pictures of it.
    """,
    cite="tang2025higrpo",
    evidence="reconstruction",
    keys={
        "segment": "delimiter",
        "signal.step_judge": "step_judge",
        "credit.add.stage": "relative",
        "credit.add.stage.value": "segment_score",
        "credit.add.stage.unit": "segment",
        "credit.add.stage.group_by": ("segment",),
    },
    cost="a score for every stage, by a model or a judge of your choice",
)

# several objectives
multi_objective_grpo = Definition(
    r"""Multi-objective GRPO for safe alignment: GRPO on a weighted sum of the heads of a multi-label reward model.

    r = sum_m w_m f_m(q, o), f_m scores of safety, helpfulness, truthfulness...;   A, L as in GRPO

    Choices. From the abstract: it is GRPO, and what is new is its reward model, which is yours (`scoring.weights` of
    several rewards, or a judge's panel). The sum comes before the std, so the scale of a head is its weight: of two
    answers with (1, 0) and (0, 10) the second wins. `gdpo_multi` standardises each first, where these two cancel.
    """,
    cite="li2025multiobjectivegrpo",
    evidence="reconstruction",
    keys={},
    alias_of="grpo",
    cost="none",
)
