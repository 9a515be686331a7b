"""Comparison of completions with reference answers: hits, chance level, shifted rows, agreement, form."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from gxpo.base.answers import NESTED, TAGGED, braced
from gxpo.doctor.rollouts import Rollouts

Index = NDArray[np.int64]
# names of reward functions that say whether an answer is right, against those of style and price
CORRECT = re.compile(r"acc|correct|exact|match|answer|solve|right|success|verif|outcome|task|math|score", re.I)
STYLE = re.compile(r"format|len|brev|short|long|penalt|cost|style|tag|xml|repet|think|soft|strict|bonus", re.I)
SHIFTS = (-3, -2, -1, 1, 2, 3)  # prompts by which references may be off
FEWEST = 8  # prompts below which no shift is proved
UNLIKELY = 1e-4  # chance that the best of all shifts is as good by accident
PROBES = 8  # other references that are tried on a group, for the level of chance
# A sign belongs to a number unless it stands behind a digit, a letter or a closing bracket: 8-3 holds 8 and 3.
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![\w)\]}])[-\u2212])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])(?!\.\d)")
_DIGITS = re.compile(r"\d[\d,.]*")  # what every number lies in
_BOXED = re.compile(rf"\\boxed\s*\{{({braced(NESTED)})\}}")
_SPACE = re.compile(r"\s+")
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d+)?")
SHORT = 60  # characters of a text that is an answer as a whole


@lru_cache(maxsize=8192)
def bare(reference: str) -> str:
    """Extract the answer of a reference with working: after the last "####", or in the last \\boxed{}."""
    if "####" in reference:
        reference = reference.rsplit("####", 1)[1]
    if boxed := _BOXED.findall(reference):
        reference = boxed[-1]
    return _SPACE.sub(" ", reference).strip().strip("$").rstrip(".").strip()


@lru_cache(maxsize=8192)
def _number(text: str) -> float | None:
    """Parse an answer that is a number as a whole: "$1,200", "12%"; else None."""
    digits = text.replace("\u2212", "-").replace(",", "").lstrip("$").rstrip("%").strip()
    return float(digits) if _PLAIN.fullmatch(digits) else None


def _numbers(text: str) -> Iterator[str]:
    """Find the matches of `_NUMBER`, starting at digits only: its look-behinds are slow at every character."""
    for digits in _DIGITS.finditer(text):
        start, end = digits.span()
        for m in _NUMBER.finditer(text, max(start - 1, 0), min(end + 2, len(text))):
            if m.start() < end:
                yield m[0]


class Holder:
    """A completion with its numbers parsed once, to be searched for several references."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.numbers = [x for x in map(_number, _numbers(self.text)) if x is not None]

    def holds(self, reference: str) -> bool:
        """True if the text contains the reference as a word of its own: 12 is in "= 12.", "12.0", not in 312 or 12.5.

        Texts are compared without case and with single spaces; a single letter with its case, so that the article "a"
        is no answer A.
        """
        answer = bare(reference)
        if not answer:
            return False
        if (value := _number(answer)) is not None:
            return value in self.numbers
        flags = 0 if len(answer) == 1 else re.IGNORECASE
        if answer.lower() not in self._lower:
            return False  # a pattern without case is slow where there is nothing to find
        return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", self.text, flags) is not None

    @cached_property
    def _lower(self) -> str:
        return self.text.lower()

    @property
    def last(self) -> str | None:
        """The final answer as a reader sees it: the last \\boxed{}, <answer> tag or number, or a short text as a whole;
        None without one."""
        if boxed := _BOXED.findall(self.text):
            return _key(boxed[-1])
        if tagged := re.findall(TAGGED, self.text):
            return _key(tagged[-1])
        if self.numbers:
            return f"{self.numbers[-1]:.12g}"
        return (_key(self.text) or None) if len(self.text) <= SHORT else None


def _key(answer: str) -> str:
    """Canonical spelling of an answer: 12, 12.0 and $12 are equal."""
    text = bare(answer)
    value = _number(text)
    return text.lower() if value is None else f"{value:.12g}"


@dataclass(frozen=True)
class References:
    """Result of comparing completions with their reference answers.

    n               number of rollouts with a score and a reference
    hits            number of those that contain their reference as words of its own
    chance          share that contains the reference of another prompt
    accepted_share  share of the hits with more than the lowest score
    score_hit       mean score of hits, and `score_miss` of the others, as shares of the score's range
    rejected_rows   row indices of hits with the lowest score
    final           share of these whose last answer is the reference; the others may only name it on the way
    shift           (prompts by which references are off, share of completions with that one, share with their own)
    consensus       (share of answers that are their group's commonest, share of groups whose commonest contains the
                    reference, groups) where answers agree with each other and not with the reference
    contradictions  number of prompts with more than one reference; `contradicting`: rows of one of them
    n_repeated      number of prompts that occur in several groups
    """

    n: int
    hits: int
    chance: float
    accepted_share: float
    score_hit: float
    score_miss: float
    rejected_rows: Index
    final: float
    shift: tuple[int, float, float] | None
    consensus: tuple[float, float, int] | None
    contradictions: int
    n_repeated: int
    contradicting: Index


