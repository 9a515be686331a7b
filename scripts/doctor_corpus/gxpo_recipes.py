"""Recipes of the gxpo half of the doctor's corpus: settings of real runs of the tiny model, sick as in real life or not.

A recipe is a short configuration, with, where the cause is code, a reward file, a data file or a hook on the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """One run.

    name    never written into the run's directory
    kind    sick, healthy, or mild (at most a warning)
    expect  ids any of which is right as the first finding; for a mild run, ids that may be warned of
    set     settings over `BASE`
    reward  body of reward.py, which has a function `score`
    data    name of a function of `gxpo_runs` that writes data.jsonl
    hook    name of a function of `gxpo_runs` that changes the trainer
    policy  which of the prepared policies it starts from; None: `model` says it
    cause   what is wrong, for truth.json
    """

    name: str
    kind: str
    expect: tuple[str, ...]
    set: dict[str, Any] = field(default_factory=dict)
    reward: str | None = None
    data: str | None = None
    hook: str | None = None
    policy: str | None = None
    cause: str = ""


BASE: dict[str, Any] = {
    "model": "tiny",
    "task": "arithmetic",
    "method": "grpo",
    "tasks.per_step": 16,
    "rollout.group_size": 8,
    "sampling.max_new_tokens": 24,
    "optim.lr": 1e-4,
    "trainer.steps": 45,
    "trainer.checkpoint_every": 0,
    "trainer.rollouts_every": 5,
    "eval.every": 15,
    "eval.tasks": 100,
}

NUMBER = """import re


def result(completion):
    found = re.findall(r"#(\\d+)", completion)
    return found[-1] if found else None


"""
DATA = {"task": "data.jsonl", "tasks.options": {"held_out_fraction": 0.1}}


def _sick(name: str, *expect: str, cause: str, **more: Any) -> Recipe:
    return Recipe(name, "sick", expect, cause=cause, **more)


SICK = [
    _sick(
        "four digits",
        "all_wrong",
        "truncation",
        set={"tasks.options": {"digits": 4}, "sampling.max_new_tokens": 48},
        cause="sums of four digits, policy knows two",
    ),
    _sick(
        "products",
        "all_wrong",
        set={"tasks.options": {"operations": "*"}, "sampling.max_new_tokens": 40},
        cause="the policy has never seen a product",
    ),
    _sick(
        "mastered",
        "all_right",
        policy="master",
        data="sums",
        set=DATA,
        reward=NUMBER
        + """def score(completion, answer):
    return float(result(completion) == answer)
""",
        cause="the policy knew the task before the run",
    ),
    _sick(
        "cached by prompt",
        "reward_ignores_completion",
        reward=NUMBER
        + """CACHE = {}


def score(prompt, completion, answer):
    if prompt not in CACHE:
        CACHE[prompt] = float(result(completion) == answer)
    return CACHE[prompt]
""",
        cause="verdicts are cached under the prompt alone",
    ),
    _sick(
        "reads the question",
        "reward_ignores_completion",
        reward="""def score(prompt, completion, answer):
    text = f"{prompt}{answer}"
    return len(set(text)) / 10
""",
        cause="the scorer reads question and reference, not the completion",
    ),
    _sick("rate 1e-2", "lr_too_high", set={"optim.lr": 1e-2}, cause="learning rate 100 times too high"),
    _sick(
        "rate 2e-3",
        "lr_too_high",
        set={"optim.lr": 3e-3, "optim.max_grad_norm": 0.0},
        cause="learning rate 30 times too high, no gradient clipping",
    ),
    _sick("rate 1e-8", "lr_too_low", set={"optim.lr": 1e-8}, cause="learning rate 10^4 times too low"),
    _sick(
        "endless warm-up",
        "lr_too_low",
        set={"optim.warmup_steps": 20000},
        cause="warm-up of 20000 steps in a run of 45",
    ),
    _sick(
        "bfloat16 rounding",
        "weights_do_not_move",
        "lr_too_low",
        set={"learner.dtype": "bfloat16", "optim.lr": 1e-7},
        cause="updates below what bfloat16 weights show",
    ),
    _sick(
        "optimiser elsewhere",
        "weights_do_not_move",
        hook="optimiser_elsewhere",
        cause="the optimiser moves a copy of the parameters",
    ),
    _sick(
        "clipped to nothing",
        "weights_do_not_move",
        "lr_too_low",
        set={"optim.max_grad_norm": 1e-9},
        cause="max_grad_norm 1e-9, below AdamW's eps",
    ),
    _sick(
        "limit 17",
        "truncation",
        set={"sampling.max_new_tokens": 17},
        cause="limit below the length of answers with a carry",
    ),
    _sick(
        "limit 12", "truncation", set={"sampling.max_new_tokens": 12}, cause="limit below the length of every answer"
    ),
    _sick("top_k 1", "no_diversity", set={"sampling.top_k": 1}, cause="top_k 1"),
    _sick(
        "one seed a group",
        "no_diversity",
        hook="one_stream_a_group",
        cause="all rollouts of a group are drawn with one seed",
    ),
    _sick("cold", "no_diversity", set={"sampling.temperature": 0.05}, cause="temperature 0.05"),
    _sick(
        "paid by length",
        "length_hack",
        set={"sampling.max_new_tokens": 64},
        reward=NUMBER
        + """def score(completion, answer):
    thorough = min(len(completion) / 60, 1.0)
    return {"correct": float(result(completion) == answer), "thorough": 2 * thorough}
