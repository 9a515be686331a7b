"""Every generator of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760) as a task source, with guarded scores.

An answer is a policy's text. Nine of the generators' scorers run it as Python (`eval`, or sympy's `parse_expr`, which
evaluates names and attributes): here they see literals and arithmetic alone. Four pay wrong answers in full and are
repaired. Many raise on an answer of another shape than they expect: that is a wrong answer.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.answers import TAGGED
from gxpo.base.errors import TaskError, did_you_mean, need
from gxpo.environments.tasks.source import Author, GeneratedTasks, check_options, exact
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

Entry = Mapping[str, Any]

UNSUPPORTED = {"composite": "it only mixes other generators; name one of those"}
ANSWER = re.compile(TAGGED, re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
READINGS = ("tagged", "number")  # how the answer is found in a text
TEMPLATE = "{question}\nGive the final answer between <answer> and </answer>.\n"

EVALUATED = {  # generators whose scorers call `eval` on the answer: the module, where literals take its place
    "binary_matrix": "algorithmic.binary_matrix",
    "n_queens": "games.n_queens",
    "spiral_matrix": "algorithmic.spiral_matrix",
    "string_insertion": "algorithmic.string_insertion",
}
PARSED = ("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration")

LONGEST = 2000  # characters of an expression
DIGITS = 50  # of a number in one
POWER = 1000  # product of the exponents that stand on each other
FUNCTIONS = frozenset({
    "Abs", "acos", "acosh", "acot", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "coth", "csc", "erf", "exp",
    "ln", "log", "sec", "sin", "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
HUGE = re.compile(r"[eE][-+]?\d{4}")  # an exponent that takes long to write out
INTEGER = re.compile(r"\d+")


def generators() -> list[str]:
    """Names of reasoning-gym's generators, for `reasoning_gym:NAME`."""
    need("reasoning_gym", "train")
    factory: Any = need("reasoning_gym.factory", "train")
    return sorted(set(factory.DATASETS) - set(UNSUPPORTED))


