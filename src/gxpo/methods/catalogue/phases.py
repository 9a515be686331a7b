"""Methods of several phases, each with a method of its own."""

from gxpo.parts.definition import Definition

_ITOOL_IMITATE = {
    "credit.center": "none",
    "credit.scale": "none",
    "objective": "positive_likelihood",
    "objective.coef": 1.0,
    "objective.threshold": 0.99,
}
_ITOOL_PAIRS = {
    "rollout": "search",
    "rollout.width": 3,
    "rollout.values": "mean",
    "rollout.backup": "all",
    "rollout.resume_at": "root",
    "rollout.group_unit": "siblings",
    "objective.beta": 2.5,
    "objective.pairs": "outcome",
    "objective.min_gap": 0.1,
}

itool = Definition(
    r"""iTool: rounds of tree search on the policy's own tasks, and SimPO on the pairs that its nodes give.

    warm-up: mean over tokens of right attempts of -log policy
    repeat: a tree by MCTS, 3 steps from a node; SimPO, beta 2.5, gamma 0.5, on (best, worst) child of every node whose
      q differ by 0.1 and more

    Choices. From the authors' code, for what repeats: it draws the 30 % of the data that the policy finds hardest, by
    the perplexity of the given answers, searches for 5 iterations, 3 steps deep, at temperature 1.5, and trains on
    pairs from all nodes. Here all tasks are searched (`tasks.sampler: keep_hardest`, `tasks.sampler.shares: [0.3]`
    leaves those of the lowest success rates), and attempts go on to their ends, whose verdicts +-1 make a node's q, a
    mean; there a value is a sum of scores: of a call's form (+-.1), of the words that it shares with the right one, and
    of the policy's own mark. Left out: pairs whose texts share over 95 % of their words, or whose better value is below
    -.3. The warm-up is not in that code: in the paper it is supervised, from easy to hard data; here the policy
    imitates those of its attempts whose outcome is 1 and more (`rollout: logged` reads a data set). Outcomes are the
    run's reward: `reward.step.matched_calls` and the matching rewards grade a call by name, arguments and values.
    """,
    cite="zeng2025itool",
    evidence="reference-code",
    code="zeng-yirong/iTool@871eceb4d4cdec56139fbb450f21ab01250b7aa3 mcts/main.py mcts/mcts_vllm.py mcts/utils.py "
    "mcts/run_mcts_dpo.sh mcts/dpo_train.py",
    keys={
        "phases": [{"method": "grpo", **_ITOOL_IMITATE}, {"repeat": 2, "phases": [{"method": "simpo", **_ITOOL_PAIRS}]}]
    },
    cost="a tree of attempts for each task",
)

_STEP_FILTER_FILTERED = {
    "rollout": "logged",
    "rollout.file": "previous",
    "credit": "constant_advantage",
    "credit.origin": "logged",
    "objective.surrogate": "log_likelihood",
    "signal.step_judge": "step_judge",
    "weight.steps": "token_weight",
    "weight.steps.score": "segment_score",
    "weight.steps.curve": "between",
    "weight.steps.low": 0.5 + 1e-9,
}

step_filter = Definition(
    r"""Step-level filtering (WebSTAR): imitation of the steps that a judge finds right, of rollouts that were made
    before.

    phase 1 samples;   phase 2: L = -mean log pi(a_s) over the steps s with score above 0.5, of all attempts,
      right or wrong

    Choices. The authors' code (yifei-he/WebSTAR@f4a4bd2fa5f9 step_eval) grades the steps of another model's rollouts,
    by a judge from 0 to 10 where 5 is borderline and more is right; the filter above 5 and the training are not in it.
    Here phase 1 (GRPO) makes the rollouts, and a file of records takes its place as `rollout.file` of one phase. The
    scorer is a setting, `signal.step_judge.score=prm.py:score`, a judge, or a server, from 0 to 1. A step without a
    score is left out. Its rewritten reasoning, of the same judge beside its grades, is not built. The advantage is 1
    throughout: the verdict of the attempt is not read, as there without `--correct-only`.
    """,
    cite="he2025stepfilter",
    evidence="secondary",
    keys={"phases": [{"method": "grpo"}, {"method": "grpo", **_STEP_FILTER_FILTERED}], "trainer.rollouts_every": 1},
    cost="a score for every step, by a model or a judge of your choice",
)

mobile_r1 = Definition(
    r"""Mobile-R1: GRPO on single actions at an expert's states, then GRPO on whole episodes.

    phase 1: r = [the action leads where the expert's leads] + [it could be read],
      one action at a state of the expert's way
    phase 2: r = the world's verdict on an episode;   A, L as in GRPO in both

    Choices. From the abstract and reviews: no code was found. There an action is right where a click is within the
    expert's box, or what is typed is the same: both lead to one state here. The paper's judge of whole trajectories, a
    large model, is the world's verdict, and its format reward of trajectories is left out, as is fine-tuning on
    annotated actions before. Both phases share `trainer.steps` equally. Stand-in: `task: buttons`, toy screens, no
    phone and no history.
    """,
    cite="gu2025mobiler1",
    evidence="secondary",
    keys={
        "phases": [
            {
                "method": "grpo",
                "rollout": "expert_steps",
                "rollout.match_on": "state",
                "reward.shape.noted": "shape",
                "reward.shape.noted.function": "noted",
                "reward.shape.noted.weights": {"format": 1.0},
            },
            {"method": "grpo"},
        ]
    },
    cost="needs an expert",
)

_UAV_VL_R1_STAGES = (["colour"], ["count", "same"], ["row", "column"])

uav_vl_r1 = Definition(
    r"""UAV-VL-R1: GRPO in stages by kind of question: attributes, then objects, then space.

    stage k: GRPO on questions of kind k, r = [right] + [well-formed], from the policy of stage k - 1

    Choices. From the abstract and summaries: the repository that it names (Leke-G/UAV-VL-R1) could not be had. The
    stages are those of `shapes`: `colour`; `count`, `same`; `row`, `column`. Other tasks state `phases` of their own,
    as `{method: grpo, tasks.options.questions: [...]}` or each with its `task`. Stages share `trainer.steps` equally;
    the reference of a KL is `start` there. What is well-formed is the task's component "format". Stand-in: coloured
    squares, no aerial pictures, and no fine-tuning on worked reasoning before.
    """,
    cite="guan2025uavvlr1",
    evidence="secondary",
    keys={
        "scoring.weights": {"correct": 1.0, "format": 1.0},
        "phases": [{"method": "grpo", "tasks.options.questions": kinds} for kinds in _UAV_VL_R1_STAGES],
    },
)
