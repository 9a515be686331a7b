"""Completions against the reference answers beside them: hits, chance, neighbours, agreement, form."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.rollout_references import Holder, bare
from gxpo.doctor.rollouts import Rollouts

Index = NDArray[np.int64]
# names of reward functions that say whether an answer is right, against those of style and price
CORRECT = re.compile(r"acc|correct|exact|match|answer|solve|right|success|verif|outcome|task|math|score", re.I)
STYLE = re.compile(r"format|len|brev|short|long|penalt|cost|style|tag|xml|repet|think|soft|strict|bonus", re.I)
SHIFTS = (-3, -2, -1, 1, 2, 3)  # prompts by which references may be off


@dataclass(frozen=True)
class References:
    """Completions against the reference answers beside them.

    n            rollouts with a score and a reference
    hits         of them those that contain their reference as words of its own
    chance       share that contains the reference of another prompt
    accepted     share of the hits with more than the lowest score
    score_hit    mean score of hits, and `score_miss` of the others, as shares of the score's range
    rejected     row indices of hits with the lowest score
    shift        (prompts by which references are off, share of completions with that one, share with their own)
    consensus    (share of answers that are their group's commonest, share of groups whose commonest contains the
                 reference, groups) where answers agree with each other and not with the reference
    contradictions, repeated   prompts with more than one reference, prompts that occur in several groups; and rows
    """

    n: int
    hits: int
    chance: float
    accepted: float
    score_hit: float
    score_miss: float
    rejected: Index
    shift: tuple[int, float, float] | None
    consensus: tuple[float, float, int] | None
    contradictions: int
    repeated: int
    contradicting: Index


def words(text: str) -> str:
    """Words and numbers of a text, in lower case between single spaces: " 12 apples ", so that 12 is not in 312."""
    return " " + " ".join(re.findall(r"-?\d+(?:[.,]\d+)*|[^\W\d_]+", text.lower())) + " "


def references_of(r: Rollouts, members: Sequence[Index]) -> References | None:
    """None where fewer than 20 scored rollouts have a reference, or fewer than three differ."""
    rows = [i for i in range(len(r)) if bare(r.reference[i] or "") and np.isfinite(r.score[i])]
    by_group: dict[int, set[str | None]] = defaultdict(set)
    for i in rows:
        by_group[int(r.group[i])].add(r.reference[i])
    if np.mean([len(x) > 1 for x in by_group.values()] or [0.0]) > 0.2:
        return None  # what stands beside the completions is no answer to the group's task
    told = {i: bare(r.reference[i] or "").lower() for i in rows}
    kinds = sorted(set(told.values()))
    if len(rows) < 20 or len(kinds) < 3:
        return None
    said = {i: Holder(r.completion[i]) for i in rows}
    hit = np.array([said[i].holds(told[i]) for i in rows])
    other = np.random.Generator(np.random.Philox(0)).integers(1, len(kinds), size=len(rows))
    place = {k: n for n, k in enumerate(kinds)}
    drawn = [kinds[(place[told[i]] + o) % len(kinds)] for i, o in zip(rows, other, strict=True)]
    chance = np.array([said[i].holds(d) for i, d in zip(rows, drawn, strict=True)])
    named = [v for n, v in r.components.items() if CORRECT.search(n) and not STYLE.search(n)]
    score = r.score[rows]
    if len(r.components) > 1 and len(named) == 1 and np.isfinite(named[0][rows]).all():
        score = named[0][rows]  # what is said of the answer, without form and price
    low, high = float(score.min()), float(score.max())
    span = high - low
    lowest = score <= low + 0.05 * span if span > 0 else np.full(len(rows), high <= 0)
    index = np.array(rows)
    repeated, contradictions, shown = _contradictions(r, rows, told)
    return References(
        len(rows),
        int(hit.sum()),
        float(chance.mean()),
        float((~lowest)[hit].mean()) if hit.any() else float("nan"),
        float((score[hit].mean() - low) / span) if hit.any() and span > 0 else float("nan"),
        float((score[~hit].mean() - low) / span) if (~hit).any() and span > 0 else float("nan"),
        index[hit & lowest],
        _shift(r, rows, told, said, float(hit.mean()), float(chance.mean())),
        _consensus(r, members, told, said),
        contradictions,
        repeated,
        shown,
    )


def _contradictions(r: Rollouts, rows: list[int], told: dict[int, str]) -> tuple[int, int, Index]:
    """(prompts that occur in several groups, of them those with several references, rows of one of them)."""
    of_group: dict[int, set[str]] = defaultdict(set)
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    for i in rows:
        of_group[int(r.group[i])].add(told[i])
        groups[r.prompt[i]].setdefault(int(r.group[i]), i)
    repeated = [held for held in groups.values() if len(held) > 1]
    several = [held for held in repeated if len(set.union(*(of_group[g] for g in held))) > 1]
    return len(repeated), len(several), np.array([i for h in several[:1] for i in h.values()], dtype=np.int64)


def _shift(
    r: Rollouts, rows: list[int], told: dict[int, str], said: dict[int, Holder], own: float, chance: float
) -> tuple[int, float, float] | None:
    """Whether completions contain the reference of a neighbouring group far more often than their own."""
    order = list(dict.fromkeys(int(r.group[i]) for i in rows))
    reference = {int(r.group[i]): told[i] for i in rows}
    step = {int(r.group[i]): int(r.step[i]) for i in rows}
    at = {g: n for n, g in enumerate(order)}
    best: tuple[int, float, float] | None = None
    for shift in SHIFTS:
        found = []
        for i in rows:
            place = at[int(r.group[i])] + shift
            if 0 <= place < len(order) and step[order[place]] == step[int(r.group[i])]:
                found.append(said[i].holds(reference[order[place]]))
        if (
            len(found) >= 20
            and np.mean(found) > max(0.15, 3 * own, 3 * chance)
            and (best is None or np.mean(found) > best[1])
        ):
            best = (shift, float(np.mean(found)), own)
    return best


def _consensus(
    r: Rollouts, members: Sequence[Index], told: dict[int, str], said: dict[int, Holder]
) -> tuple[float, float, int] | None:
    """Groups at least half of whose answers are the same, and whether that one contains the reference."""
    agree, right = [], []
    for group in members:
        rows = [i for i in group.tolist() if i in told]
        if len(rows) < 3:
            continue
        answers = {i: said[i].last or words(r.completion[i]) for i in rows}
        answer, count = Counter(answers.values()).most_common(1)[0]
        if answer.strip() and count >= 0.5 * len(rows):
            agree.append(count / len(rows))
            right.append(any(said[i].holds(told[i]) for i in rows if answers[i] == answer))
    if len(agree) < 8 or len(agree) < 0.3 * len(members) or np.mean(right) > 0.1:
        return None
    return float(np.mean(agree)), float(np.mean(right)), len(agree)


def off_form_of(r: Rollouts, seen: References | None) -> float | None:
    """Share of the completions without any piece of text that looks like a reference (the same kinds of characters,
    about as many); None where references are long or differ in kind, or are in more than a fiftieth of them."""
    if seen is None or seen.hits > 0.02 * seen.n:
        return None
    told = [str(x).strip() for x in r.reference if x is not None and str(x).strip()]
    kinds = {_kind(x) for x in told}
    sizes = [len(x) for x in told]
    if len(kinds) != 1 or None in kinds or max(sizes) > 20:
        return None
    kind = next(iter(kinds))
    low, high = 0.5 * min(sizes), 1.5 * max(sizes)
    pieces = [[p for p in re.split(r"[\s,.:;!?]+", c) if p] for c in r.completion]
    fits = [len(p) <= 3 and any(_kind(x) == kind and low <= len(x) <= high for x in p) for p in pieces]
    return 1 - float(np.mean(fits))


def _kind(text: str) -> str | None:
    """Digits, letters, or None for mixed ones."""
    return "digits" if re.fullmatch(r"[-+]?\d+", text) else "letters" if text.isalpha() else None
