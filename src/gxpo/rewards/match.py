"""Reward `match`: similarity of an answer to its reference, by a metric of structured answers or of texts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gxpo.answers import ANSWER, compiled, extract
from gxpo.cells import cell
from gxpo.errors import ConfigError, GxpoError, did_you_mean, one_of
from gxpo.protocols import SAME_AS
from gxpo.rewards.functions import load, names_file
from gxpo.rewards.group_level import Failure
from gxpo.rewards.metrics import REFERENCE_FREE, Unreadable, metric_of, options_of
from gxpo.usercode import described

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Task

MALFORMED = "malformed_"  # components that begin so: the answer could not be read
NOTE = "info."  # a text that begins so names what a task has in its info


def of_task(named: Any, task: Task) -> Any:
    """`info.NAME` as the task has it, None where it does not; any other value as it is."""
    return cell(task.info, named.removeprefix(NOTE)) if isinstance(named, str) and named.startswith(NOTE) else named


@dataclass(frozen=True)
class Comparison:
    """How one kind of answer is compared with its reference: scale * clip(score), in this order:

    metric     (answer, reference, **options) -> score, 1 the best there is: in a configuration a name in
               `gxpo.rewards.metrics.METRICS`, or `my_metrics.py:FUNCTION`
    options    of the metric; one that is `info.NAME` is the task's own (`schema: info.schema`)
    pattern    its groups catch the answer in a text, the last catch counts; None: the whole text
    reference  "answer": the task's;   `info.NAME`
    baseline   score that unrelated answers have: becomes (score - baseline) / (1 - baseline)
    clip       (low, high): bounds of the score; None: as it is
    gate       a score below it earns 0
    pay        "score", or "pass": 1 from the gate on
    scale      what a score of 1 is worth
    """

    metric: Callable[..., float]
    options: Mapping[str, Any] = field(default_factory=dict)
    pattern: str | None = ANSWER
    reference: str = "answer"
    baseline: float = 0.0
    clip: tuple[float, float] | None = None
    gate: float | None = None
    pay: Literal["score", "pass"] = "score"
    scale: float = 1.0

    @classmethod
    def make(cls, given: Mapping[str, Any], key: str) -> Comparison:
        """Of the options of a configuration, the metric's among them; `key` is what errors call them."""
        metric = given.get("metric")
        if metric is None:
            raise ConfigError(f"{key}: say by which metric, as in {{metric: wer}}")
        function = metric
        if isinstance(metric, str):
            function = load(metric) if names_file(metric) else metric_of(metric, f"{key}.metric")
        own = {f.name for f in dataclasses.fields(cls)} - {"options"}
        theirs = options_of(function)
        for name in set(given) - own - set(theirs):
            there = did_you_mean(name, [*own, *theirs]) or f"; {metric} has {', '.join(theirs) or 'no options'}"
            raise ConfigError(f"{key} has no {name!r}{there}")
        options = {name: value for name, value in given.items() if name in theirs}
        made = {name: value for name, value in given.items() if name in own and name not in theirs}
        made["metric"] = function
        if made.get("clip") is not None:
            made["clip"] = tuple(made["clip"])
        comparison = cls(**made, options=options)
        comparison.check(key)
        return comparison

    def check(self, key: str) -> None:
        """ConfigError for values that make no sense."""
        if self.pattern is not None:
            compiled(self.pattern, f"{key}.pattern")
        one_of(f"{key}.pay", self.pay, ("score", "pass"))
        if self.reference != "answer" and not str(self.reference).startswith(NOTE):
            raise ConfigError(f"{key}.reference is 'answer' or info.NAME, not {self.reference!r}")
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] <= self.clip[1]):
            raise ConfigError(f"{key}.clip is two bounds, the lower first, not {list(self.clip)}")
        if not self.baseline < 1:
            raise ConfigError(f"{key}.baseline must be below 1, not {self.baseline!r}")
        if self.pay == "pass" and self.gate is None:
            raise ConfigError(f"{key}.pay=pass needs a gate")

    @property
    def answered(self) -> bool:
        """Whether tasks must have an answer."""
        free = (*REFERENCE_FREE, *(("json_schema",) if "schema" in self.options else ()))
        return self.reference == "answer" and self.metric.__name__ not in free

    def said(self, text: str) -> str:
        """The answer in a text; Unreadable without one."""
        found = text.strip() if self.pattern is None else extract(text, compiled(self.pattern, "pattern"))
        if not found:
            raise Unreadable("no answer")
        return found

    def score(self, answer: str, reference: Any, task: Task) -> float:
        """What the answer is worth beside the reference; Unreadable, or nan where there is nothing to compare with."""
        options = {name: of_task(value, task) for name, value in self.options.items()}
        return self.worth(self.metric(answer, reference, **options))

    def worth(self, score: float) -> float:
        """What a score is worth: see the class."""
        value = (float(score) - self.baseline) / (1 - self.baseline)
        if self.clip is not None and not math.isnan(value):
            value = min(max(value, self.clip[0]), self.clip[1])
        if self.gate is not None and not math.isnan(value):
            value = 0.0 if value < self.gate else 1.0 if self.pay == "pass" else value
        return self.scale * value


