"""Every generator of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760) as a task source."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.answers import TAGGED
from gxpo.base.errors import TaskError, did_you_mean, need
from gxpo.environments.tasks import gym_scores
from gxpo.environments.tasks.source import GeneratedTasks, check_options
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

UNSUPPORTED = {"composite": "it only mixes other generators; name one of those"}
ANSWER = re.compile(TAGGED, re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
READINGS = ("tagged", "number")  # how the answer is found in a text
TEMPLATE = "{question}\nGive the final answer between <answer> and </answer>.\n"


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
    """Score an answer. `score`: the generator's own `score_answer`, from 0 to 1, as `tasks.gym_scores` guards and
    repairs it: an answer that it can't read is wrong. `correct`: whether that is 1.
    `format`: whether there is exactly one `<answer>...</answer>`.

    Scored is the text between the last `<answer>` and `</answer>`, or the whole text if there are none, without
    surrounding blanks; where `task.info["reading"]` is "number", the last number of that. Needs only the text and the
    task, so it can run in another process.
    """
    found = ANSWER.findall(text)
    answer = (found[-1] if found else text).strip()
    if task.info.get("reading") == "number":
        answer = (NUMBER.findall(answer) or [answer])[-1]
    dataset = _judge(task.info["generator"], json.dumps(task.info["config"], sort_keys=True))
    value = gym_scores.score(task.info["generator"], dataset, answer, task.info["entry"])
    return {"correct": float(value >= 1.0), "format": float(len(found) == 1), "score": value}


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
        known = generators()
        if self.generator not in known:
            raise TaskError(f"reasoning_gym has no generator {self.generator!r}{did_you_mean(self.generator, known)}")
        check_options(
            self.name, {"config": self.config, "template": self.template, "reading": self.reading}, self.options
        )
        if self.reading not in READINGS:
            raise TaskError(f"task {self.name!r}: reading is {' or '.join(READINGS)}, not {self.reading!r}")
        if "{question}" not in self.template:
            raise TaskError(f"task {self.name!r}: template must contain {{question}}, not {self.template!r}")
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