""",
        cause="longer is paid, twice as much as right",
    ),
    _sick(
        "paid to be brief",
        "length_collapse",
        "component_dominates",
        reward=NUMBER
        + """def score(completion, answer):
    return {"correct": float(result(completion) == answer), "brief": -0.2 * len(completion)}
""",
        cause="a price on length that outweighs correctness, without a gate",
    ),
    _sick(
        "error rate",
        "reward_sign",
        set={"scoring.weights": {"correct": -1.0, "format": 0.2}},
        cause="the weight of correct is negative",
    ),
    _sick(
        "loss as reward",
        "reward_sign",
        reward=NUMBER
        + """def score(completion, answer):
    wrong = float(result(completion) != answer)
    return {"error": wrong, "correct": 1.0 - wrong}


""",
        set={"scoring.weights": {"reward.py:error": 1.0}},
        cause="an error is handed over as a reward",
    ),
    _sick(
        "raises on wrong",
        "missing_scores",
        reward=NUMBER
        + """def score(completion, answer):
    assert result(completion) == answer, "mismatch"
    return 1.0
""",
        cause="the verifier raises where the answer is wrong: only right ones are scored",
    ),
    _sick(
        "half unscored",
        "missing_scores",
        reward=NUMBER
        + """import zlib


def score(completion, answer):
    if zlib.crc32(completion.encode()) % 5 < 3:
        raise TimeoutError("verifier did not answer")
    return float(result(completion) == answer)
""",
        cause="the verifier gives no answer for 60 % of the rollouts",
    ),
    _sick(
        "server down",
        "verifier_outage",
        reward=NUMBER
        + """CALLS = [0]


def score(completion, answer):
    CALLS[0] += 1
    if 128 * 20 < CALLS[0] < 128 * 32:
        return 0.0
    return float(result(completion) == answer)
""",
        cause="the verifier's server is down for 12 steps, and its client then says 0",
    ),
    _sick(
        "server down, raises",
        "verifier_outage",
        "missing_scores",
        reward=NUMBER
        + """CALLS = [0]


def score(completion, answer):
    CALLS[0] += 1
    if 128 * 15 < CALLS[0] < 128 * 25:
        raise ConnectionError("connection refused")
    return float(result(completion) == answer)
""",
        cause="the verifier's server is down for 10 steps: no scores",
    ),
    _sick(
        "shuffled",
        "reward_noise",
        set={"scoring.shuffle": True, "trainer.steps": 60},
        cause="outcomes shuffled within the batch",
    ),
    _sick(
        "coin",
        "reward_noise",
        reward=NUMBER
        + """import random


def score(completion, answer):
    right = float(result(completion) == answer)
    return right if random.random() < 0.55 else 1.0 - right
""",
        cause="45 % of the verdicts are turned round at random",
    ),
    _sick(
        "similarity judge",
        "near_constant_reward",
        reward="""from difflib import SequenceMatcher


def score(prompt, completion):
    return 0.95 + 0.001 * SequenceMatcher(None, prompt, completion).ratio()