def words(text: str) -> str:
    """Reduce a text to words and numbers in lower case between single spaces: " 12 apples "."""
    return " " + " ".join(re.findall(r"-?\d+(?:[.,]\d+)*|[^\W\d_]+", text.lower())) + " "


def references_of(rollouts: Rollouts, members: Sequence[Index]) -> References | None:
    """Compare completions with references; None below 20 scored rollouts with one, or below three different ones."""
    rows = [i for i in range(len(rollouts)) if bare(rollouts.reference[i] or "") and np.isfinite(rollouts.score[i])]
    by_group: dict[int, set[str | None]] = defaultdict(set)
    for i in rows:
        by_group[int(rollouts.group[i])].add(rollouts.reference[i])
    if np.mean([len(x) > 1 for x in by_group.values()] or [0.0]) > 0.2:
        return None  # what stands beside the completions is no answer to the group's task
    reference_by_row = {i: bare(rollouts.reference[i] or "").lower() for i in rows}
    # the references of other prompts give the level of chance, for which there must be some
    kinds = sorted(set(reference_by_row.values()))
    if len(rows) < 20 or len(kinds) < 3:
        return None
    completion_by_row = {i: Holder(rollouts.completion[i]) for i in rows}
    hit = np.array([completion_by_row[i].holds(reference_by_row[i]) for i in rows])
    # a generator of its own: the same log gives the same figures
    offsets = np.random.Generator(np.random.Philox(0)).integers(1, len(kinds), size=len(rows))
    index_of = {k: n for n, k in enumerate(kinds)}
    other_references = [
        kinds[(index_of[reference_by_row[i]] + o) % len(kinds)] for i, o in zip(rows, offsets, strict=True)
    ]
    chance = np.array([completion_by_row[i].holds(d) for i, d in zip(rows, other_references, strict=True)])
    verdict_columns = [v for n, v in rollouts.components.items() if CORRECT.search(n) and not STYLE.search(n)]
    score = rollouts.score[rows]
    if len(rollouts.components) > 1 and len(verdict_columns) == 1 and np.isfinite(verdict_columns[0][rows]).all():
        score = verdict_columns[0][rows]  # the verdict on the answer, without form and price
    # scores may be 0 and 1, -1 and 1 or anything else: they are compared as shares of their range
    low, high = float(score.min()), float(score.max())
    span = high - low
    lowest = score <= low + 0.05 * span if span > 0 else np.full(len(rows), high <= 0)
    index = np.array(rows)
    rejected_rows = index[hit & lowest]
    is_final = [completion_by_row[i].last == _key(reference_by_row[i]) for i in rejected_rows.tolist()]
    n_repeated, contradictions, contradicting = _contradictions(rollouts, rows, reference_by_row)
    return References(
        len(rows),
        int(hit.sum()),
        float(chance.mean()),
        float((~lowest)[hit].mean()) if hit.any() else float("nan"),
        float((score[hit].mean() - low) / span) if hit.any() and span > 0 else float("nan"),
        float((score[~hit].mean() - low) / span) if (~hit).any() and span > 0 else float("nan"),
        rejected_rows,
        float(np.mean(is_final)) if is_final else float("nan"),
        _shift(rollouts, rows, reference_by_row, completion_by_row),
        _consensus(rollouts, members, reference_by_row, completion_by_row),
        contradictions,
        n_repeated,
        contradicting,
    )


def _contradictions(rollouts: Rollouts, rows: list[int], reference_by_row: dict[int, str]) -> tuple[int, int, Index]:
    """Count prompts that occur in several groups and those of them with several references; also rows of one such."""
    references_by_group: dict[int, set[str]] = defaultdict(set)
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    for i in rows:
        references_by_group[int(rollouts.group[i])].add(reference_by_row[i])
        groups[rollouts.prompt[i]].setdefault(int(rollouts.group[i]), i)
    repeated_prompts = [group_rows for group_rows in groups.values() if len(group_rows) > 1]
    contradictory_prompts = [
        group_rows
        for group_rows in repeated_prompts
        if len(set.union(*(references_by_group[g] for g in group_rows))) > 1
    ]
    return (
        len(repeated_prompts),
        len(contradictory_prompts),
        np.array([i for h in contradictory_prompts[:1] for i in h.values()], dtype=np.int64),
    )


