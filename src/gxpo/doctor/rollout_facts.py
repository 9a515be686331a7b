"""`Facts`: statistics of single rollouts, each computed on first use."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.rollout_answers import References, off_form_of, references_of
from gxpo.doctor.rollout_credit import centred
from gxpo.doctor.rollout_texts import goes_on, markup, overlap, repeated_prompts, unfinished
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.series import Floats

Index = NDArray[np.int64]
EQUAL = 1e-9  # scores that differ by less are equal
EARLY = 3  # recorded steps that count as the beginning
ROLE = re.compile(r"^[^\S\n]*(?:Human|User|Assistant|user|assistant)[^\S\n]*:", re.M)
LETTERS = re.compile(  # a marker right behind the name of the user's role, whose own marker was a token
    r"^user\s*(?:<\|begin_of_text\|>)?<(?:\|im_start\||\|start_header_id\||start_of_turn)>(?:user|system)\b", re.M
)
MESSAGES = re.compile(r"[\[{]\s*['\"]role['\"]\s*:")


@dataclass(frozen=True)
class Advantages:
    """Recorded advantages compared with the scores beside them.

    groups        groups of unequal scores
    correlation   of advantage and score, both centred in their group, over those groups
    off_centre    root mean square of the groups' mean advantage / that of the advantages
    raw           whether advantages are the scores themselves
    residue       row indices of groups of equal scores with advantages other than 0; of `equal` rows in such groups
    """

    groups: int
    correlation: float
    off_centre: float
    raw: bool
    residue: Index
    equal: int
    size: float


class Facts:
    """Statistics of training rollouts.

    r             the training rollouts
    all_rollouts  these and the held-out ones
    """

    def __init__(self, r: Rollouts, all_rollouts: Rollouts | None = None) -> None:
        self.r, self.all_rollouts = r, all_rollouts

    # ---------------------------------------------------------------- groups
    @cached_property
    def members(self) -> list[Index]:
        """Row indices of each group of two or more."""
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, group in enumerate(self.r.group.tolist()):
            if group >= 0:
                rows_of[group].append(row)
        return [np.array(rows) for rows in rows_of.values() if len(rows) > 1]

    @cached_property
    def group_size(self) -> float | None:
        """Median size of groups, groups of one included; None if groups are unknown or were made of equal prompts."""
        if self.r.grouped_by == "prompt" or not (self.r.group >= 0).any():
            return None
        return float(np.median(np.unique(self.r.group[self.r.group >= 0], return_counts=True)[1]))

    @cached_property
    def mixed(self) -> float:
        """Share of groups with different prompts, if groups are blocks of consecutive rows; 0 for recorded groups and
        those made of equal prompts."""
        if self.r.grouped_by != "blocks" or not self.members:
            return 0.0
        return float(np.mean([len({self.r.prompt[i] for i in rows}) > 1 for rows in self.members]))

    @cached_property
    def early(self) -> list[Index]:
        """Groups of the first recorded steps."""
        first = np.unique(self.r.step)[:EARLY]
        return [rows for rows in self.members if self.r.step[rows[0]] in first]

    @cached_property
    def distinct_early(self) -> tuple[float, float, Index] | None:
        """(mean number of different completions of a group, mean group size, rows of the most alike group) in the first
        recorded steps; None without groups."""
        if not self.early:
            return None
        counts = [len({self.r.completion[i] for i in rows}) for rows in self.early]
        return (
            float(np.mean(counts)),
            float(np.mean([len(rows) for rows in self.early])),
            self.early[int(np.argmin(counts))],
        )

    @cached_property
    def alike_from(self) -> tuple[int, float, Index] | None:
        """(step, mean share of different completions in a group before it, rows of a group after it) where groups have
        different completions up to some recorded step and one each from it on; None where that does not happen."""
        by_step: dict[int, list[tuple[float, Index]]] = defaultdict(list)
        for rows in self.members:
            different = len({self.r.completion[i] for i in rows})
            by_step[int(self.r.step[rows[0]])].append((different / len(rows), rows))
        steps = sorted(by_step)
        same = [all(share * len(rows) <= 1.0 for share, rows in by_step[s]) for s in steps]
        if len(steps) < 4 or not same[-1]:
            return None
        begin = len(same) - next((i for i, x in enumerate(reversed(same)) if not x), len(same))
        if begin < 2 or len(same) - begin < 2:
            return None
        # diversity just before the change: a policy that narrows slowly is another finding
        earlier_share = float(np.mean([share for s in steps[begin - 2 : begin] for share, _ in by_step[s]]))
        return (steps[begin], earlier_share, by_step[steps[begin]][0][1]) if earlier_share > 0.3 else None

    @cached_property
    def characters(self) -> float:
        """Mean length of a completion in characters."""
        return float(np.mean([len(c) for c in self.r.completion]))

    # ---------------------------------------------------------------- scores
    def centred(self, values: Floats, groups: Iterable[Index] | None = None) -> tuple[Floats, Index]:
        """Centre values in their groups; also return their row indices. Groups with unknown values are left out."""
        parts, rows = [], []
        for group in self.members if groups is None else groups:
            scores = values[group]
            if np.isfinite(scores).all():
                parts.append(scores - scores.mean())
                rows.append(group)
        if not parts:
            return np.empty(0), np.empty(0, dtype=np.int64)
        return np.concatenate(parts), np.concatenate(rows)

    def correlation(self, x: Floats, y: Floats) -> float | None:
        """Correlate two columns within groups; None where one of them does not vary within any."""
        result = within_correlation(x, y, self.r.group)
        return result.r if np.isfinite(result.r) else None

    def partly_missing(self, values: Floats) -> float:
        """Share of groups in which some values are missing and others are not: a reward for other tasks is missing in
        whole groups."""
        mixed = [0 < int(np.isnan(values[g]).sum()) < len(g) for g in self.members]
        return float(np.mean(mixed)) if mixed else 0.0

    @cached_property
    def lengths(self) -> Floats:
        """Length of each completion in tokens; in characters if tokens are unknown for any."""
        is_known = np.isfinite(self.r.tokens)
        return self.r.tokens if is_known.all() else np.array([float(len(c)) for c in self.r.completion])

    @cached_property
    def length_pays(self) -> float | None:
        """Correlation of length and score within groups."""
        return self.correlation(self.lengths, self.r.score)

    @cached_property
    def spread(self) -> tuple[float, float, float, int] | None:
        """(root mean square deviation of scores within groups, deviation of the groups' means, mean share of different
        completions in a group, groups); None without two scored groups."""
        groups = [g for g in self.members if np.isfinite(self.r.score[g]).all()]
        if len(groups) < 2:
            return None
        deviation_within, _ = self.centred(self.r.score, groups)
        means = np.array([self.r.score[g].mean() for g in groups])
        different = np.mean([len({self.r.completion[i] for i in g}) / len(g) for g in groups])
        return float(np.sqrt(np.mean(deviation_within**2))), float(means.std()), float(different), len(groups)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Share of each component in the variance of the total within groups; {} below two components."""
        return variance_shares(self.r) if len(self.r.components) > 1 else {}

    @cached_property
    def same_text(self) -> tuple[int, int, float, Index] | None:
        """(pairs in a group of equal completions with equal replies of the environment; of them with different scores;
        mean squared difference of their scores / that of all pairs of a group; rows of the most different pair); None
        where no group has two equal ones."""
        pairs = differing = 0
        equal_squares = all_squares = 0.0
        all_pairs = 0
        examples: list[tuple[float, int, int]] = []
        for group in self.members:
            score = self.r.score[group]
            if not np.isfinite(score).all():
                continue
            # sum over pairs of (a - b)^2 = n sum s^2 - (sum s)^2: no loop over pairs
            n = len(group)
            all_squares += float(n * (score**2).sum() - score.sum() ** 2)
            all_pairs += n * (n - 1) // 2
            alike: dict[tuple[str, str], list[int]] = defaultdict(list)
            for member, row in enumerate(group.tolist()):
                observation = self.r.observation[row]
                if observation is not None:
                    alike[self.r.completion[row], observation].append(member)
            for same in alike.values():
                scores = score[same]
                m = len(same)
                if m < 2:
                    continue
                pairs += m * (m - 1) // 2
                equal_squares += float(m * (scores**2).sum() - scores.sum() ** 2)
                # pairs of different scores, of all ordered pairs those of one score left out
                values, counts = np.unique(scores, return_counts=True)
                differing += (m * m - int((counts**2).sum())) // 2
                if len(values) > 1:
                    low, high = same[int(np.argmin(scores))], same[int(np.argmax(scores))]
                    examples.append((float(np.ptp(scores)), int(group[low]), int(group[high])))
        if not pairs:
            return None
        usual = all_squares / max(all_pairs, 1)
        ratio = (equal_squares / pairs) / usual if usual > 0 else 0.0
        best = sorted(examples, reverse=True)[:1]
        return pairs, differing, ratio, np.array([i for _, a, b in best for i in (a, b)], dtype=np.int64)

    @cached_property
    def flipped(self) -> tuple[str, float] | None:
        """(component, its correlation within groups with the total, or the advantage where that is recorded) of the
        component with the most negative weight; None where none has one.

        The weights are the least-squares ones of the total (or advantage) by the components, all centred per group:
        a component that merely goes against the others, such as the right answer against a price on length, has a
        negative correlation and a positive weight.
        """
        # in TRL's tables the total is a sum made by the reader, whose weights may be wrong: advantages know them
        by_advantage = np.isfinite(self.r.advantage).mean() > 0.9 and self.r.grouped_by == "blocks"
        against = self.r.advantage if by_advantage else self.r.score
        # a component that is missing for some tasks would drop their groups
        columns = {n: v for n, v in self.r.components.items() if np.isfinite(v).mean() > 0.9}
        usable = [g for g in self.members if all(np.isfinite(x[g]).all() for x in (against, *columns.values()))]
        if not columns or len(usable) < 5:
            return None
        total, _ = self.centred(against, usable)
        parts = np.stack([self.centred(v, usable)[0] for v in columns.values()], axis=1)
        weights = np.linalg.lstsq(parts, total, rcond=None)[0]
        # a fit that explains little tells nothing of weights
        share = 1 - float(((total - parts @ weights) ** 2).sum()) / max(float(total @ total), 1e-12)
        varies = np.sqrt((parts**2).mean(axis=0))
        # weight times deviation: the part that the component has in the total
        effect = np.where(varies > 1e-9, weights * varies, 0.0)
        worst = int(np.argmin(effect))
        correlation = self.correlation(list(columns.values())[worst], against)
        if (
            share < 0.3
            or effect[worst] > -0.1 * float(np.sqrt((total**2).mean()))
            or correlation is None
            or correlation > -0.3
        ):
            return None
        return list(columns)[worst], correlation

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """Different scores, smallest first; empty above ten of them."""
        levels = np.unique(self.r.score[np.isfinite(self.r.score)])
        return tuple(levels.tolist()) if len(levels) <= 10 else ()

    # ---------------------------------------------------------------- advantages
    @cached_property
    def advantages(self) -> Advantages | None:
        """Compare recorded advantages with scores; None if none are recorded or groups are unknown."""
        advantage, score = self.r.advantage, self.r.score
        # only compared members enter their group's mean
        groups = [g[self.r.compared[g]] for g in self.members]
        usable = [g for g in groups if len(g) > 1 and np.isfinite(advantage[g] + score[g]).all()]
        if not usable or float(np.abs(np.concatenate([advantage[g] for g in usable])).max()) == 0.0:
            return None
        # between the two bounds lie scores that rounding made different: they are of neither kind
        unequal = [g for g in usable if np.ptp(score[g]) > 1e-9 * max(1.0, float(np.abs(score[g]).max()))]
        equal = [g for g in usable if np.ptp(score[g]) <= 1e-12]
        # above 0.1 an advantage is a method's own (of a batch, say), not what rounding left
        residue = [i for g in equal for i in g.tolist() if advantage[i] != 0 and abs(advantage[i]) < 0.1]
        x, y = (self.centred(column, unequal)[0] for column in (advantage, score))
        scale = float(np.sqrt((x @ x) * (y @ y))) if len(x) else 0.0
        rows = np.concatenate(usable)
        means = np.array([advantage[g].mean() for g in usable])
        strength = float(np.sqrt(np.mean(advantage[rows] ** 2)))
        # equal to the scores in groups of equal ones, they may be a constant, as of imitated answers
        is_raw = bool(unequal) and bool(np.allclose(advantage[rows], score[rows], atol=1e-6))
        return Advantages(
            len(unequal),
            float(x @ y) / scale if scale > 1e-12 else 0.0,
            float(np.sqrt(np.mean(means**2))) / strength if strength else 0.0,
            is_raw and bool((np.abs(means) > 1e-6).any()),
            np.array(residue, dtype=np.int64),
            sum(len(g) for g in equal),
            float(np.abs(advantage[residue]).max()) if residue else 0.0,
        )

    # ---------------------------------------------------------------- texts
    @cached_property
    def references(self) -> References | None:
        """Compare completions with their reference answers; None if there are too few."""
        return references_of(self.r, self.members)

    @cached_property
    def off_form(self) -> float | None:
        """Share of completions without anything in the form of a reference; None if references have no common form."""
        return off_form_of(self.r, self.references)

    @cached_property
    def goes_on(self) -> tuple[float, Index] | None:
        """(share of the completions that go on after a complete answer, rows that do); None where completions are empty
        or too short to tell."""
        # a letter or a digit is a whole answer and can't go on
        rows = np.array([i for i, c in enumerate(self.r.completion) if len(c.strip()) >= 2], dtype=np.int64)
        if len(rows) < 8:
            return None
        flags = goes_on(self.r)[rows] | markup([self.r.completion[i] for i in rows])
        flags |= np.array([self._answered_first(i, self.r.completion[i].strip()) for i in rows])
        return float(flags.mean()), rows[flags]

    @cached_property
    def unfinished(self) -> float:
        """Share of the completions that break off in the middle of something."""
        return float(unfinished(self.r.completion).mean()) if len(self.r) else 0.0

    def _answered_first(self, row: int, text: str) -> bool:
        answer = self.r.reference[row]
        if not answer or not str(answer).strip():
            return False
        begin = str(answer).strip()
        return text.startswith(begin) and len(text) > len(begin) and not text[len(begin)].isdigit()

    @cached_property
    def template(self) -> tuple[float, str, Index] | None:
        """(share, what, rows): template tokens or roles inside the completions of the first recorded steps; a printed
        list of messages or a doubled turn in the prompts; prompts without a turn for the assistant at their end."""
        rollouts = self.r
        # the first steps: a policy may learn to print roles, which is no error of the template
        early = np.flatnonzero(np.isin(rollouts.step, np.unique(rollouts.step)[:EARLY]))
        if not len(early):
            return None
        completions = [rollouts.completion[i] for i in early]
        has_messages = np.array([bool(MESSAGES.search(rollouts.prompt[i])) for i in early])
        if has_messages.mean() > 0.5:
            return float(has_messages.mean()), "a printed list of messages stands in the prompt", early[has_messages]
        is_doubled = np.array([_has_doubled_turn(rollouts.prompt[i]) for i in early])
        if is_doubled.mean() > 0.2:
            return float(is_doubled.mean()), "the template is applied twice to the prompt", early[is_doubled]
        has_markup = markup(completions) | np.array([bool(ROLE.search(c)) for c in completions])
        if has_markup.mean() > 0.2:
            return float(has_markup.mean()), "roles or template tokens stand inside the completion", early[has_markup]
        is_open = np.array([_lacks_assistant_turn(rollouts.prompt[i]) for i in early])
        if is_open.mean() > 0.5:
            return float(is_open.mean()), "the prompt does not open the assistant's turn", early[is_open]
        return None

    def cut_scores(self, share: dict[int, float]) -> tuple[float, float, int] | None:
        """(mean score of cut completions, of finished ones, rollouts).

        share   by step, the share of the completions that were cut, as the metrics say. Where no row says whether it
                was cut, the longest ones of a step are taken for them. None where there are fewer than five of either.
        """
        cut = self.r.truncated.copy()
        if not np.isfinite(cut).any():
            for step, part in share.items():
                rows = np.flatnonzero(self.r.step == step)
                longest = rows[np.argsort(-self.lengths[rows], kind="stable")]
                cut[longest] = 0.0
                cut[longest[: round(part * len(rows))]] = 1.0
        is_known = np.isfinite(cut) & np.isfinite(self.r.score)
        is_ended, is_cut = is_known & (cut == 0), is_known & (cut > 0)
        if is_cut.sum() < 5 or is_ended.sum() < 5:
            return None
        return float(self.r.score[is_cut].mean()), float(self.r.score[is_ended].mean()), int(is_known.sum())

    # ---------------------------------------------------------------- prompts
    @cached_property
    def prompts(self) -> tuple[int, int]:
        """(different prompts, groups)."""
        repeats = repeated_prompts(self.r)
        return repeats.prompts, repeats.groups

    @cached_property
    def overlap(self) -> tuple[float, int, int, Index] | None:
        """(share of the different held-out prompts that are training prompts, how many, of how many, rows of `whole`
        with such a one); None without held-out rollouts."""
        if self.all_rollouts is None or not self.all_rollouts.held_out.any():
            return None
        leak = overlap(self.all_rollouts)
        rows = [i for pair in leak.rows[:1] for i in pair]
        return leak.n_shared / max(leak.held_out, 1), leak.n_shared, leak.held_out, np.array(rows, dtype=np.int64)

    def examples(self, rows: Iterable[int], rollouts: Rollouts | None = None) -> tuple[dict[str, Any], ...]:
        """At most three rollouts as evidence, long texts cut."""
        rollouts = rollouts or self.r
        rows_shown = []
        for i in list(rows)[:3]:
            row: dict[str, Any] = {
                "where": rollouts.where[i],
                "step": int(rollouts.step[i]),
                "prompt": rollouts.prompt[i][-2000:],
                "completion": rollouts.completion[i][:2000],
                "score": float(rollouts.score[i]) if np.isfinite(rollouts.score[i]) else None,
            }
            if rollouts.reference[i] is not None:
                row["reference"] = str(rollouts.reference[i])[:500]
            if np.isfinite(rollouts.advantage[i]):
                row["advantage"] = float(rollouts.advantage[i])
            rows_shown.append(row)
        return tuple(rows_shown)