""",
        cause="a similarity score between 0.950 and 0.951, divided by its deviation",
    ),
    _sick("kl 50", "kl_too_high", set={"objective.kl.coef": 50.0}, cause="KL coefficient 50"),
    _sick("kl 5", "kl_too_high", set={"objective.kl.coef": 5.0}, cause="KL coefficient 5"),
    _sick(
        "24 epochs",
        "too_off_policy",
        "lr_too_high",
        set={"update.epochs": 24, "optim.lr": 5e-4, "trainer.steps": 40, "tasks.per_step": 8},
        cause="24 epochs on the same rollouts at a high rate",
    ),
    _sick(
        "wrong eos",
        "no_eos",
        set={"sampling.max_new_tokens": 40},
        hook="eos_not_recognised",
        cause="the sampler does not know the end token",
    ),
    _sick(
        "dead verifier",
        "dead_component",
        "component_dominates",
        "verifier_rejects_right_answers",
        reward="""import re


def score(completion, answer):
    boxed = re.findall(r"boxed{(.+?)}", completion)
    return {
        "correct": float(boxed[-1:] == [answer]),
        "form": 0.2 * float(re.fullmatch(r"[0-9+=,]*#[0-9]+", completion) is not None),
        "short": -0.005 * len(completion),
    }
""",
        cause="correctness looks for a form that never occurs: it is always 0, the others pay",
    ),
    _sick(
        "format pays",
        "component_dominates",
        "length_collapse",
        reward=NUMBER
        + """def score(completion, answer):
    right = float(result(completion) == answer)
    return {"correct": 0.1 * right, "style": 2.0 * completion.count("+1") / 4}
""",
        cause="a style reward outweighs correctness twenty times",
    ),
    _sick(
        "boxed wanted",
        "verifier_rejects_right_answers",
        "all_wrong",
        data="sums",
        set=DATA,
        policy="base",
        reward="""import re


def score(completion, answer):
    found = re.findall(r"answer is (\\d+)", completion)
    return float(found[-1:] == [answer])
""",
        cause="the extractor wants 'answer is N'; answers are '#N'",
    ),
    _sick(
        "rows shifted",
        "labels_misaligned",
        "all_wrong",
        "verifier_rejects_right_answers",
        data="shifted_sums",
        set=DATA,
        policy="base",
        reward=NUMBER
        + """def score(completion, answer):
    return float(result(completion) == answer)
""",
        cause="every row has the answer of the row before",
    ),
    _sick(
        "sixteen sums",
        "memorising",
        "duplicate_prompts",
        data="few_sums",
        policy="base",
        set={
            "task": "data.jsonl",
            "tasks.options": {"held_out": "held.jsonl"},
            "optim.lr": 5e-4,
            "trainer.steps": 60,
            "tasks.per_step": 12,
        },
        reward=NUMBER
        + """def score(completion, answer):
    return float(result(completion) == answer)
