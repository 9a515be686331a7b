"""Figures of reference answers: whether completions hold theirs, by score, against chance and against neighbours'."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from gxpo.doctor.rollout_variance import Correlation, within_correlation
from gxpo.doctor.runlog import Floats, Rollouts

# A sign belongs to a number unless it stands behind a digit, a letter or a closing bracket: 8-3 holds 8 and 3.
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![\w)\]}])[-\u2212])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])(?!\.\d)")
_DIGITS = re.compile(r"\d[\d,.]*")  # what every number lies in
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_SPACE = re.compile(r"\s+")
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d+)?")
SHORT = 60  # characters of a text that is an answer as a whole
DRAWN = 16  # other references that chance is taken from


@lru_cache(maxsize=8192)
def bare(reference: str) -> str:
    """The answer alone of a reference with its working: behind the last "####", or in the last \\boxed{}."""
    if "####" in reference:
        reference = reference.rsplit("####", 1)[1]
    if boxed := _BOXED.findall(reference):
        reference = boxed[-1]
    return _SPACE.sub(" ", reference).strip().strip("$").rstrip(".").strip()


@lru_cache(maxsize=8192)
def _number(text: str) -> float | None:
    found = text.replace("\u2212", "-").replace(",", "").lstrip("$").rstrip("%").strip()
    return float(found) if _PLAIN.fullmatch(found) else None


def _numbers(text: str) -> Iterator[str]:
    """Matches of `_NUMBER`, looked for only where digits stand: it begins with looks behind, which are slow."""
    for digits in _DIGITS.finditer(text):
        start, end = digits.span()
        for m in _NUMBER.finditer(text, max(start - 1, 0), min(end + 2, len(text))):
            if m.start() < end:
                yield m[0]


class Holder:
    """What a text holds, asked for several references."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.numbers = [x for x in map(_number, _numbers(self.text)) if x is not None]

    def holds(self, reference: str) -> bool:
        """Whether the reference stands in the text by itself: 12 is in "= 12." and in "12.0", not in 312 or 12.5.

        Texts are compared without case and with single spaces; a single letter with its case, so that the article "a"
        is no answer A.
        """
        wanted = bare(reference)
        if not wanted:
            return False
        if (value := _number(wanted)) is not None:
            return value in self.numbers
        flags = 0 if len(wanted) == 1 else re.IGNORECASE
        if wanted.lower() not in self._lower:
            return False  # a pattern without case is slow where there is nothing to find
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", self.text, flags) is not None

    @cached_property
    def _lower(self) -> str:
        return self.text.lower()

    @property
    def last(self) -> str | None:
        """The last \\boxed{}, tag <answer> or number, or the whole of a short text: what a reader takes for the answer.
        None: there is none."""
        if boxed := _BOXED.findall(self.text):
            return _key(boxed[-1])
        if tagged := re.findall(r"<answer>(.*?)</answer>", self.text):
            return _key(tagged[-1])
        if self.numbers:
            return f"{self.numbers[-1]:.12g}"
        return (_key(self.text) or None) if len(self.text) <= SHORT else None


def _key(answer: str) -> str:
    """One spelling of an answer: 12, 12.0 and $12 are one."""
    wanted = bare(answer)
    value = _number(wanted)
    return wanted.lower() if value is None else f"{value:.12g}"


def reference_match(r: Rollouts) -> Floats:
    """[n] 1 where the completion holds its reference, 0 where not, nan without a reference."""
    return np.array(
        [
            np.nan if ref is None else float(Holder(c).holds(ref))
            for c, ref in zip(r.completion, r.reference, strict=True)
        ]
    )


def final_match(r: Rollouts) -> Floats:
    """[n] 1 where the last answer of the completion (`Holder.last`) is its reference, nan without either."""
    last = [Holder(c).last for c in r.completion]
    pairs = zip(last, r.reference, strict=True)
    return np.array([np.nan if a is None or ref is None else float(a == _key(ref)) for a, ref in pairs])


@dataclass(frozen=True)
class ByScore:
    """A row each level of the score, the lowest first.

    score   [l] the score (mean of the level's)
    rows    [l] completions with a reference
    share   [l] share of them that hold their reference
    chance  [l] share of other tasks' references that they hold
    low, high  [l] 95% interval of `share` (Wilson)
    """

    score: Floats
    rows: Floats
    share: Floats
    chance: Floats
    low: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.score)