def _has_doubled_turn(prompt: str) -> bool:
    """True if a turn opens inside an unclosed turn of the same role (of which only the role's name may be left)."""
    return bool(
        re.search(r"(<\|im_start\|>\w+\s*){2}", prompt)
        or re.search(r"(\[INST\]\s*){2}", prompt)
        or re.search(r"(<\|start_header_id\|>\w+<\|end_header_id\|>\s*(?:<\|begin_of_text\|>)?){2}", prompt)
        or re.search(r"(<start_of_turn>\w+\s*|<\|(?:user|system)\|>\s*|<\uff5cUser\uff5c>\s*)\1", prompt)
        or LETTERS.search(prompt)
    )


def _lacks_assistant_turn(prompt: str) -> bool:
    """True if a rendered prompt has turns but does not end in an open one of the assistant."""
    text = prompt.rstrip()
    if "<|im_start|>" in text:
        return not re.search(r"<\|im_start\|>assistant\s*(?:<think>\s*(?:</think>)?)?$", text)
    if "<|start_header_id|>" in text:
        return not text.endswith("<|start_header_id|>assistant<|end_header_id|>")
    return False


@dataclass(frozen=True)
class Correlation:
    """Correlation r with its 95% interval and two-sided p; nan if a column does not vary within groups."""

    r: float
    low: float
    high: float
    p: float
    rows: int
    groups: int