def _shift(
    rollouts: Rollouts, rows: list[int], reference_by_row: dict[int, str], completion_by_row: dict[int, Holder]
) -> tuple[int, float, float] | None:
    """Find `References.shift`: the place whose reference fits far better than the own, over prompts; else None.

    A prompt counts for a shift if more of its completions contain the reference so many places on than contain their
    own. By chance it does so as often as for any other reference of its step, so that the count is binomial; the best
    of all shifts must be less likely than `UNLIKELY`. The unit is the prompt, since a group's answers are alike: few
    prompts prove nothing.
    """
    rows_by_group: dict[int, list[int]] = defaultdict(list)
    for i in rows:
        rows_by_group[int(rollouts.group[i])].append(i)
    reference = {group: reference_by_row[members[0]] for group, members in rows_by_group.items()}
    groups_by_step: dict[int, list[int]] = defaultdict(list)
    for group, members in rows_by_group.items():
        groups_by_step[int(rollouts.step[members[0]])].append(group)

    def fit(group: int, reference_group: int) -> float:
        return float(np.mean([completion_by_row[i].holds(reference[reference_group]) for i in rows_by_group[group]]))

    own_fit = {group: fit(group, group) for group in rows_by_group}
    # of each shift: the fits, and by prompt whether they are better than the own
    fits: dict[int, list[float]] = defaultdict(list)
    is_better: dict[int, dict[tuple[str, str], list[bool]]] = {shift: defaultdict(list) for shift in SHIFTS}
    by_chance: list[bool] = []
    for groups in groups_by_step.values():
        for place, group in enumerate(groups):
            prompt = (rollouts.prompt[rows_by_group[group][0]] or str(group), reference[group])
            for shift in SHIFTS:
                # neighbours within one step only: the next step has another batch
                if 0 <= place + shift < len(groups):
                    fits[shift].append(fit(group, groups[place + shift]))
                    is_better[shift][prompt].append(fits[shift][-1] > own_fit[group])
            # references further off give the level of chance; in a small step, all others
            other_groups = groups[place + 4 :] + groups[: max(place - 3, 0)] if len(groups) > 7 else groups
            by_chance += [
                fit(group, other_group) > own_fit[group]
                for other_group in other_groups[:PROBES]
                if other_group != group
            ]
    own_share, level = float(np.mean(list(own_fit.values()))), (sum(by_chance) + 1) / (len(by_chance) + 2)
    best: tuple[int, float, float] | None = None
    for shift, values in fits.items():
        n, rate = len(is_better[shift]), float(np.mean(values))
        count = sum(bool(np.mean(flags) > 0.5) for flags in is_better[shift].values())
        is_likely = n < FEWEST or len(SHIFTS) * _tail(count, n, level) > UNLIKELY
        if not is_likely and rate > max(0.15, 3 * own_share) and (best is None or rate > best[1]):
            best = (shift, rate, own_share)
    return best


def _tail(count: int, n: int, p: float) -> float:
    """Probability of `count` or more successes in n trials of probability p."""
    from scipy.special import betainc  # scipy.stats takes half a second to import

    return float(betainc(count, n - count + 1, p)) if count else 1.0


def _consensus(
    rollouts: Rollouts, members: Sequence[Index], reference_by_row: dict[int, str], completion_by_row: dict[int, Holder]
) -> tuple[float, float, int] | None:
    """Compute `References.consensus` over groups of which half of the answers agree; None if these are few."""
    agree, right = [], []
    for group in members:
        rows = [i for i in group.tolist() if i in reference_by_row]
        if len(rows) < 3:
            continue
        answers = {i: completion_by_row[i].last or words(rollouts.completion[i]) for i in rows}
        answer, count = Counter(answers.values()).most_common(1)[0]
        if answer.strip() and count >= 0.5 * len(rows):
            agree.append(count / len(rows))
            right.append(any(completion_by_row[i].holds(reference_by_row[i]) for i in rows if answers[i] == answer))
    if len(agree) < 8 or len(agree) < 0.3 * len(members) or np.mean(right) > 0.1:
        return None
    return float(np.mean(agree)), float(np.mean(right)), len(agree)


def off_form_of(rollouts: Rollouts, references: References | None) -> float | None:
    """Share of completions without any piece of text in the form of a reference.

    The form: the same kind of characters, and about as many. None if references are long or differ in kind, or if more
    than a fiftieth of the completions hit theirs.
    """
    if references is None or references.hits > 0.02 * references.n:
        return None
    texts = [str(x).strip() for x in rollouts.reference if x is not None and str(x).strip()]
    kinds = {_kind(x) for x in texts}
    sizes = [len(x) for x in texts]
    if len(kinds) != 1 or None in kinds or max(sizes) > 20:
        return None
    kind = next(iter(kinds))
    low, high = 0.5 * min(sizes), 1.5 * max(sizes)
    words_R = [[p for p in re.split(r"[\s,.:;!?]+", c) if p] for c in rollouts.completion]
    fits = [len(p) <= 3 and any(_kind(x) == kind and low <= len(x) <= high for x in p) for p in words_R]
    return 1 - float(np.mean(fits))


def _kind(text: str) -> str | None:
    """Kind of characters of a text: digits, letters, or None for mixed ones."""
    return "digits" if re.fullmatch(r"[-+]?\d+", text) else "letters" if text.isalpha() else None
