"""Recipes of the verl part of the doctor's corpus: options of the loop in `verl_loop`, sick as in real life or well.

`leave` says what the user had switched on: file (FileLogger), console, rounded (the console of verl before 0.4, three
decimals), rollouts and validation (dumps), config (hydra's).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import torch
from verl_policy import extract_answer, sums

ALL = ("file", "rollouts", "config")


@dataclass(frozen=True)
class Recipe:
    """One run; `set` are fields of `verl_loop.Setup`."""

    name: str
    kind: str
    expect: tuple[str, ...] = ()
    cause: str = ""
    set: dict[str, Any] = field(default_factory=dict)
    leave: tuple[str, ...] = ALL
    start: str = "plain"


# ---------------------------------------------------------------- scores
def exact(prompt: str, response: str, truth: str, step: int) -> float:
    """As verl's gsm8k: 1 for the right number after ####."""
    return float(extract_answer(response) == truth)


def signed(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    """As verl's math_dapo: 1 or -1, with verdict and answer beside it."""
    pred = extract_answer(response)
    return {"score": 1.0 if pred == truth else -1.0, "acc": pred == truth, "pred": pred or "[INVALID]"}


CACHE: dict[str, float] = {}


def cached(prompt: str, response: str, truth: str, step: int) -> float:
    return CACHE.setdefault(prompt, exact(prompt, response, truth, step))


def boxed(prompt: str, response: str, truth: str, step: int) -> float:
    return float(f"boxed{{{truth}}}" in response)


def longer(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    right = exact(prompt, response, truth, step)
    return {"score": right + 3.0 * min(len(response) / 56, 1.0), "acc": right}


def negative(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    right = exact(prompt, response, truth, step)
    return {"score": -right, "acc": right}


def outage(prompt: str, response: str, truth: str, step: int) -> float:
    return 0.0 if 12 <= step <= 21 else exact(prompt, response, truth, step)


def alike(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    near = SequenceMatcher(None, prompt, response, autojunk=False).ratio()
    return {"score": 0.8 + 0.002 * near, "acc": exact(prompt, response, truth, step)}


def styled(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    right, style = exact(prompt, response, truth, step), min(response.count("+1"), 3) / 3
    return {"score": 0.2 * right + 2.0 * style, "acc": right, "style": style}


# ---------------------------------------------------------------- other changes
def neighbours(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Every question with the answer of the row before."""
    return [(q, rows[i - 1][1]) for i, (q, _) in enumerate(rows)]


def next_token(logp: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.roll(logp, -1, dims=1) * mask


def shuffled(values: list[Any], draw: random.Random) -> list[Any]:
    order = list(range(len(values)))
    draw.shuffle(order)
    return [values[i] for i in order]


def always(**how: Any) -> Callable[[int], dict[str, Any]]:
    return lambda step: how


def later(first: int, **how: Any) -> Callable[[int], dict[str, Any]]:
    return lambda step: how if step > first else {}


FILE, CONSOLE, DUMPS = ("file",), ("console",), ("file", "rollouts")
SICK = [
    Recipe("four digits", "sick", ("all_wrong",), "sums of four digits", {"rows": sums(400, 3, 1000, 10000)}),
    Recipe(
        "rate 2e-2", "sick", ("lr_too_high",), "learning rate 200 times too high", {"lr": 2e-2}, ("file", "console")
    ),
    Recipe("rate 6e-3", "sick", ("lr_too_high",), "learning rate 30 times too high", {"lr": 3e-3}, CONSOLE),
    Recipe("rate 1e-9", "sick", ("lr_too_low",), "learning rate 1e-9", {"lr": 1e-9}, DUMPS),
    Recipe("rate 1e-9 rounded", "sick", ("lr_too_low",), "learning rate 1e-9", {"lr": 1e-9}, ("rounded", "config")),
    Recipe("endless warm-up", "sick", ("lr_too_low",), "warm-up of 10^6 steps", {"warmup": 10**6}, CONSOLE),
    Recipe("clipped to nothing", "sick", ("weights_do_not_move", "lr_too_low"), "grad_clip 1e-9", {"grad_clip": 1e-9}),
    Recipe(
        "engine at 1.5",
        "sick",
        ("sampler_mismatch",),
        "the engine samples at 1.5",
        {"sampler": always(temperature=1.5)},
        FILE,
    ),
    Recipe(
        "engine top_p",
        "sick",
        ("sampler_mismatch",),
        "the engine samples with top_p 0.7 and reports renormalised log-probs",
        {"sampler": always(top_p=0.7)},
        ("console", "rollouts"),
    ),
    Recipe(
        "weights not sent",
        "sick",
        ("stale_sampler",),
        "the engine keeps the weights of the start",
        {"sync_every": 0, "lr": 2e-4},
    ),
    Recipe(
        "weights sent once in 20",
        "sick",
        ("stale_sampler",),
        "the engine gets weights every 20th step",
        {"sync_every": 20, "lr": 2e-4},
        FILE,
    ),
    Recipe(
        "next token",
        "sick",
        ("logprob_shift",),
        "the engine's log-probs are those of the next token",
        {"reported": next_token},
        DUMPS,
    ),
    Recipe(
        "uid a row",
        "sick",
        ("wrong_groups",),
        "every row has a uid of its own: no baseline",
        {"unique_uid": True},
        ("file", "rollouts", "config"),
    ),
    Recipe(
        "uid a row, console",
        "sick",
        ("wrong_groups",),
        "every row has a uid of its own: no baseline",
        {"unique_uid": True, "score": signed},
        ("console",),
    ),
    Recipe(
        "cached",
        "sick",
        ("reward_ignores_completion",),
        "verdicts are cached under the prompt",
        {"score": cached, "rows": sums(60, 5)},
        DUMPS,
    ),
    Recipe(
        "boxed",
        "sick",
        ("verifier_rejects_right_answers",),
        "the extractor wants boxed{N}",
        {"score": boxed},
        ("file", "rollouts", "validation"),
    ),
    Recipe(
        "boxed, dumps alone",
        "sick",
        ("verifier_rejects_right_answers",),
        "the extractor wants boxed{N}",
        {"score": boxed, "test_freq": 0},
        ("rollouts",),
    ),
    Recipe(
        "limit 28",
        "sick",
        ("truncation",),
        "limit below the length of many answers",
        {"max_response": 25},
        ("file", "config"),
    ),
    Recipe(
        "limit 24",
        "sick",
        ("truncation",),
        "limit below the length of most answers with a carry",
        {"max_response": 24},
        ("console", "rollouts"),
    ),
    Recipe(
        "end unknown",
        "sick",
        ("no_eos",),
        "the engine does not stop at the end token",
        {"sampler": always(stop=-1)},
        DUMPS,
    ),
    Recipe(
        "end unknown, file",
        "sick",
        ("no_eos",),
        "the engine does not stop at the end token",
        {"sampler": always(stop=-1), "max_response": 72},
        FILE,
    ),
    Recipe(
        "rows reordered", "sick", ("reward_noise",), "scores are joined in another order", {"order": shuffled}, DUMPS
    ),
    Recipe(
        "eight prompts",
        "sick",
        ("memorising", "duplicate_prompts"),
        "eight training prompts",
        {"rows": sums(8, 8), "lr": 4e-4, "val_n": 4},
    ),
    Recipe(
        "twelve prompts",
        "sick",
        ("memorising", "duplicate_prompts"),
        "twelve training prompts",
        {"rows": sums(12, 9), "lr": 4e-4},
        ("file", "console"),
    ),
    Recipe(
        "paid by length",
        "sick",
        ("length_hack",),
        "length is paid three times as much as right",
        {"score": longer, "lr": 3e-4, "steps": 45},
        ("file", "rollouts", "validation"),
    ),
    Recipe(
        "10 epochs",
        "sick",
        ("too_off_policy", "lr_too_high"),
        "10 epochs of 4 mini-batches",
        {"epochs": 10, "minibatches": 4, "lr": 5e-4, "steps": 28},
        ("file", "config"),
    ),
    Recipe("kl loss 20", "sick", ("kl_too_high",), "kl_loss_coef 20", {"kl_loss": 20.0}, ("file", "config")),
    Recipe("kl reward 5", "sick", ("kl_too_high",), "kl_coef 5 in the reward", {"kl_in_reward": 5.0}, FILE),
    Recipe(
        "neighbours",
        "sick",
        ("labels_misaligned", "all_wrong", "verifier_rejects_right_answers"),
        "every row has the answer of the row before",
        {"rows": neighbours(sums(24, 4))},
        DUMPS,
    ),
    Recipe(
        "greedy after validation",
        "sick",
        ("no_diversity",),
        "temperature stays 0 after the first validation",
        {"sampler": later(8, temperature=0.0)},
        DUMPS,
    ),
    Recipe(
        "cold", "sick", ("no_diversity",), "temperature 0.05", {"temperature": 0.05}, ("file", "rollouts", "config")
    ),
    Recipe(
        "server down",
        "sick",
        ("verifier_outage",),
        "the verifier's server is down for 10 steps",
        {"score": outage},
        FILE,
    ),
    Recipe(
        "server down, dumps",
        "sick",
        ("verifier_outage",),
        "the verifier's server is down for 10 steps",
        {"score": outage, "test_freq": 0},
        ("console", "rollouts"),
    ),
    Recipe("minus", "sick", ("reward_sign",), "the score has the wrong sign", {"score": negative}, DUMPS),
    Recipe(
        "entropy loss",
        "sick",
        ("entropy_collapse", "lr_too_high"),
        "entropy_coeff has the wrong sign",
        {"entropy_coeff": -3.0, "lr": 3e-4, "steps": 36},
        ("file", "rollouts", "config"),
    ),
    Recipe(
        "alike",
        "sick",
        ("near_constant_reward",),
        "a similarity score between 0.8 and 0.802 over its deviation",
        {"score": alike},
        DUMPS,
    ),
    Recipe(
        "style pays",
        "sick",
        ("component_dominates", "length_hack"),
        "style is paid ten times as much as right",
        {"score": styled, "lr": 3e-4, "steps": 45},
        DUMPS,
    ),
]
WELL = [
    Recipe("plain", "healthy", leave=("file", "console", "rollouts", "validation", "config")),
    Recipe("dumps alone", "healthy", set={"test_freq": 0}, leave=("rollouts",)),
    Recipe(
        "KL and epochs",
        "healthy",
        set={"kl_loss": 0.001, "epochs": 2, "minibatches": 2, "lr": 4e-5},
        leave=("file", "rollouts"),
    ),
    Recipe("saturating", "healthy", set={"lr": 2e-4, "steps": 45}, leave=("file", "rollouts"), start="good"),
    Recipe("rounded console", "healthy", leave=("rounded",)),
    Recipe("slow", "healthy", set={"lr": 3e-5, "prompts": 12, "steps": 45, "val_n": 2}, leave=("file", "config")),
    Recipe("plus and minus one", "healthy", set={"score": signed, "norm_std": False}, leave=("console", "rollouts")),
    Recipe("two mini-batches", "healthy", set={"minibatches": 2, "score": signed}, leave=("file", "validation")),
    Recipe("eight to validate", "mild", ("eval_too_small",), set={"held": sums(8, 6)}, leave=FILE),
    Recipe("one step behind", "mild", ("stale_sampler",), set={"sync_every": 2}, leave=FILE),
]
RECIPES = SICK + WELL