class Compared:
    """A group-level reward that compares texts: unreadable answers are 0 and counted, failures cost one rollout."""

    name = ""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self.reports = (f"{MALFORMED}{self.name}",)
        self.gives = (self.name, *self.reports)

    def failures(self) -> list[Failure]:
        """What went wrong since it was last asked."""
        found, self._failures = self._failures, []
        return found

    def _all(self, values: Sequence[Callable[[], float]], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """{NAME: [R], "malformed_NAME": [R]} of what each rollout's value is."""
        out, malformed = [], []
        for value, task in zip(values, tasks, strict=True):
            score, unread = math.nan, False
            try:
                score = value()
                if not math.isfinite(score):
                    self._failures.append(("nonsense", f"nothing to compare with (task {task.id})"))
            except Unreadable:
                score, unread = 0.0, True
            except GxpoError:
                raise
            except Exception as error:
                self._failures.append(("raised", f"{described(error)} (task {task.id})"))
            out.append(score)
            malformed.append(float(unread))
        columns = dict(zip(self.gives, (out, malformed), strict=True))
        return {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}


class Match(Compared):
    """{"match": [R]}: what each answer is worth beside its task's reference, by `Comparison`.

    comparisons  by kind of answer, as `by` (`info.NAME`) says of a task; without it the one that there is

    malformed_match  1 where the answer could not be read, and match is 0: recorded, not counted
    A reference that is missing or can't be read leaves the rollout unscored. `success` stays the verifier's.
    """

    name = "match"

    def __init__(self, comparisons: Mapping[Any, Comparison], by: str | None = None) -> None:
        super().__init__()
        self.comparisons, self.by = dict(comparisons), by

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Match:
        """Of `scoring.options.match`: a comparison; or `by: info.KIND` and `route: {KIND: a comparison}`, of which each
        has what is said beside them where it says nothing else."""
        key = "scoring.options.match"
        common = {name: value for name, value in options.items() if name not in ("route", "by")}
        route, by = options.get("route"), options.get("by", "info.kind")
        if route is None:
            if "by" in options:
                raise ConfigError(f"{key}.by needs route: {{KIND: {{metric: ...}}}}")
            return cls({None: Comparison.make(common, key)})
        if not isinstance(route, Mapping) or not route or not str(by).startswith(NOTE):
            raise ConfigError(f"{key}: route is {{KIND: {{metric: ...}}}} and by is info.NAME, not {by!r}")
        return cls({kind: Comparison.make({**common, **own}, f"{key}.route.{kind}") for kind, own in route.items()}, by)

    @property
    def answered(self) -> bool:
        """Whether every task must have an answer."""
        return all(comparison.answered for comparison in self.comparisons.values())

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        values = [lambda text=text, task=task: self._one(text, task) for text, task in zip(texts, tasks, strict=True)]
        return self._all(values, tasks)

    def _one(self, text: str, task: Task) -> float:
        kind = None if self.by is None else of_task(self.by, task)
        if kind not in self.comparisons:
            known = f"scoring.options.match.route has {', '.join(map(str, self.comparisons))}"
            raise ConfigError(f"match: task {task.id!r} has {self.by}={kind!r}; {known}")
        comparison = self.comparisons[kind]
        reference = task.answer if comparison.reference == "answer" else of_task(comparison.reference, task)
        return comparison.score(comparison.said(text), reference, task)


class Consistency(Compared):
    """{"consistency": [R]}: mean score of an answer against the answers to other wordings of its task (PS-GRPO).

    r_ij = 1 / ((n - 1) g) sum over wordings u other than i, answers m of score(answer ij, answer um)

    Wordings of one task have one `info.same_as`. The answer is the metric's hypothesis, the other its reference, as not
    all metrics are symmetric. Nothing is known of the truth: being consistently wrong is worth as much as being right,
    so add a reward that knows it. An answer that can't be read has 0, is counted in `malformed_consistency`, and is 0
    for the others. Of the others those count that the policy made and that are compared. A task with no other wording
    in the step is unscored.

    Source: Con-RAG (arXiv 2510.04392), PS-GRPO.
    """

    name = "consistency"

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> Consistency:
        """Of `scoring.options.consistency`: a comparison, whose reference is not read; by `bleu` where nothing says."""
        return cls(Comparison.make({"metric": "bleu", **options}, "scoring.options.consistency"))

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        said = [self._said(text) for text in texts]
        others: dict[Any, list[int]] = {}
        for r, (task, fair, origin) in enumerate(zip(tasks, forest.compared.tolist(), forest.origin, strict=True)):
            if fair and origin == "policy" and SAME_AS in task.info:
                others.setdefault(str(task.info[SAME_AS]), []).append(r)

        def mean(r: int) -> float:
            own = said[r]
            if own is None:
                raise Unreadable("no answer")
            met = [u for u in others.get(str(tasks[r].info.get(SAME_AS)), ()) if tasks[u].id != tasks[r].id]
            scores = [0.0 if (other := said[u]) is None else self._score(own, other, tasks[r]) for u in met]
            return sum(scores) / len(scores) if scores else math.nan

        return self._all([lambda r=r: mean(r) for r in range(len(texts))], tasks)

    def _said(self, text: str) -> str | None:
        try:
            return self.comparison.said(text)
        except Unreadable:
            return None

    def _score(self, own: str, other: str, task: Task) -> float:
        score = self.comparison.score(own, other, task)
        return 0.0 if math.isnan(score) else score  # the other's answer is nothing that can be compared with