""",
        cause="12 training sums",
    ),
    _sick(
        "few lakes",
        "memorising",
        "duplicate_prompts",
        set={
            "task": "frozenlake",
            "tasks.options": {"style": "bare", "pool": 8},
            "env.context": "window",
            "method": "gigpo",
            "objective.aggregate": "token_mean",
            "sampling.max_new_tokens": 4,
            "optim.lr": 1e-3,
            "tasks.per_step": 8,
            "eval.temperature": 1.0,
            "trainer.steps": 40,
        },
        cause="8 lakes for all of training",
    ),
    _sick(
        "sampler at 1.4",
        "sampler_mismatch",
        hook="hotter_sampler",
        cause="the sampler runs at temperature 1.4, the learner assumes 1",
    ),
    _sick(
        "sampler top_p",
        "sampler_mismatch",
        hook="nucleus_sampler",
        cause="the sampler renormalises a nucleus of 0.8 unknown to the learner",
    ),
    _sick(
        "weights not sent",
        "stale_sampler",
        hook="stale_sampler",
        set={"optim.lr": 2e-4},
        cause="the sampler keeps the weights of the start",
    ),
    _sick(
        "weights not sent, ratio",
        "stale_sampler",
        hook="stale_sampler",
        set={"optim.lr": 2e-4, "objective.ratio_over": "behaviour"},
        cause="the sampler keeps the weights of the start; ratios are to the sampler",
    ),
    _sick(
        "shifted by one",
        "logprob_shift",
        hook="shifted_logprobs",
        set={"objective.ratio_over": "behaviour"},
        cause="the sampler's log-probs are those of the next token",
    ),
    _sick(
        "entropy penalised",
        "entropy_collapse",
        set={"objective.entropy.coef": -0.3, "optim.lr": 3e-4, "trainer.steps": 60},
        cause="the entropy bonus has the wrong sign",
    ),
    _sick(
        "falling advantage",
        "advantage_sign",
        hook="advantage_sign",
        cause="advantages enter the loss with the wrong sign",
    ),
    _sick(
        "rows mixed up",
        "advantage_sign",
        "reward_noise",
        hook="advantage_rows",
        cause="advantages are joined to rollouts in another order",
    ),
    _sick(
        "pairs of two",
        "group_too_small",
        "all_wrong",
        set={
            "rollout.group_size": 2,
            "tasks.per_step": 16,
            "tasks.options": {"digits": 3},
            "sampling.max_new_tokens": 34,
        },
        cause="groups of two on sums that are rarely right",
    ),
    _sick(
        "two turns of lake",
        "truncation",
        "all_wrong",
        set={
            "task": "frozenlake",
            "tasks.options": {"style": "bare"},
            "env.context": "window",
            "env.max_turns": 2,
            "method": "gigpo",
            "objective.aggregate": "token_mean",
            "sampling.max_new_tokens": 4,
            "optim.lr": 2e-4,
            "tasks.per_step": 8,
            "eval.temperature": 1.0,
            "trainer.steps": 40,
        },
        cause="two moves are allowed, the goal is further off",
    ),
]


def _well(name: str, **more: Any) -> Recipe:
    return Recipe(name, "healthy", (), **more)


LAKE = {
    "task": "frozenlake",
    "tasks.options": {"style": "bare"},
    "env.context": "window",
    "method": "gigpo",
    "objective.aggregate": "token_mean",
    "sampling.max_new_tokens": 4,
    "optim.lr": 3e-4,
    "tasks.per_step": 16,
    "eval.temperature": 1.0,
    "trainer.steps": 30,
    "eval.tasks": 200,
}
WELL = [
    _well("plain"),
    _well("slow", set={"optim.lr": 2e-5, "trainer.steps": 60, "tasks.per_step": 24}),
    _well(
        "saturating",
        policy="good",
        data="sums",
        set={**DATA, "optim.lr": 2e-4, "trainer.steps": 60},
        reward=NUMBER
        + """def score(completion, answer):
    return float(result(completion) == answer)
""",
    ),
    _well("dapo", set={"method": "dapo"}),
    _well("dr_grpo and gspo", set={"method": "dr_grpo+gspo"}),
    _well("gspo", set={"method": "gspo"}),
    _well("several rewards", set={"method": "gdpo_multi", "credit.weights": {"correct": 1.0, "format": 0.5}}),
    _well("two epochs with KL", set={"update.epochs": 2, "objective.kl.coef": 0.02}),
    _well("lake", set=LAKE),
    _well("ten steps", set={"trainer.steps": 10, "trainer.rollouts_every": 10, "eval.every": 5}),
    _well(
        "tree",
        set={
            "method": "tree_grpo",
            "rollout.trees": 2,
            "rollout.rounds": 2,
            "rollout.expansions": 3,
            "rollout.token_budget": 150,
            "trainer.steps": 35,
        },
    ),
    _well(
        "team",
        set={
            "method": "dr_mas",
            "rollout.graph": "second_opinion",
            "tasks.per_step": 10,
            "eval.temperature": 1.0,
            "trainer.steps": 30,
        },
    ),
    _well("small batches", set={"tasks.per_step": 6, "optim.lr": 7e-5, "trainer.steps": 60}),
    Recipe(
        "one dead of three",
        "mild",
        ("dead_component",),
        reward=NUMBER
        + """def score(completion, answer):
    right = float(result(completion) == answer)
    return {"correct": right, "working": 0.1 * ("=" in completion), "cites": 0.1 * ("[" in completion)}
""",
    ),
    Recipe("pairs", "mild", ("group_too_small",), set={"method": "two_grpo", "tasks.per_step": 64}),
    Recipe("tiny evaluation", "mild", ("eval_too_small",), set={"eval.tasks": 8, "eval.every": 20}),
]

RECIPES = SICK + WELL