def _dataset(generator: str, seed: int, config: Mapping[str, Any]) -> ProceduralDataset:
    gym: Any = need("reasoning_gym", "train")
    try:
        return gym.create_dataset(generator, seed=seed, size=1, **config)
    except (TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TaskError(f"task 'reasoning_gym:{generator}': config {dict(config)!r} is refused ({reason})") from error


@functools.lru_cache(maxsize=32)
def _judge(generator: str, config: str) -> ProceduralDataset:
    return _dataset(generator, 0, json.loads(config))


def score(text: str, task: Task) -> dict[str, float]:
    """Score an answer. `score`: the generator's own `score_answer`, from 0 to 1, guarded and repaired by
    `guarded_score`: an answer that it can't read is wrong. `correct`: 1 where that is 1.
    `format`: 1 where there is exactly one `<answer>...</answer>`.

    Scored is the text between the last `<answer>` and `</answer>`, or the whole text if there are none, without
    surrounding blanks; where `task.info["reading"]` is "number", the last number of that. Needs only the text and the
    task, so it can run in another process.
    """
    tagged_answers = ANSWER.findall(text)
    # the last one counts: a policy that thinks aloud may try several
    answer = (tagged_answers[-1] if tagged_answers else text).strip()
    if task.info.get("reading") == "number":
        answer = (NUMBER.findall(answer) or [answer])[-1]
    dataset = _judge(task.info["generator"], json.dumps(task.info["config"], sort_keys=True))
    value = guarded_score(task.info["generator"], dataset, answer, task.info["entry"])
    return {"correct": float(value >= 1.0), "format": float(len(tagged_answers) == 1), "score": value}


@dataclass
class ReasoningGym(GeneratedTasks):
    """Tasks of one reasoning-gym generator; each is a data set of one entry with its own seed.

    `config` goes to the generator; `template` turns its question into the prompt; `reading` says how the answer is
    found in a text (see `score`; "number" suits chat models that answer in a sentence). `task.info["entry"]` is the
    generator's whole entry; it may hold values that JSON does not have (`arc_agi` and `rearc` compare tuples).
    Training and held-out tasks are split by the text of the question; so one held-out task costs about four entries of
    the generator, which takes long for the slow ones (`knight_swap`, `futoshiki`). `isomorphic_strings`,
    `polynomial_multiplication` and `ransom_note` iterate over sets: their questions repeat between processes only under
    a fixed PYTHONHASHSEED.
    """

    generator: str
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    template: str = TEMPLATE
    reading: str = "tagged"

    scorer_name: ClassVar[str] = "reasoning_gym"
    scorer: ClassVar = staticmethod(score)
    scorer_computes: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {"config": dict, "template": str, "reading": str}

    def __post_init__(self) -> None:
        self.name = f"reasoning_gym:{self.generator}"
        if self.generator in UNSUPPORTED:
            raise TaskError(f"task {self.name!r} is not supported: {UNSUPPORTED[self.generator]}")
        names = generators()
        if self.generator not in names:
            raise TaskError(f"reasoning_gym has no generator {self.generator!r}{did_you_mean(self.generator, names)}")
        check_options(
            self.name, {"config": self.config, "template": self.template, "reading": self.reading}, self.options
        )
        if self.reading not in READINGS:
            raise TaskError(f"task {self.name!r}: reading is {' or '.join(READINGS)}, not {self.reading!r}")
        if "{question}" not in self.template:
            raise TaskError(f"task {self.name!r}: template must contain {{question}}, not {self.template!r}")
        # each task is a data set of one entry, with a seed from the run's stream
        for name in ("seed", "size"):
            if name in self.config:
                raise TaskError(f"task {self.name!r}: config must not hold {name!r}, which is set for each task")
        _dataset(self.generator, 0, self.config)

    def propose(self, random: np.random.Generator) -> Task:
        seed = int(random.integers(2**31))
        entry = _dataset(self.generator, seed, self.config)[0]
        prompt = self.template.replace("{question}", entry["question"])
        info = {"generator": self.generator, "config": dict(self.config), "entry": entry, "reading": self.reading}
        return Task(f"{self.name}/{seed}", prompt, entry["answer"], info)

    def content(self, task: Task) -> str:
        return task.info["entry"]["question"]

    def worked_example(self, task: Task, author: Author = exact) -> str | None:
        """The generator's answer, in the form that is read; None of those that only check answers, as `rush_hour`."""
        if task.answer is None:
            return None
        return str(task.answer) if self.reading == "number" else f"<answer>{task.answer}</answer>"


# ---------------------------------------------------------------- scorers that evaluate the answer
def is_expression(text: str) -> bool:
    """Return True for arithmetic of numbers, symbols and elementary functions that is cheap to evaluate.

    >>> is_expression("2*sin(x)**2 + x/3"), is_expression("9**9**9"), is_expression("__import__('os')")
    (True, False, False)
    """
    if len(text) > LONGEST:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _power(tree.body) <= POWER
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _power(node: ast.expr) -> float:
    """Largest product of exponents in an expression; ValueError for anything that is not arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        if not abs(node.value) < 10**DIGITS:
            raise ValueError("a number that is too large")
        return 1.0
    # a name with underscores leads out of arithmetic: `__import__`
    if isinstance(node, ast.Name) and "_" not in node.id:
        return 1.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _power(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitXor)):
        return max(_power(node.left), _power(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(node.left) * _exponent(node.right)
    is_allowed_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    if isinstance(node, ast.Call) and is_allowed_call and not node.keywords and 1 <= len(node.args) <= 2:
        return max(map(_power, node.args))
    raise ValueError(f"{type(node).__name__} is no arithmetic")


def _exponent(node: ast.expr) -> float:
    """Bound of the numbers in an exponent, none of which may be a power of numbers."""
    if _power(node) > 1 and not any(isinstance(x, ast.Name) for x in ast.walk(node)):
        raise ValueError("a power of powers")
    numbers = [
        abs(x.value) for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, (int, float))
    ]
    return max(1.0, math.prod(max(1.0, x) for x in numbers))


@functools.cache
def _with_literals(module: str) -> None:
    """Replace `eval` in a scorer's module by a reader of literals, once a process."""
    vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = ast.literal_eval


# ---------------------------------------------------------------- scorers that pay wrong answers in full
def halting(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score of `game_of_life_halting`: 1 for the right one of True and False, case aside. The generator's own scorer
    takes every text that is not empty, the right answer among them, for True."""
    return float(answer.casefold() == str(entry["answer"]).casefold())


def finite_complex(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score of `complex_arithmetic`: the generator's own, which decays with the distance; 0 for nan, infinity."""
    value: Any = dataset
    value = value.parse_string_to_complex(answer)
    return float(dataset.score_answer(answer, dict(entry))) if math.isfinite(abs(value)) else 0.0


def four_numbers(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score of `puzzle24`: the generator's own where the numbers are the task's and the result is exactly 24. Its
    scorer pays any four numbers whose result is about 24."""
    sympy = importlib.import_module("sympy")
    used_numbers = Counter(int(x) for x in INTEGER.findall(answer))
    if used_numbers != Counter(int(x) for x in entry["metadata"]["numbers"]) or sympy.sympify(answer) != 24:
        return min(0.01, float(dataset.score_answer(answer, dict(entry))))
    return float(dataset.score_answer(answer, dict(entry)))


def probability(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score of `coin_flip`: 1 within 0.0001 and one percent of the right probability, else 0. The generator's own
    scorer pays every beginning of the right one in full, "0" on all tasks among them, and 0 for 0.00003."""
    if HUGE.search(answer):
        return 0.0
    stated_probability, right = (Fraction(x.replace(",", "")) for x in (answer, entry["answer"]))
    gap = abs(stated_probability - right)
    return float(gap <= Fraction(1, 10_000) and gap <= abs(right) / 100)


REPAIRED: Mapping[str, Callable[[Any, str, Entry], float]] = {
    "coin_flip": probability,
    "complex_arithmetic": finite_complex,
    "game_of_life_halting": halting,
    "puzzle24": four_numbers,
}


def guarded_score(generator: str, dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score of an answer by its generator, from 0 to 1; 0 for an answer on which the scorer raises, or gives no number.

    An exception that the scorer raises on the task's own answer, too, is an error of the task and is raised.
    """
    # what is evaluated as Python is checked before: it would run with the rights of the trainer
    if generator in PARSED and not is_expression(answer):
        return 0.0
    if generator in EVALUATED:
        _with_literals(EVALUATED[generator])
    scorer = REPAIRED.get(generator)

    def value_of(text: str) -> float:
        fresh = copy.deepcopy(dict(entry))  # some scorers play the answer out on the entry itself
        return scorer(dataset, text, fresh) if scorer is not None else float(dataset.score_answer(text, fresh))

    try:
        value = value_of(answer)
    except Exception:
        if isinstance(entry["answer"], str):
            value_of(entry["answer"])
        return 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
