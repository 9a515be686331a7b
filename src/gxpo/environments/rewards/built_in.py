"""Built-in rewards: key steps of a solution, form of an answer, named entities, numbers by relative error."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.final_answer import find_answers
from gxpo.forest.forest import Forest

if TYPE_CHECKING:
    from gxpo.parts.protocols import Task


# ---------------------------------------------------------------- key steps
# Reasoning rewards: share of a solution's key steps that are mentioned, and order of the answer's parts.
HEADINGS = ("### Image Description:", "### Rationales:", "### Step 1:", "### The final answer is:")
STEP = r"### Step (\d+):"


def contained(text: str, key_steps: Sequence[str | Sequence[str]]) -> float:
    """Share of the key steps that a text contains, in any of their wordings, ignoring case; 0 without key steps.

    >>> contained("so 6/3=2, then 2 + 5 = 7", [["6/3=2", r"\\frac{6}{3}=2"], "2*5=10"])
    0.5
    """
    lower_text = text.lower()
    wordings = [[step] if isinstance(step, str) else step for step in key_steps]
    return sum(any(w.lower() in lower_text for w in step_wordings) for step_wordings in wordings) / max(
        1, len(wordings)
    )


def in_steps(text: str, step: str = STEP) -> str:
    """Text below the step headings, each up to the next one or to a line that begins with "###".

    >>> in_steps("### Rationales: 1\\n### Step 1: 2\\n3\\n### Step 2: 4\\n### The final answer is: 5")
    '2\\n3 4'
    """
    heads = list(re.finditer(step, text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return " ".join(text[head.end() : end].split("\n###")[0].strip() for head, end in zip(heads, ends, strict=False))


def in_order(text: str, parts: Sequence[str]) -> float:
    """Order check: 1.0 where all regular expressions match, ignoring case, and in their order; else 0.0.

    >>> in_order("Background: x. The answer is 2", ["background", "answer"]), in_order("Answer 2", ["2", "answer"])
    (1.0, 0.0)
    """
    matches = [re.search(part, text, re.IGNORECASE) for part in parts]
    begins = [match.start() for match in matches if match is not None]
    return float(len(begins) == len(parts) and all(a < b for a, b in pairwise(begins)))


def valid(text: str, parts: Sequence[str] = HEADINGS, step: str = STEP) -> float:
    """Format check: 1.0 where all regular expressions `parts` match, the steps are numbered 1, 2, ... and the last part
    comes after their headings, or ends the text; else 0.0. The order of the other parts is not looked at.

    >>> heads = "### Image Description: a\\n### Rationales: b\\n### Step 1: c"
    >>> valid(heads + "\\n### The final answer is: 2"), valid(heads + "\\n### Step 3: d\\n### The final answer is: 2")
    (1.0, 0.0)
    """
    heads = list(re.finditer(step, text))
    if not heads or not all(re.search(part, text) for part in parts):
        return 0.0
    last_part = re.search(parts[-1], text)
    at_end = re.search(f"(?:{parts[-1]})\\s*\\Z", text) or (
        last_part is not None and last_part.start() >= heads[-1].end()
    )
    return float(bool(at_end) and [int(head[1]) for head in heads] == list(range(1, len(heads) + 1)))


@dataclass(eq=False)
class KeySteps:
    """Key-step reward: {"key_steps": `contained` of the task's `info["key_steps"]`, "ordered"}. Recorded, not
    counted; "key_steps" is 0 where a task names none.

    parts  regular expressions for the parts of an answer, the last of them for its end (default: R1-VL's headings)
    step   regular expression for the heading of a step, its number the first group: key steps count `in_steps` alone,
           and "ordered" is `valid`. "": they count anywhere, and "ordered" is `in_order` of the parts. Default: R1-VL's
           heading, or "" where you give parts of your own.
    """

    parts: Sequence[str] = HEADINGS
    step: str | None = None

    name = "key_steps"
    gives = ("key_steps", "ordered")
    reports = ("key_steps", "ordered")

    def __post_init__(self) -> None:
        if self.step is None:
            self.step = STEP if tuple(self.parts) == HEADINGS else ""
        for part in (*self.parts, self.step):
            try:
                groups = re.compile(part).groups
            except re.error as error:
                raise ConfigError(f"key_steps: {part!r} is no regular expression: {error}") from None
        if not self.parts or (self.step and not groups):
            raise ConfigError(
                "key_steps: parts needs at least one regular expression, and step a group for the number of the step"
            )

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        step = self.step or ""
        step_texts = [in_steps(text, step) if step else text for text in texts]
        share = [contained(text, task.info.get("key_steps", ())) for text, task in zip(step_texts, tasks, strict=True)]
        order = [valid(text, self.parts, step) if step else in_order(text, self.parts) for text in texts]
        return {name: torch.tensor(x, dtype=torch.float64) for name, x in zip(self.gives, (share, order), strict=True)}


# ---------------------------------------------------------------- format
# Format reward: exactly one final answer, in `<answer>` tags or `\boxed{}`.
def well_formed(completion: str) -> float:
    r"""Format check: 1.0 for exactly one non-empty `<answer>...</answer>`, after all boxes, or, without tags, exactly
    one non-empty `\boxed{...}`, outside the thought; all are closed. It is the answer that `math` reads
    (`gxpo.environments.rewards.final_answer`).

    >>> [well_formed(x) for x in ("2 and 2 <answer>4</answer>", r"so \boxed{4}", r"\boxed{4", "4")]
    [1.0, 1.0, 0.0, 0.0]
    """
    return float(find_answers(completion).is_well_formed)


# ---------------------------------------------------------------- entities
# Entity reward: share of a solution's entities that an attempt mentions.
def mentioned(text: str, entities: Sequence[str]) -> float:
    """Share of the entities that a text mentions, ignoring case and spaces; nan without entities.

    >>> mentioned("From  Paris to\\nnew york", ["New York", "Oslo"])
    0.5
    """
    normal_text = " ".join(text.lower().split())
    is_mentioned = [" ".join(entity.lower().split()) in normal_text for entity in entities]
    return sum(is_mentioned) / len(is_mentioned) if is_mentioned else math.nan


@dataclass(eq=False)
class Entities:
    """The reward "entities": the share of the task's `info["entities"]` that an attempt mentions. Recorded, not
    counted; nan where a task names none.
    """

    name = "entities"
    gives = ("entities",)
    reports = ("entities",)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        share_R = [mentioned(text, task.info.get("entities", ())) for text, task in zip(texts, tasks, strict=True)]
        return {"entities": torch.tensor(share_R, dtype=torch.float64)}


# ---------------------------------------------------------------- numbers by relative error
NUMBER = re.compile(r"(?:(?<!\d)[-+])?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d*\.\d+|\d+)(?:/\d+)?")


def number_in(text: Any) -> float | None:
    """Last number in `text` (1,000; -2.5; 3/4); None without one, for a division by 0, or beyond a float.

    >>> number_in("about 1,250 people"), number_in("3/4"), number_in("none")
    (1250.0, 0.75, None)
    """
    numbers = NUMBER.findall(str(text))
    if not numbers:
        return None
    numerator, _, denominator = numbers[-1].replace(",", "").partition("/")
    if denominator and float(denominator) == 0:
        return None
    value = float(numerator) / float(denominator or 1)
    return value if math.isfinite(value) else None


def graded(gap: Tensor, top: float = 1.5, width: float = 0.5) -> Tensor:
    """Graded reward: top - gap where gap < width, else 0; float64, nan stays. Just within width earns top - width.

    >>> [round(x, 6) for x in graded(torch.tensor([0.0, 0.1, 0.3, 0.49, 0.51])).tolist()]
    [1.5, 1.4, 1.2, 1.01, 0.0]
    """
    x = gap.to(torch.float64)
    return torch.where(x.isnan() | (x < width), top - x, 0.0)


@dataclass(eq=False)
class Numeric:
    """{"numeric": [R]}: `graded` of the relative error |y - y'| / |y|, y the task's answer, y' the number given.

    pattern  its groups catch the answer in a text; the last number in the last catch is y'
    top      reward of the exact number;   width  relative error from which on the reward is 0

    A text without a number is wrong. Of y = 0 only 0 itself is near. A task whose answer holds no number can't be
    scored by it: nan.

    Source: FGRPR (CrowdVLM-R1, arXiv 2504.03724) and its code, where y' is a string of digits, and y = 0 earns 0.
    """

    pattern: str = ANSWER
    top: float = 1.5
    width: float = 0.5

    name = "numeric"
    gives = ("numeric",)

    def __post_init__(self) -> None:
        self._read = compiled(self.pattern, "scoring.options.numeric.pattern")
        if not 0 < self.width <= self.top:
            raise ConfigError(
                f"scoring.options.numeric: width ({self.width!r}) is above 0 and at most top ({self.top!r}), so that "
                "no answer earns less than 0"
            )

    def gap(self, text: str, answer: Any) -> float:
        """Relative error of the number in a text; inf without one, nan without a number in the answer."""
        expected, actual = number_in(answer), number_in(extract(text, self._read) or "")
        if expected is None or answer is None:
            return math.nan
        if actual is None:
            return math.inf
        return abs(expected - actual) / abs(expected) if expected else (0.0 if actual == 0 else math.inf)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        gaps = [self.gap(text, task.answer) for text, task in zip(texts, tasks, strict=True)]
        return {"numeric": graded(torch.tensor(gaps, dtype=torch.float64), self.top, self.width)}
