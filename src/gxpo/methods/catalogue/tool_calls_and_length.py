"""Methods that pay for economy: fewer tool calls, shorter answers, and features of a text."""

from gxpo.parts.definition import Definition

# economy of tool calls
otc = Definition(
    r"""OTC: the reward of a right answer times the economy of its tool calls.

    r = r_outcome sin(pi m / (m + n)), or r_outcome cos(pi m / (2 m + c)) where n = 0;
      m calls, n the fewest of any right attempt at the task so far, c 4

    Choices. OTC-GRPO, eqs. 6 and 7 of the paper (arXiv 2504.14870v2) with its alpha 1; no training code is public. c is
    the most calls that are allowed, 4 in its search and 3 in its code runs: `reward.shape.tool_calls.smooth`. n is
    remembered over steps, as its global approximation is, in the checkpoint; it is lowered by a step's own right
    attempts before they are scored: fewer calls than n would be punished else. Wrong attempts keep their reward, 0; a
    reward for form, which the paper's product would scale too, is not scaled. Needs an environment that notes the calls
    of turns, as toolqa, or `count: turns`.
    """,
    cite="wang2025otc",
    evidence="paper",
    keys={"reward.shape.tool_calls": "tool_calls", "reward.shape.tool_calls.smooth": 4.0},
)

hdpo = Definition(
    r"""HDPO: tool economy as a channel of its own, compared among right attempts alone.

    A = z_g(r_outcome) + 0.15 z_{g, right}(1 / (T + 1));
      T calls, z over the group, or over its right members (0 for the others, and where a single one is right)

    Choices. As the code: any right attempt qualifies, also one without calls (a docstring asks for a call); eps 1e-6.
    Other components of the reward have weight 1, each normalised by itself; the code weighs answer .9 and format .1 in
    one. The code adds two clipped losses, the second as a mean over qualifying attempts, which weighs their economy
    more where few qualify; here the two advantages are added in one loss. The metric `reward_mean` is of outcomes, in
    which 1 / (T + 1) has weight 1: its 0.15 is the advantage's (`credit.weights`). Needs a world whose turns note
    calls: toolqa, zoom.
    """,
    cite="yan2026hdpo",
    evidence="reference-code",
    code="Accio-Lab/Metis@84fd45e72aa4e4c578cedaa4b8434d524451ba96 verl_tool/trainer/ppo/hdpo_algos.py "
    "verl_tool/workers/reward_manager/metis.py",
    keys={
        "credit": "decoupled",
        "credit.batch_unit": "none",
        "credit.eps": 1e-6,
        "credit.weights": {"*": 1.0, "tool_calls": 0.15},
        "credit.conditions": {"tool_calls": "success"},
        "reward.add.tool_calls": "tool_calls",
        "reward.add.tool_calls.shape": "inverse",
        "reward.add.tool_calls.reference": "group_min",
        "reward.add.tool_calls.scales": False,
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 1e-6, "tasks.per_step": 128},
)

tool_star = Definition(
    r"""Tool-Star: a bonus for right answers found with several tools, and a penalty for actions that can't be read.

    r += 0.1 [right and at least two tools called] - [some action malformed]

    Choices. In the code an answer is right where its F1 is above 0, -1 takes the place of the reward where the format
    is wrong, and the strings of two named tools count, executed or not; here the verdict decides, the penalty is added,
    and calls that the environment was given count. The second stage, DPO on pairs that the policy ranks by this reward,
    is not part of it: `gxpo methods dpo`. Needs an environment that notes the calls of turns, as toolqa.
    """,
    cite="dong2025toolstar",
    evidence="reference-code",
    code="dongguanting/Tool-Star@d12222c7e54a63a5c0a266eb72170e4f22c526ef "
    "Tool_Star_RL/src/verl/verl/utils/reward_score/re_search.py",
    keys={
        "reward.add.tools": "feature",
        "reward.add.tools.feature": "several_tools",
        "reward.add.tools.coef": 0.1,
        "reward.add.tools.answers": "correct",
        "reward.add.unread": "feature",
        "reward.add.unread.feature": "malformed",
        "reward.add.unread.coef": -1.0,
    },
)

# length of thoughts and answers
ton = Definition(
    r"""TON: a format reward that an empty thought satisfies, so that the policy may learn not to think.

    r += [the attempt is <think>...</think><answer>...</answer>, the thought may be empty]

    Choices. The half that is a reward. The other half comes before: fine-tuning on examples whose thought is emptied
    with probability 0.5, without which an empty thought is hardly ever sampled; it is no part of this library. What
    then favours short attempts is `sequence_mean`, under which a token of a short one weighs more: there is no term of
    length.
    """,
    cite="wang2025ton",
    evidence="reference-code",
    code="kokolerk/TON@22102c281b004cd1c286c368c578ced5b37c4572 src/r1-v/src/open_r1/grpo.py",
    keys={
        "reward.add.thought": "feature",
        "reward.add.thought.pattern": r"\A<think>.*?</think>\s*<answer>.*?</answer>\Z",
    },
)

