"""Documents of rules of graded complexity, and cases to decide by them (CC-Gen)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import GeneratedTasks, check_options
from gxpo.parts.protocols import Task

FACTS = ("amount", "days", "items", "visits")


def decides(text: str, task: Task) -> dict[str, float]:
    """Score a decision. `format`: yes or no, as its last word; `correct`: and it is what the rules say.

    >>> decides("The sum is below 40: yes.", Task("", "", "yes"))
    {'correct': 1.0, 'format': 1.0}
    """
    words = text.split()
    word = words[-1].strip(".,!\"'").casefold() if words else ""
    return {"correct": float(word == task.answer), "format": float(word in ("yes", "no"))}


@dataclass
class PolicyDocuments(GeneratedTasks):
    """A document of `rules` rules, one for each category, and a case of one category, allowed or not.

    levels  conditions of the rules, 1 to 4: a task's level is drawn from these; all conditions of a rule have to hold
    rules   of a document; the one that decides is in it, the others are of other categories

    Half of the cases are allowed; of the others one condition fails. `info` has the "level" and the "rule".
    """

    seed: int = 0
    levels: Any = (1, 2, 3, 4)
    rules: int = 3

    name: ClassVar[str] = "policies"
    scorer_name: ClassVar[str] = "policies"
    scorer_trusted: ClassVar[bool] = True
    scorer: ClassVar = staticmethod(decides)
    options: ClassVar[Mapping[str, Any]] = {"levels": (list, tuple), "rules": int}

    def __post_init__(self) -> None:
        check_options(self.name, {"levels": self.levels, "rules": self.rules}, self.options)
        if not self.levels or not {*self.levels} <= {1, 2, 3, 4} or not 1 <= self.rules <= 9:
            raise TaskError("task 'policies': levels are 1 to 4, and rules from 1 to 9")

    def propose(self, random: np.random.Generator) -> Task:
        level = int(random.choice(list(self.levels)))
        bounds = [[(fact, bool(random.integers(2)), int(random.integers(10, 90))) for fact in FACTS[:level]]
                  for _ in range(self.rules)]  # fmt: skip
        lines = [
            f"Category {i + 1}: allowed if "
            + " and ".join(f"{fact} is {'below' if below else 'above'} {bound}" for fact, below, bound in rule)
            for i, rule in enumerate(bounds)
        ]
        rule_number, is_allowed = int(random.integers(self.rules)), bool(random.integers(2))
        failing = -1 if is_allowed else int(random.integers(level))
        case = [
            f"{fact} {bound + (-1 if below != (i == failing) else 1) * int(random.integers(1, 9))}"
            for i, (fact, below, bound) in enumerate(bounds[rule_number])
        ]
        rule = lines[rule_number]
        question = f"A case of category {rule_number + 1}: {', '.join(case)}. Allowed? Answer yes or no."
        prompt = "\n".join([*lines, question])
        return Task(f"policies/{prompt}", prompt, "yes" if is_allowed else "no", {"level": level, "rule": rule})
