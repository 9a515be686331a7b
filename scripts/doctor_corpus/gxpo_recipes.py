"""Recipes of the gxpo part of the doctor's corpus: settings of real runs of the tiny model, sick as in life or well.

A recipe is a short configuration, with, where the cause is code, a reward file (`gxpo_rewards`), a data file or a hook
on the trainer (functions of `gxpo_runs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gxpo_rewards import REWARDS


@dataclass(frozen=True)
class Recipe:
    """One run.

    name    never written into the run's directory
    kind    sick, healthy, or mild (at most a warning)
    expect  ids any of which is right as the first finding; for a mild run, ids that may be warned of
    cause   what is wrong, for truth.json
    set     settings over `BASE`
    data    name of a function of `gxpo_runs` that writes data.jsonl
    hook    name of a function of `gxpo_runs` that changes the trainer
    policy  which of the prepared policies it starts from; None: `model` says it
    """

    name: str
    kind: str
    expect: tuple[str, ...] = ()
    cause: str = ""
    set: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    hook: str | None = None
    policy: str | None = None

    @property
    def reward(self) -> str | None:
        """Text of reward.py, which has a function `score`; None: the task's own verdict."""
        return REWARDS.get(self.name)


BASE: dict[str, Any] = {
    "model": "tiny",
    "task": "arithmetic",
    "method": "grpo",
    "tasks.per_step": 10,
    "rollout.group_size": 8,
    "sampling.max_new_tokens": 24,
    "optim.lr": 0.0001,
    "trainer.steps": 36,
    "trainer.checkpoint_every": 0,
    "trainer.rollouts_every": 5,
    "eval.every": 12,
    "eval.tasks": 80,
}
DATA = {"task": "data.jsonl", "tasks.options": {"held_out_fraction": 0.1}}
LAKE: dict[str, Any] = {
    "task": "frozenlake",
    "tasks.options": {"style": "bare"},
    "env.context": "window",
    "method": "gigpo",
    "objective.aggregate": "token_mean",
    "sampling.max_new_tokens": 4,
    "optim.lr": 0.0003,
    "tasks.per_step": 16,
    "eval.temperature": 1.0,
    "trainer.steps": 30,
    "eval.tasks": 200,
}