conciser = Definition(
    r"""ConciseR: length is charged only in groups in which every attempt is right.

    r = 1 + (1 - |o| / L_max) in a group that is all right;   r = [right] in the others

    Choices. The second of its two stages; the first is GRPO with a raised clip, dynamic sampling and an entropy bonus
    (`from_run` begins from it). Its code is a README, the formula that of summaries. The 1 in the parentheses is the
    same for a group and left out. A filter that drops all-right groups (dynamic sampling) would leave nothing. Divided
    by the group's deviation, a difference of a few tokens has the full scale: `credit.scale: none` keeps it small.
    """,
    cite="song2025conciser",
    evidence="secondary",
    keys={
        "reward.add.length": "length",
        "reward.add.length.coef": 1.0,
        "reward.add.length.answers": "all_right_groups",
        "objective.aggregate": "token_mean",
    },
)

lc_r1 = Definition(
    r"""LC-R1: shorter than the group's longest right answer, and a reward at the end of the thought for stopping in
    time.

    A = R - mean_g R,   R = r_outcome - |o| / max_right |o|;   at </think> of a right answer A += 1 - l / L, or A -= 1
    l of the thought's L tokens run up to the first statement of the answer; where it states none, the penalty

    Choices. As the code, length counts for every answer of a group with a right one (the paper: for right ones); reward
    2 of format and accuracy is the verdict here. The code cuts what follows the statement out of the thought and trains
    on the rest, under log-probs computed anew; here nothing is cut: what was sampled is trained. Its extractor is a
    trained model; here the first place where the answer stands as a word (`signal.valid_thinking.extract`: a function
    of yours). Without </think> in an attempt the second term is 0 (`segment.patterns`, `signal.valid_thinking.close`:
    another end). Its script leaves TRL's token mean and KL of 0.04 as they are: `lc_r1@paper`.
    """,
    cite="cheng2025lcr1",
    evidence="reference-code",
    code="zxiangx/LC-R1@f7333a92b7776a1a4889dd75a11455f23e70b06b trl/trainer/grpo_trainer.py scripts/train.py "
    "trl/trainer/grpo_config.py",
    keys={
        "credit": "relative",
        "credit.scale": "none",
        "credit.add.compress": "bonus",
        "credit.add.compress.value": "valid_thinking",
        "credit.add.compress.position": "labelled",
        "signal.valid_thinking": "valid_thinking",
        "segment": "spans",
        "segment.patterns": ("</think>",),
        "reward.add.length": "length",
        "reward.add.length.coef": 1.0,
        "reward.add.length.scale": "longest",
        "reward.add.length.answers": "all",
    },
    paper_defaults={
        "rollout.group_size": 6,
        "objective.aggregate": "token_mean",
        "objective.kl.coef": 0.04,
        "optim.lr": 3e-6,
        "optim.max_grad_norm": 0.1,
    },
)

length_curriculum = Definition(
    r"""Train Long, Think Short: a triangular reward around a budget of tokens that falls over the run.

    r = 0.6 r_outcome + 0.3 R_len;   R_len = |o| / B up to B, 1 - (|o| - B) / B up to 2 B, 0 beyond
    B = 256 gamma^floor(t / 150), gamma = 0.7, four budgets over 600 steps: 256, 179.2, 125.44, 87.808

    Choices. The paper's correctness-heavy weights; its format reward (0.1) and the budget in the prompt are left out: a
    prompt can't follow the schedule here. The outcome keeps weight 1 and length has 0.5: their quotient, which is all
    that the group's deviation leaves. The length term is paid to wrong answers, too: below the budget LONGER ones earn
    more (`reward.add.length.answers: correct`). Its own ablations favour a linear schedule. Set the two ends to your
    own lengths.
    """,
    cite="hammoud2025lengthcurriculum",
    evidence="paper",
    keys={
        "reward.add.length": "length",
        "reward.add.length.coef": 0.5,
        "reward.add.length.answers": "all",
        "reward.add.length.shape": "triangle",
        "reward.add.length.budget": {"schedule": "geometric", "from": 256.0, "to": 87.808, "over": 450, "every": 150},
    },
    paper_defaults={"trainer.steps": 600},
)

rlsp = Definition(
    r"""RLSP, a trap: a bonus for length that diverges at short answers, so that a long wrong one beats a short right
    one.

    r += -1000 / |o| - 0.5 [no \boxed{}]

    A right answer of 100 tokens has -9, one of 1,000 has 0, a wrong one of 4,000 has -0.25: kept to be recognised, not
    to be used. Compared within a group, what is rewarded is length until answers are long.

    Choices. The code's `orm_server` with --length_penalty 1000; there |o| are the tokens before the box, and exceptions
    score 0. Its second signal, a language model's judgement of the effort, is left out.
    """,
    cite="ye2025rlsp",
    evidence="reference-code",
    code="GuanghaoYe/Emergence-of-Thinking@a36ba6c8dc95f1e082d8d5a38cfcdb6357c1cde9 openrlhf/cli/orm_server.py",
    keys={
        "reward.add.length": "length",
        "reward.add.length.shape": "inverse",
        "reward.add.length.coef": 1000.0,
        "reward.add.length.answers": "all",
        "reward.add.unboxed": "feature",
        "reward.add.unboxed.pattern": r"\A(?!.*boxed\{)",
        "reward.add.unboxed.coef": -0.5,
    },
)