def _no_correlation(rows: int, groups: int) -> Correlation:
    """Correlation of unknown values."""
    return Correlation(np.nan, np.nan, np.nan, np.nan, rows, groups)


def within_correlation(x: Floats, y: Floats, group: Index) -> Correlation:
    """Correlate x and y within groups, pooled: each less its group's mean.

    r = sum x'y' / sqrt(sum x'^2 sum y'^2) over the rows where both are known, in groups where both vary. With n rows in
    g groups t = r sqrt(d / (1 - r^2)), d = n - g - 1; the interval is tanh(artanh r +- 1.96 / sqrt(d - 1)).
    """
    is_known = np.isfinite(x) & np.isfinite(y) & (group >= 0)
    if not is_known.any():
        return _no_correlation(0, 0)
    _, group_index = np.unique(group[is_known], return_inverse=True)
    a, b = centred(x[is_known], group_index), centred(y[is_known], group_index)
    # groups in which a column is constant have no correlation, and would only add degrees of freedom
    varies = (np.bincount(group_index, np.abs(a) > EQUAL) > 0) & (np.bincount(group_index, np.abs(b) > EQUAL) > 0)
    is_used = varies[group_index]
    a, b = a[is_used], b[is_used]
    n, g = len(a), int(varies.sum())
    d = n - g - 1
    if d < 2:
        return _no_correlation(n, g)
    r = float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))
    if abs(r) > 1 - 1e-12:
        return Correlation(r, r, r, 0.0, n, g)
    from scipy.special import betainc  # scipy.stats takes half a second to import

    p = float(betainc(d / 2, 0.5, 1 - r * r))  # of Student's t with d degrees of freedom, both sides
    half = 1.96 / np.sqrt(d - 1)
    return Correlation(r, float(np.tanh(np.arctanh(r) - half)), float(np.tanh(np.arctanh(r) + half)), p, n, g)