def references_by_score(r: Rollouts, seed: int = 0) -> ByScore:
    """Share of completions that hold their reference by score, beside what chance gives.

    Up to four distinct scores are levels; of more, the lower and the upper half of their range. Chance is the mean over
    rows of the share, of 16 references drawn among those that differ from the row's own, that its completion holds.
    """
    rows = [i for i in range(len(r)) if r.reference[i] is not None and np.isfinite(r.score[i])]
    if not rows:
        return ByScore(*(np.empty(0),) * 6)
    score = r.score[rows]
    levels = np.unique(np.round(score, 6))
    at = np.searchsorted(levels, np.round(score, 6))
    if len(levels) > 4:
        at = (score > (score.min() + score.max()) / 2).astype(np.int64)
    names = {i: _key(r.reference[i] or "") for i in rows}
    others = sorted(set(names.values()))
    draw = np.random.default_rng(seed)
    hit, chance = np.zeros(len(rows)), np.full(len(rows), np.nan)
    for k, i in enumerate(rows):
        text = Holder(r.completion[i])
        hit[k] = text.holds(r.reference[i] or "")
        if len(others) > 1:
            drawn = [others[j] for j in draw.integers(len(others), size=DRAWN)]
            different = [o for o in drawn if o != names[i]]
            chance[k] = np.mean([text.holds(o) for o in different]) if different else np.nan
    n = np.bincount(at)
    share = np.bincount(at, hit) / n
    known = np.isfinite(chance)
    drawn_for = np.bincount(at[known], minlength=len(n))
    summed = np.bincount(at[known], chance[known], minlength=len(n))
    by_chance = np.where(drawn_for > 0, summed / np.maximum(drawn_for, 1), np.nan)
    low, high = _wilson(share, n.astype(float))
    return ByScore(np.bincount(at, score) / n, n.astype(float), share, by_chance, low, high)


def _wilson(share: Floats, n: Floats, z: float = 1.959964) -> tuple[Floats, Floats]:
    """(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)."""
    middle = share + z * z / (2 * n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def neighbours(r: Rollouts, by: str = "row", shifts: range = range(-3, 4)) -> dict[int, Correlation]:
    """Correlation of score with "the completion holds the reference of the row (or group) `shift` further on".

    Pooled over the training rows of a step, by="row" or "group" in the order of the rows; references equal to the row's
    own are left out for shifts other than 0. A reward joined to the wrong references has its largest value off 0.
    """
    holders = [Holder(c) for c in r.completion]
    used = np.flatnonzero(~r.held_out & np.isfinite(r.score))
    unit = used if by == "row" else r.group[used]
    _, at = np.unique(unit, return_inverse=True)
    reference = {int(k): r.reference[i] for k, i in zip(at, used, strict=True)}
    step = {int(k): int(r.step[i]) for k, i in zip(at, used, strict=True)}
    found: dict[int, Correlation] = {}
    for shift in shifts:
        match = np.full(len(r), np.nan)
        for k, i in zip(at.tolist(), used.tolist(), strict=True):
            other = reference.get(k + shift)
            if other is None or step[k + shift] != r.step[i]:
                continue
            own = r.reference[i]
            if shift == 0 or own is None or _key(own) != _key(other):
                match[i] = holders[i].holds(other)
        found[shift] = within_correlation(r.score, match, r.step.astype(np.int64) + 1)
    return found


@dataclass(frozen=True)
class Majority:
    """Prompts whose rollouts agree on a last answer.

    prompts  with a reference and at least 4 rollouts with a last answer
    agreed   of them: those where at least `least` of the answers are the same
    against  of those: where that answer is not the reference
    rows     a row each of those, with the majority's answer
    """

    prompts: int
    agreed: int
    against: int
    rows: list[int]


def majority(r: Rollouts, least: float = 0.75) -> Majority:
    """How often the answer that most rollouts of a group give is not the reference: a policy that is sure and "wrong"
    on most prompts speaks for wrong references."""
    members: dict[int, list[int]] = {}
    for i in np.flatnonzero(r.group >= 0).tolist():
        if r.reference[i] is not None:
            members.setdefault(int(r.group[i]), []).append(i)
    prompts = agreed = 0
    against: list[int] = []
    for rows in members.values():
        answers = {i: a for i in rows if (a := Holder(r.completion[i]).last) is not None}
        if len(answers) < 4:
            continue
        prompts += 1
        common, n = Counter(answers.values()).most_common(1)[0]
        if n >= least * len(answers):
            agreed += 1
            if common != _key(r.reference[rows[0]] or ""):
                against.append(next(i for i, a in answers.items() if a == common))
    return Majority(prompts, agreed, len(against), against)