# features of the reasoning
fapo = Definition(
    r"""FAPO: a right answer whose reasoning is flawed earns less than a sound one, and more than a wrong one.

    r = 1 right, -1 wrong, and right but flawed 1 - lambda = 0

    Early, where most are wrong, the flawed answer is above the group's mean and is learned; later it is below.

    Choices. As the code: lambda 1. "flaw" is a component of weight 0, 1 where a judge finds an error (`scoring.weights:
    {correct: 1, flaw: 0}` and a reward of that name); the paper trains a generative reward model for it. A reward of
    yours is asked about every attempt, wrong and held-out ones too, which the code's judge is not; gxpo's judge leaves
    wrong ones out with `scoring.options.judge.answers: correct` (and `reward.add.flawed.component: judge`, with a
    rubric that scores a flaw as 1, `low: 0` and `high: 1`). Where the judge gives nothing, the code takes the answer
    for sound; here it is unscored. The token mean and clip of its scripts are `fapo@paper`; their overlong penalty,
    whose lengths are the run's, is `reward.add.overlong`, and no part of it. `max_success` switches the penalty off in
    groups of more right answers than that share, and is not the paper's. Filter on the shaped reward.
    """,
    cite="ding2025fapo",
    evidence="reference-code",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3 fapo/reward_fn_reasoning.py "
    "fapo/run_fapo_7b.sh",
    keys={
        "reward.shape.signed": "shape",
        "reward.add.flawed": "feature",
        "reward.add.flawed.feature": "component",
        "reward.add.flawed.component": "flaw",
        "reward.add.flawed.coef": -1.0,
        "reward.add.flawed.answers": "correct",
    },
    paper_defaults={
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "tasks.per_step": 512,
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
    cost="a judgement of every right answer, of every attempt where a reward of yours judges",
)

gcpo_geometry = Definition(
    r"""GCPO of GeometryZero: a construction is rewarded where attempts with one are right more often, else punished.

    r += 0.5 M [constructs];   M = sign(p_with - p_without) over the group's attempts,
      0 where they differ by eps at most

    Choices. From a summary and public reviews: weights and eps are not given there; 0.5 and 0 are ours. The paper
    compares two groups, sampled with and without an instruction to construct; here the attempts of one group that do
    and that do not. A construction is <aux>...</aux> in the text: `reward.add.constructs.pattern`. Its reward for long
    answers is left out. With 4 attempts of each kind one verdict moves the gap by 0.25. Another GCPO is `gcpo_gold`.
    """,
    cite="wang2025gcpogeometry",
    evidence="secondary",
    keys={
        "reward.add.constructs": "feature",
        "reward.add.constructs.pattern": r"<aux>.*</aux>",
        "reward.add.constructs.sign": "contrast",
        "reward.add.constructs.coef": 0.5,
    },
)

pm4grpo = Definition(
    r"""PM4GRPO: a reward for a reasoning whose steps conform with a teacher's, by process mining; GSPO without std.

    r = r_format + r_answer + 2 f p / (f + p);   A = r - mean_g r;   s_i = exp(mean_t log rho), clipped
    f, p: fitness and precision of the teacher's events on the process that is mined from the attempt's events

    Choices. As the code, the attempt is mined and the teacher replayed (the abstract has it the other way round). The
    process is the graph of which event follows which (`replayed`); that of the code, by pm4py's inductive miner and
    alignments, is `scoring.options: {conformance: {miner: inductive}}` (`pm4grpo@paper`), which needs pm4py, under
    AGPL-3.0; earlier versions of the code paid 0.7 F1 + 0.3 fitness. What is mined is what precedes `</think>`, or the
    whole attempt without one (`scoring.options.conformance.thought`). A language model turns texts into events
    there; here a regular expression does, the first word of each line by default
    (`scoring.options.conformance.pattern`): the teacher's events are the task's `events`, or those of its
    `solution`. An attempt that permits any order has fitness 1; precision alone stops that. No events: 0. Bounds as
    GSPO's; its own are not in the code.
    """,
    cite="park2025pm4grpo",
    evidence="reference-code",
    code="Thrillcrazyer/THIP@dcc193a4ad8f2a0106506fd5de8efd52ba9fd933 reward/reward_func.py pm/checker.py pm/miner.py",
    keys={
        "scoring.weights": {"correct": 1.0, "format": 1.0, "conformance": 1.0},
        "credit.scale": "none",
        "objective.ratio": "sequence",
        "objective.clip_low": 3e-4,
        "objective.clip_high": 4e-4,
    },
    paper_defaults={"scoring.options": {"conformance": {"miner": "inductive"}}},
    cost="with `miner: inductive` an alignment of every attempt with the reference, in milliseconds to seconds",
)
