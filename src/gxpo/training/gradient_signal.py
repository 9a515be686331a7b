"""Share of signal in a step's gradient, by method and group size, measured before training.

Each group of rollouts adds its own part to the gradient of a step. If the parts are independent with mean m and
covariance C, then two halves of n groups each agree with an expected cosine of about n S / (1 + n S), S = |m|^2 / tr C
the signal of a group. Both |m|^2 and tr C are estimated from the inner products of the parts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import SignalTools
from gxpo.base.devices import to_host_float64
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.definition import SettingValue
from gxpo.parts.protocols import Budget
from gxpo.sampling.rollouts import Independent
from gxpo.training.bound_learner import BoundLearner
from gxpo.training.config import RunConfig, resolve
from gxpo.training.loop import Trainer
from gxpo.training.statistics import left_out

SKETCH = 1 << 18  # numbers that stand for a gradient of more parameters than that


@dataclass(frozen=True)
class SizeMeasurement:
    """One method at one group size.

    agreement         expected cosine of the gradients of two halves of the tasks
    signal            S of a task: |m|^2 / tr C, below 0 only by chance
    signal_error      its standard error, by leaving out one task at a time
    tokens_per_task   generated, discarded ones included
    noise_scale       tasks a step at which more of them stop paying: tr C / |m|^2 = 1 / S; None: no signal
    tokens_to_agree   that two batches need each to agree with a cosine of 1/2: tokens_per_task / S; None: no signal
    zero_signal_groups  share of the groups that add nothing
    relative          S per generated token over that of the first row, and `relative_error`; None: that one's is not
                      above 0
    along             cosine of the expected gradient with that of the first row; None: no signal here or there. Where
                      it is low, the signal is of something else than what the first row's gradient is after
    signal_without   S without each of the tasks
    """

    method: str
    group_size: int
    tasks: int
    agreement: float
    signal: float
    signal_error: float
    tokens_per_task: float
    noise_scale: float | None
    tokens_to_agree: float | None
    zero_signal_groups: float
    relative: float | None = None
    relative_error: float | None = None
    along: float | None = None
    signal_without: tuple[float, ...] = field(default=(), repr=False)


def signal_of(gram: Tensor) -> float:
    """|m|^2 / tr C from the inner products [n, n] of independent parts of a gradient.

    |m|^2 is the mean of the products of two different parts, tr C the mean square less that; both are unbiased, so
    where there is little signal the ratio may come out below 0. Parts that are all 0 have 0.

    >>> signal_of(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    1.0
    """
    n = len(gram)
    if n < 2:
        raise ConfigError("the signal is told from the differences of tasks: measure at least 2")
    mean = _between(gram)
    noise = float(gram.diagonal().mean()) - mean
    return mean / noise if noise > 0 else (float("inf") if mean > 0 else 0.0)


def noise_scale(small: int, square_small: float, large: int, square_large: float) -> float | None:
    """Gradient noise scale tr C / |m|^2 (McCandlish et al. 2018, appendix A.1) in units (tasks, rollouts), from the
    squared norms of the gradients of two batches of `small` and of `large` units. None where there is no signal.

    For logs that have norms of gradients at two batch sizes; `measure` has it from the parts themselves. A step of
    fewer units than the scale gains from more of them almost in proportion, a larger one hardly.

    >>> round(noise_scale(8, 5.0, 64, 2.0), 6)
    17.454545
    """
    if not 0 < small < large:
        raise ConfigError(f"two batches of different sizes are needed, the smaller first: got {small} and {large}")
    trace = (square_small - square_large) / (1 / small - 1 / large)
    mean = (large * square_large - small * square_small) / (large - small)
    return trace / mean if mean > 0 and trace > 0 else None


def cosine_of(parts: Tensor, base: Tensor) -> float | None:
    """Cosine of the means of what two [n, D] were drawn from, in the same n tasks: m·b / (|m| |b|), each from the inner
    products of different tasks, which are unbiased. None where one of the squares is not above 0."""
    if parts.shape != base.shape:  # of one of them nothing but zeros
        return None
    mean = [_between(x @ y.T) for x, y in ((parts, base), (parts, parts), (base, base))]
    return mean[0] / (mean[1] * mean[2]) ** 0.5 if min(mean[1:]) > 0 else None


def _between(products: Tensor) -> float:
    """The mean inner product of two different tasks, of [n, n]."""
    n = len(products)
    return float(products.sum() - products.diagonal().sum()) / (n * (n - 1))


def agreement_of(signal: float, groups: float) -> float:
    """Expected cosine of the gradients of two batches of so many groups each."""
    strength = max(signal, 0.0) * groups
    return 1.0 if strength == float("inf") else strength / (1 + strength)


def measure(
    model: str,
    task: str,
    methods: Sequence[str],
    sizes: Sequence[int],
    tasks: int = 128,
    keys: Mapping[str, Any] | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> list[SizeMeasurement]:
    """Every method at every group size, on the same tasks; attempt i of a task is the same at every size.

    keys: further keys of the run. Only the attempts are generated; nothing is trained. ConfigError where a method has
    no `rollout.group_size`.
    """
    if min(sizes, default=0) < 1:
        raise ConfigError(f"group sizes are whole numbers above 0, not {', '.join(map(str, sizes)) or 'none'}")
    rows: list[SizeMeasurement] = []
    base: Tensor | None = None  # the gradients of the first row
    nested_forest: Forest | None = None  # independent attempts, not yet cut into any method's segments
    for method in methods:
        run_keys = {"model": model, "task": task, "method": method, "tasks.per_step": tasks, **(keys or {})}
        # Attempts of a smaller group are the first of a larger one: sampled once, for all sizes.
        is_nested = isinstance(_resolve(run_keys, max(sizes)).method.rollout, Independent)
        for size in [max(sizes)] if is_nested else sizes:
            with tempfile.TemporaryDirectory(prefix="gxpo-signal-") as folder:
                trainer = Trainer(_resolve(run_keys, size), out=Path(folder) / "run", notify=notify)
                try:
                    budget = Budget()
                    session = trainer.session(1, seed=trainer.settings.seed, sampling=trainer.sampling, budget=budget)
                    session_tasks = session.draw(tasks)
                    # The same attempts for every method too, which takes their luck out of the comparison.
                    forest = nested_forest if is_nested else None
                    if forest is None:
                        forest = session.score(trainer.method.rollout.grow(session_tasks, session))
                    if is_nested:
                        nested_forest = forest
                    forest = session.segment(forest)
                    tools = trainer.tools(1, session)
                    for group_size in sizes if is_nested else [size]:
                        subset = forest.select(_first(forest, group_size)) if is_nested else forest
                        tokens = subset.n_entries if is_nested else budget.generated_tokens
                        parts = gradients(trainer, trainer.shape(subset), tools)
                        base = parts if base is None else base
                        figures = _measure_size(method, group_size, parts, tokens / tasks)
                        notify(f"{method}, groups of {group_size}: agreement {figures.agreement:.3f}")
                        rows.append(replace(figures, along=cosine_of(parts, base)))
                finally:
                    trainer.close()
    return [_relate(m, rows[0]) for m in rows]


def _resolve(keys: Mapping[str, Any], size: int) -> RunConfig:
    settings = {k: v if isinstance(v, SettingValue) else SettingValue(v, "gxpo signal") for k, v in keys.items()}
    return resolve({**settings, "rollout.group_size": SettingValue(size, "--sizes")})


def _first(forest: Forest, size: int) -> Tensor:
    """[R] bool: the first so many attempts of every group."""
    group = forest.ids("group", axis="R")
    before = (group[:, None] == group[None, :]).tril(-1).sum(1)
    return before < size


def _measure_size(method: str, size: int, parts: Tensor, per_task: float) -> SizeMeasurement:
    # All figures come from inner products: as many numbers as tasks squared, however large the model is.
    gram = parts @ parts.T
    signal, n = signal_of(gram), len(gram)
    others = ~torch.eye(n, dtype=torch.bool)
    # Leaving one task out at a time gives the error of the signal.
    signal_without = tuple(signal_of(gram[keep][:, keep]) for keep in others) if n > 2 else ()
    return SizeMeasurement(
        method,
        size,
        n,
        agreement_of(signal, n / 2),
        signal,
        left_out(signal_without),
        per_task,
        1 / signal if signal > 0 else None,
        per_task / signal if signal > 0 else None,
        float((gram.diagonal() == 0).double().mean()),
        signal_without=signal_without,
    )


def _relate(m: SizeMeasurement, base: SizeMeasurement) -> SizeMeasurement:
    """Against the signal of `base` per token, on the same tasks; the error is that of the ratio itself."""
    if not 0 < base.signal < float("inf"):
        return m
    cost = m.tokens_per_task / base.tokens_per_task
    ratios = [x / y / cost if y else float("nan") for x, y in zip(m.signal_without, base.signal_without, strict=True)]
    return replace(m, relative=m.signal / base.signal / cost, relative_error=left_out(ratios))


def gradients(trainer: Trainer, forest: Forest, tools: SignalTools) -> Tensor:
    """[tasks, D] what the rollouts of each task add to the gradient of the step's objective, or sketches of it whose
    inner products are the same on average."""
    forest_in_context, signals, advantage_P, weight_P = trainer.assign_credit(forest, tools)
    bound = BoundLearner(trainer.learner, trainer.method, forest_in_context, signals, tools.step)
    # Slopes of the whole step's loss by each output: with them fixed, the step's gradient is a sum over tasks.
    slopes = bound.slopes(forest_in_context, advantage_P, weight_P)
    slopes = {n: g for n, g in slopes.items() if n == "logprob" or bool((g != 0).any())}
    index_by_task = {name: i for i, name in enumerate(dict.fromkeys(forest_in_context.task))}
    task_index_P = torch.tensor([index_by_task[name] for name in forest_in_context.task])[
        forest_in_context.path_trajectory
    ]
    has_slope_P = torch.stack([(slope != 0).reshape(len(task_index_P), -1).any(1) for slope in slopes.values()]).any(0)
    rows: list[Tensor | None] = []
    for i in range(len(index_by_task)):
        is_of_task = task_index_P == i
        # A task without signal has a gradient of 0: no forward and backward pass for it.
        if not bool((has_slope_P & is_of_task).any()):
            rows.append(None)
            continue
        # The slopes are constants here: the gradient of their product with the outputs is that of the loss.
        part = bound.learner.gradient(
            forest_in_context,
            lambda x, mask=is_of_task: torch.stack([(slopes[n] * x[n])[mask].sum() for n in slopes]).sum(),
            names=tuple(slopes),
            active=has_slope_P & is_of_task,
            **bound.constant_arguments(signals),
        )
        rows.append(_sketch(part))
    width = next((len(row) for row in rows if row is not None), 1)
    return torch.stack([torch.zeros(width, dtype=torch.float64) if row is None else row for row in rows])


def _sketch(gradient: Mapping[str, Tensor]) -> Tensor:
    """All of a gradient in one row, or, of many parameters, `SKETCH` sums of them with random signs."""
    total = sum(x.numel() for x in gradient.values())
    if total <= SKETCH:
        return torch.cat([to_host_float64(x.detach().reshape(-1)) for x in gradient.values()])
    out = torch.zeros(SKETCH, dtype=torch.float64)
    for number, x in enumerate(gradient.values()):
        draws = torch.Generator().manual_seed(number)
        place = torch.randint(SKETCH, (x.numel(),), generator=draws)
        sign = torch.randint(2, (x.numel(),), generator=draws) * 2.0 - 1.0
        out.index_add_(0, place, sign.double() * to_host_float64(x.detach().reshape(-1)))
    return out


def recommend(rows: Sequence[SizeMeasurement]) -> tuple[SizeMeasurement | None, bool]:
    """Find the row that needs the fewest tokens to agree, and whether it beats the second beyond their errors."""
    ranking = sorted((m for m in rows if m.tokens_to_agree is not None), key=lambda m: m.tokens_to_agree or 0.0)
    if not ranking:
        return None, False
    if len(ranking) == 1:
        return ranking[0], True
    first, second = ranking[:2]
    gap = first.signal / first.tokens_per_task - second.signal / second.tokens_per_task
    pairs = zip(
        first.signal_without, second.signal_without, strict=True
    )  # of the same tasks: what moves both moves no difference
    return first, gap > 2 * left_out([x / first.tokens_per_task - y / second.tokens_per_task for x, y in pairs])


def as_rows(rows: Sequence[SizeMeasurement]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{k: v for k, v in asdict(m).items() if k != "without"} for m in rows]
