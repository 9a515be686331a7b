"""Helpers of the signs in tables of few rows, and signs of columns without a name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gxpo.doctor.runlog import RunLog

LEAST_ROWS = 4  # of a table in which signs are looked for

# Names of columns that say how many answers are right, in reports that call them as they like.
VERDICT = re.compile(
    r"acc|(?<![a-z])(?:em|ex|f1)(?![a-z])|success|solve|correct|pass@|exact|gsm|math|mmlu|aime|humaneval|bench", re.I
)

PROXY = re.compile(r"proxy|judge|(?<![a-z])rm(?![a-z])|reward[ _-]?model", re.I)  # scores of a model of the reward

PERPLEXITY = re.compile(r"perplex|(?<![a-z])ppl(?![a-z])", re.I)


@dataclass(frozen=True)
class Sign:
    """Sign of a sickness in a few rows: the ids that fit, a title, and the series to quote."""

    ids: tuple[str, ...]
    title: str
    names: tuple[str, ...]


def score_of(log: RunLog) -> str:
    """Name of the series that should rise: reward, verdicts, or the only reward function that was recorded."""
    names = [name for name in ("reward", "success") if log.has(name)]
    parts = log.components()
    return names[0] if names else f"component/{parts[0]}" if len(parts) == 1 else "reward"


def stalls(log: RunLog) -> bool:
    """True if the last third of the rows is no better than the first: by less than two fifths of the range."""
    values = log.values(score_of(log))
    if len(values) < LEAST_ROWS:
        return False
    third = max(len(values) // 3, 2 if len(values) > 4 else 1)
    gain = float(values[-third:].mean() - values[:third].mean())
    return gain < 0.4 * float(np.ptp(values)) or gain < 0.02 * float(np.abs(values).max())


def ends(log: RunLog, name: str) -> tuple[float, float]:
    """First value and the median of the last two; nan where there are fewer than three."""
    values = log.values(name)
    return (float(values[0]), float(np.median(values[-2:]))) if len(values) >= 3 else (float("nan"), float("nan"))


def pays_something_unnamed(log: RunLog) -> Sign | None:
    """A reward that rises by half while a column that is named after right answers falls or stays."""
    reward = log.values("reward")
    for series in log.raw.values():
        values = series.column.values
        if len(values) >= LEAST_ROWS and PERPLEXITY.search(series.key) and values[-1] > 1.8 * values[0] > 0:
            title = f"the reward rises as {series.key} grows from {values[0]:.3g} to {values[-1]:.3g}"
            return Sign(("component_dominates", "kl_runaway", "judge_hacked"), title, ("reward", "kl", "length"))
    if reward[:2].mean() <= 0 or reward[-2:].mean() < 1.35 * reward[:2].mean():
        return None
    for series in log.raw.values():
        values = series.column.values
        is_share = len(values) >= LEAST_ROWS and 0 <= float(values.min()) <= float(values.max()) < 0.9
        if is_share and VERDICT.search(series.key) and values[-2:].mean() <= values[0] and values.any():
            title = f"the reward rises while {series.key} does not: it pays for something else"
            return Sign(("component_dominates", "memorising"), title, ("reward", "length"))
    return None


def pays_other_than_right(log: RunLog) -> Sign | None:
    """Two or three rows in which what tells right answers falls to two thirds, or a half of a sum's part, as the reward
    or its model pays more."""
    columns = [s.column for s in (*log.series.values(), *log.raw.values()) if len(s.column) >= 2]
    payers = [c for c in columns if PROXY.search(c.key)] or [log.column("reward")] * log.has("reward")
    is_more = any(0 < c.values[0] * 1.2 < c.values[-1] for c in payers)
    share = 2 / 3 if any(PROXY.search(c.key) for c in payers) else 1 / 2
    for column in columns if is_more else []:
        begin, end = float(column.values[0]), float(column.values[-1])
        if VERDICT.search(column.key) and 0.05 < begin <= 1 and end < share * begin:
            title = (
                f"{column.key} falls from {begin:.3g} to {end:.3g}, and {payers[0].key} pays more: for something else"
            )
            ids = ("judge_hacked", "component_dominates") if PROXY.search(payers[0].key) else ("component_dominates",)
            return Sign(ids, title, ("reward", "length", "kl"))
    return None


def unnamed_fall(log: RunLog) -> Sign | None:
    """Two or more shares without a name that fall to two thirds at most while the KL grows threefold."""
    begin, end = (abs(value) for value in ends(log, "kl"))
    if log.has("reward") or log.has("success") or not end > 3 * begin:
        return None
    columns = [s.column for s in log.raw.values() if len(s.column) >= 4]
    shares = [c for c in columns if 0 <= float(c.values.min()) <= float(c.values.max()) <= 1]
    fallen = [c for c in shares if float(c.values[-2:].mean()) < 2 / 3 * float(c.values.max())]
    if len(fallen) < max(2, len(shares) / 2):
        return None
    title = f"{', '.join(c.key for c in fallen[:3])} fall while the policy leaves its reference"
    return Sign(("kl_runaway", "lr_too_high"), title, ("kl", "entropy", "grad_norm"))


def grows_and_fails(log: RunLog) -> Sign | None:
    """Answers that grow threefold while a share without a name falls to a third of its best."""
    length = log.values("length")
    if log.has("reward") or log.has("success") or len(length) < LEAST_ROWS or length.max() < 3 * length[0]:
        return None
    long = int(length.argmax())
    for series in log.raw.values():
        values = series.column.values
        if len(values) != len(length) or not 0 <= float(values.min()) <= float(values.max()) <= 1:
            continue
        best = int(values.argmax())
        if 0 < best <= long and values[best] > 0.2 and values[best:].min() < values[best] / 3:
            title = f"answers grow to {length.max() / length[0]:.1f} times their length, and {series.key} falls"
            return Sign(("length_hack", "truncation", "no_eos"), title, ("length", "turns"))
    return None


def repeats_itself(log: RunLog) -> Sign | None:
    """A reward that rises with the length of the answers while their n-grams become fewer by a third."""
    distinct = [s.column.values for s in log.raw.values() if re.search(r"distinct|uniq|diversity", s.key, re.I)]
    length, score = log.values("length"), log.values(score_of(log))
    is_fewer = any(len(v) >= LEAST_ROWS and v[0] > 0 and float(v[-1]) < 2 / 3 * float(v[0]) for v in distinct)
    if not is_fewer or len(length) < LEAST_ROWS or length[-1] < 1.5 * length[0] or score[-1] <= score[0]:
        return None
    title = f"answers grow to {length[-1] / length[0]:.1f} times their length, repeat themselves and are paid for it"
    return Sign(("length_hack", "judge_hacked", "component_dominates"), title, ("length", "kl"))


def stays_level(log: RunLog) -> Sign | None:
    """Training and held-out score within a thirtieth in every row, over a hundred steps and more, far from the top."""
    score = log.values(score_of(log))
    held_out = next((v for n in ("eval/reward", "eval/accuracy") if len(v := log.values(n)) >= LEAST_ROWS), None)
    if held_out is None or len(score) < LEAST_ROWS or log.last_step < 100 or not 0.05 < score.mean() < 0.8:
        return None
    if any(float(np.ptp(v)) > 0.04 * float(np.abs(v).mean()) or v.max() > 1 for v in (score, held_out)):
        return None
    title = f"after {log.last_step} steps training and held-out answers score as at first"
    return Sign(("lr_too_low", "weights_do_not_move", "kl_too_high"), title, ("eval/reward", "eval/accuracy", "kl"))