SICK = [
    Recipe(
        "four digits",
        "sick",
        ("all_wrong",),
        "sums of four digits, policy knows two",
        set={"tasks.options": {"digits": 4}, "sampling.max_new_tokens": 48},
    ),
    Recipe(
        "products",
        "sick",
        ("all_wrong",),
        "the policy has never seen a product",
        set={"tasks.options": {"operations": "*"}, "sampling.max_new_tokens": 40},
    ),
    Recipe(
        "mastered",
        "sick",
        ("all_right",),
        "the policy knew the task before the run",
        set={**DATA, "sampling.temperature": 0.5},
        data="sums",
        policy="master",
    ),
    Recipe("cached by prompt", "sick", ("reward_ignores_completion",), "verdicts are cached under the prompt alone"),
    Recipe(
        "reads the question",
        "sick",
        ("reward_ignores_completion",),
        "the scorer reads question and reference, not the completion",
    ),
    Recipe("rate 1e-2", "sick", ("lr_too_high",), "learning rate 100 times too high", set={"optim.lr": 0.01}),
    Recipe(
        "rate 2e-3",
        "sick",
        ("lr_too_high",),
        "learning rate 30 times too high, no gradient clipping",
        set={"optim.lr": 0.003, "optim.max_grad_norm": 0.0},
    ),
    Recipe("rate 1e-8", "sick", ("lr_too_low",), "learning rate 10^4 times too low", set={"optim.lr": 1e-08}),
    Recipe(
        "endless warm-up",
        "sick",
        ("lr_too_low",),
        "warm-up of 20000 steps in a run of 45",
        set={"optim.warmup_steps": 20000},
    ),
    Recipe(
        "bfloat16 rounding",
        "sick",
        ("weights_do_not_move", "lr_too_low"),
        "updates below what bfloat16 weights show",
        set={"learner.dtype": "bfloat16", "optim.lr": 1e-07},
    ),
    Recipe(
        "optimiser elsewhere",
        "sick",
        ("weights_do_not_move",),
        "the optimiser moves a copy of the parameters",
        hook="optimiser_elsewhere",
    ),
    Recipe(
        "clipped to nothing",
        "sick",
        ("weights_do_not_move", "lr_too_low"),
        "max_grad_norm 1e-9, below AdamW's eps",
        set={"optim.max_grad_norm": 1e-09},
    ),
    Recipe(
        "limit 17",
        "sick",
        ("truncation",),
        "limit below the length of answers with a carry",
        set={"sampling.max_new_tokens": 17},
    ),
    Recipe(
        "limit 12",
        "sick",
        ("truncation",),
        "limit below the length of every answer",
        set={"sampling.max_new_tokens": 12},
    ),
    Recipe("top_k 1", "sick", ("no_diversity",), "top_k 1", set={"sampling.top_k": 1}),
    Recipe(
        "one seed a group",
        "sick",
        ("no_diversity",),
        "all rollouts of a group are drawn with one seed",
        hook="one_stream_a_group",
    ),
    Recipe("cold", "sick", ("no_diversity",), "temperature 0.05", set={"sampling.temperature": 0.05}),
    Recipe(
        "paid by length",
        "sick",
        ("length_hack", "component_dominates"),
        "longer is paid, four times as much as right",
        set={"sampling.max_new_tokens": 48, "optim.lr": 5e-4, "trainer.steps": 60},
    ),
    Recipe(
        "paid to be brief",
        "sick",
        ("length_collapse", "component_dominates"),
        "a price on length that outweighs correctness, without a gate",
        set={"optim.lr": 5e-4, "trainer.steps": 60},
    ),
    Recipe(
        "error rate",
        "sick",
        ("reward_sign",),
        "the weight of correct is negative",
        set={"scoring.weights": {"correct": -1.0, "format": 0.2}},
    ),
    Recipe(
        "loss as reward",
        "sick",
        ("reward_sign",),
        "an error is handed over as a reward",
    ),
    Recipe(
        "raises on wrong",
        "sick",
        ("missing_scores",),
        "the verifier raises where the answer is wrong: only right ones are scored",
    ),
    Recipe("half unscored", "sick", ("missing_scores",), "the verifier gives no answer for 60 % of the rollouts"),
    Recipe(
        "server down",
        "sick",
        ("verifier_outage",),
        "the verifier's server is down for 10 steps, and its client then says 0",
    ),
    Recipe(
        "server down, raises",
        "sick",
        ("verifier_outage", "missing_scores"),
        "the verifier's server is down for 10 steps: no scores",
    ),
    Recipe(
        "shuffled",
        "sick",
        ("reward_noise",),
        "outcomes shuffled within the batch",
        set={"scoring.shuffle": True, "trainer.steps": 60},
    ),
    Recipe("coin", "sick", ("reward_noise",), "45 % of the verdicts are turned round at random"),
    Recipe(
        "similarity judge",
        "sick",
        ("near_constant_reward",),
        "a similarity score between 0.950 and 0.951, divided by its deviation",
    ),
    Recipe("kl 50", "sick", ("kl_too_high",), "KL coefficient 50", set={"objective.kl.coef": 50.0}),
    Recipe("kl 5", "sick", ("kl_too_high",), "KL coefficient 5", set={"objective.kl.coef": 5.0}),
    Recipe(
        "24 epochs",
        "sick",
        ("too_off_policy", "lr_too_high"),
        "24 epochs on the same rollouts at a high rate",
        set={"update.epochs": 24, "optim.lr": 0.0005, "trainer.steps": 40, "tasks.per_step": 8},
    ),
    Recipe(
        "wrong eos",
        "sick",
        ("no_eos",),
        "the sampler does not know the end token",
        set={"sampling.max_new_tokens": 40},
        hook="eos_not_recognised",
    ),
    Recipe(
        "dead verifier",
        "sick",
        ("dead_component", "component_dominates", "verifier_rejects_right_answers"),
        "correctness looks for a form that never occurs: it is always 0, the others pay",
    ),
    Recipe(
        "format pays",
        "sick",
        ("component_dominates", "length_hack"),
        "a style reward outweighs correctness ten times",
        set={"optim.lr": 3e-4, "trainer.steps": 50},
    ),
    Recipe(
        "boxed wanted",
        "sick",
        ("verifier_rejects_right_answers", "all_wrong"),
        "the extractor wants 'answer is N'; answers are '#N'",
        set={**DATA},
        data="sums",
        policy="base",
    ),
    Recipe(
        "rows shifted",
        "sick",
        ("labels_misaligned", "all_wrong", "verifier_rejects_right_answers"),
        "every row has the answer of the row before",
        set={**DATA},
        data="shifted_sums",
        policy="base",
    ),
    Recipe(
        "sixteen sums",
        "sick",
        ("memorising", "duplicate_prompts"),
        "12 training sums",
        set={
            "task": "data.jsonl",
            "tasks.options": {"held_out": "held.jsonl"},
            "optim.lr": 0.0005,
            "trainer.steps": 60,
            "tasks.per_step": 12,
        },
        data="few_sums",
        policy="base",
    ),
    Recipe(
        "few lakes",
        "sick",
        ("memorising", "duplicate_prompts"),
        "8 lakes for all of training",
        set={
            "task": "frozenlake",
            "tasks.options": {"style": "bare", "pool": 8},
            "env.context": "window",
            "method": "gigpo",
            "objective.aggregate": "token_mean",
            "sampling.max_new_tokens": 4,
            "optim.lr": 0.001,
            "tasks.per_step": 8,
            "eval.temperature": 1.0,
            "trainer.steps": 40,
        },
    ),
    Recipe(
        "sampler at 1.4",
        "sick",
        ("sampler_mismatch",),
        "the sampler runs at temperature 1.4, the learner assumes 1",
        hook="hotter_sampler",
    ),
    Recipe(
        "sampler top_p",
        "sick",
        ("sampler_mismatch",),
        "the sampler renormalises a nucleus of 0.8 unknown to the learner",
        hook="nucleus_sampler",
    ),
    Recipe(
        "weights not sent",
        "sick",
        ("stale_sampler",),
        "the sampler keeps the weights of the start",
        set={"optim.lr": 0.0002},
        hook="stale_sampler",
    ),
    Recipe(
        "weights not sent, ratio",
        "sick",
        ("stale_sampler",),
        "the sampler keeps the weights of the start; ratios are to the sampler",
        set={"optim.lr": 0.0002, "objective.ratio_over": "behaviour"},
        hook="stale_sampler",
    ),
    Recipe(
        "shifted by one",
        "sick",
        ("logprob_shift",),
        "the sampler's log-probs are those of the next token",
        set={"objective.ratio_over": "behaviour"},
        hook="shifted_logprobs",
    ),
    Recipe(
        "falling advantage",
        "sick",
        ("advantage_sign",),
        "advantages enter the loss with the wrong sign",
        hook="advantage_sign",
    ),
    Recipe(
        "rows mixed up",
        "sick",
        ("advantage_sign", "reward_noise"),
        "advantages are joined to rollouts in another order",
        hook="advantage_rows",
    ),
    Recipe(
        "pairs of two",
        "sick",
        ("all_wrong", "group_too_small"),
        "groups of two on sums that are rarely right",
        set={
            "rollout.group_size": 2,
            "tasks.per_step": 16,
            "tasks.options": {"digits": 3},
            "sampling.max_new_tokens": 34,
        },
    ),
    Recipe(
        "two turns of lake",
        "sick",
        ("truncation", "all_wrong"),
        "two moves are allowed, the goal is further off",
        set={
            "task": "frozenlake",
            "tasks.options": {"style": "bare"},
            "env.context": "window",
            "env.max_turns": 2,
            "method": "gigpo",
            "objective.aggregate": "token_mean",
            "sampling.max_new_tokens": 4,
            "optim.lr": 0.0002,
            "tasks.per_step": 8,
            "eval.temperature": 1.0,
            "trainer.steps": 40,
        },
    ),
]
WELL = [
    Recipe("plain", "healthy"),
    Recipe("slow", "healthy", set={"optim.lr": 3e-05, "trainer.steps": 50, "tasks.per_step": 16}),
    Recipe("saturating", "healthy", set={**DATA, "trainer.steps": 48}, data="sums", policy="good"),
    Recipe("dapo", "healthy", set={"method": "dapo"}),
    Recipe("dr_grpo and gspo", "healthy", set={"method": "dr_grpo+gspo"}),
    Recipe("gspo", "healthy", set={"method": "gspo"}),
    Recipe(
        "several rewards", "healthy", set={"method": "gdpo_multi", "credit.weights": {"correct": 1.0, "format": 0.5}}
    ),
    Recipe("two epochs with KL", "healthy", set={"update.epochs": 2, "objective.kl.coef": 0.02}),
    Recipe("lake", "healthy", set={**LAKE}),
    Recipe("ten steps", "healthy", set={"trainer.steps": 10, "trainer.rollouts_every": 10, "eval.every": 5}),
    Recipe(
        "tree",
        "healthy",
        set={
            "method": "tree_grpo",
            "rollout.group_size": None,  # a tree has none
            "rollout.trees": 2,
            "rollout.rounds": 2,
            "rollout.expansions": 3,
            "rollout.token_budget": 150,
            "trainer.steps": 35,
        },
    ),
    Recipe(
        "team",
        "healthy",
        set={
            "method": "dr_mas",
            "rollout.graph": "second_opinion",
            "tasks.per_step": 10,
            "eval.temperature": 1.0,
            "trainer.steps": 30,
        },
    ),
    Recipe("small batches", "healthy", set={"tasks.per_step": 6, "optim.lr": 7e-05, "trainer.steps": 60}),
    Recipe("one dead of three", "mild", ("dead_component",)),
    Recipe(
        "pairs", "mild", ("group_too_small",), set={"method": "two_grpo", "rollout.group_size": 2, "tasks.per_step": 48}
    ),
    Recipe("tiny evaluation", "mild", ("eval_too_small",), set={"eval.tasks": 8, "eval.every": 20}),
]
RECIPES = SICK + WELL