def variance_shares(rollouts: Rollouts, weights: dict[str, float] | None = None) -> dict[str, float]:
    """Share of each component in the within-group variance of the score of the training rows.

    share_k = sum w_k c'_k s' / sum s'^2, with components c' and scores s' centred per group. The weights are those that
    are given; else 1, where the components then sum to the score; else the least-squares ones of s' = sum_k w_k c'_k.
    The shares sum to 1 where the score is such a sum (else to R^2); one is negative where the component works against
    the others. {} where the score does not vary within groups.
    """
    is_used = (rollouts.group >= 0) & ~rollouts.held_out & np.isfinite(rollouts.score)
    if not is_used.any() or not rollouts.components:
        return {}
    _, group_index = np.unique(rollouts.group[is_used], return_inverse=True)
    score = centred(rollouts.score[is_used], group_index)
    parts = np.stack([centred(v[is_used], group_index) for v in rollouts.components.values()], axis=1)
    variance = float(score @ score)
    if variance <= EQUAL:
        return {}
    # least squares only where plain sums fail: it is unstable for components that go together
    weight_K = np.array([(weights or {}).get(n, 1.0) for n in rollouts.components])
    if weights is None and np.abs(parts @ weight_K - score).max() > 1e-6:
        weight_K = np.linalg.lstsq(parts, score, rcond=None)[0]
    return {n: float(s) for n, s in zip(rollouts.components, weight_K * (parts.T @ score) / variance, strict=True)}
