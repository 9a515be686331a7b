"""Methods whose authors have published no code: the equations of their papers in plain loops, against gxpo's numbers.

Each test names the paper's version and equations. Groups are ragged, answers of unequal length.
"""

from __future__ import annotations

import math
import re
import statistics

import pytest
import torch
from tests.sampling.rollouts.growing_session import GrowingSession, tasks

import gxpo
from gxpo.algorithms.segments import SegmentTools
from gxpo.algorithms.signals import Signals
from gxpo.algorithms.signals.texts import first_match
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of
from gxpo.sampling.rollouts.retry import Retry

F64 = torch.float64
EXACT = {"credit.eps": 0.0}  # the papers divide by the std alone


def forest_of(groups: list[list[tuple[float, int]]]) -> Forest:
    """Groups of (reward, length); all tokens differ."""
    rows = [[[10 + 3 * g + i] * n for i, (_, n) in enumerate(group)] for g, group in enumerate(groups)]
    return Forest.from_completions([[1]] * len(groups), rows, [r for group in groups for r, _ in group])


def by_row(forest: Forest, values: torch.Tensor) -> list[list[float]]:
    return [values[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]


def test_seed_grpo() -> None:
    """arXiv 2505.12346v1, eqs. 1, 5 and 6, section 4.1: alpha 0.02, f linear, neither std nor lengths divide."""
    answers = ["4", "4", "7", "9", "4", "1", "1", "1"]
    rewards = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    forest = forest_of([[(r, 1 + i) for i, r in enumerate(rewards[:5])], [(r, 2) for r in rewards[5:]]])
    names = sorted(set(zip([0] * 5 + [1] * 3, answers, strict=True)))
    cluster = torch.tensor([names.index(x) for x in zip([0] * 5 + [1] * 3, answers, strict=True)])

    expected = []
    for rows in (range(5), range(5, 8)):
        message = [answers[i] for i in rows]
        entropy = -statistics.fmean(math.log(message.count(a) / len(message)) for a in set(message))
        middle = statistics.fmean(rewards[i] for i in rows)
        expected += [(rewards[i] - middle) * (1 - 0.02 * entropy / math.log(len(message))) for i in rows]

    m = gxpo.method("seed_grpo@paper")
    signals = {"answer_cluster": cluster}
    credit = m.advantages(forest, signals)
    weight = m.token_weights(forest, credit, signals)
    actual = by_row(forest, credit * weight)
    assert [row[0] for row in actual] == pytest.approx(expected, abs=1e-9)
    assert expected[3] == pytest.approx(-0.6 * (1 - 0.02 * (math.log(5 / 3) + 2 * math.log(5)) / 3 / math.log(5)))
    # Dr. GRPO's loss: a sum over each answer's tokens, over a constant and the number of answers; at ratio 1
    logprob = torch.full((forest.n_entries,), -1.0, dtype=F64)
    loss = m.loss(forest, gxpo.PolicyTokens(logprob, logprob, proximal_logprob=logprob), signals=signals).value
    lengths = [1, 2, 3, 4, 5, 2, 2, 2]
    total = -sum(a * n for a, n in zip(expected, lengths, strict=True)) / 3000 / 8
    assert float(loss) == pytest.approx(total, abs=1e-12)


def test_hicra() -> None:
    """arXiv 2509.03646v3, section 3: A = R - mean, and A + 0.2 |A| on planning tokens."""
    text = "ab let me try c"
    rewards = [1.0, 0.0, 0.0, 0.5]
    rows = [[ord(c) for c in text], [ord(c) for c in text[3:]], [ord("x")], [ord("y")] * 2]
    forest = Forest.from_completions([[1]], [rows], rewards)
    m = gxpo.method("hicra@paper", {"segment.patterns": ["let me try"]})
    cut = m.segmenter(forest, SegmentTools(lambda ids: "".join(map(chr, ids))))
    credit = m.advantages(cut)
    actual = by_row(cut, credit * m.token_weights(cut, credit))
    for row, tokens, reward in zip(actual, rows, rewards, strict=True):
        a, said_text = reward - 1.5 / 4, "".join(map(chr, tokens))
        planning = {i for hit in re.finditer("let me try", said_text) for i in range(*hit.span())}
        expected = [a + 0.2 * abs(a) if i in planning else a for i in range(len(tokens))]
        assert row == pytest.approx(expected, abs=1e-9)


def test_igrpo() -> None:
    """arXiv 2602.09000v1, eqs. 2 to 4: the first best of N drafts is shown; A by the sample std, 0 where that is 0."""
    message = {(0,): "0352", (): "3151"}
    session = GrowingSession(
        lambda context, stream: message[stream.path][stream.attempt], lambda _, text: int(text) / 10
    )
    m = gxpo.method("igrpo@paper", EXACT)
    part = m.rollout
    assert isinstance(part, Retry) and (part.options["n_drafts"], part.group_size) == (4, 4)
    forest = session.score(part.grow(tasks("a"), session))
    assert all(info["draft"] == "5" for info in forest.info)
    scores = [0.3, 0.1, 0.5, 0.1]
    middle, spread = statistics.fmean(scores), statistics.stdev(scores)
    expected = [(r - middle) / spread for r in scores]
    assert [row[0] for row in by_row(forest, m.advantages(forest))] == pytest.approx(expected, abs=1e-9)
    assert not m.advantages(forest.with_rewards(torch.full((4,), 0.3))).any()


def test_pvpo() -> None:
    """arXiv 2508.21104v3, eqs. 5, 10 and 11: r less the reference's mean, not scaled; a mean over each answer first."""
    forest = forest_of([[(1.0, 3), (0.0, 1)], [(1.0, 2), (1.0, 4), (0.0, 1)]])
    reference = [[1.0, 0.0, 0.0, 0.0, 1.0], [0.0] * 5]
    v = [statistics.fmean(reference[0])] * 2 + [statistics.fmean(reference[1])] * 3
    rewards = [1.0, 0.0, 1.0, 1.0, 0.0]
    m = gxpo.method("pvpo")
    signals = {"baseline": torch.tensor(v, dtype=F64)}
    credit = m.advantages(forest, signals)
    a = [r - b for r, b in zip(rewards, v, strict=True)]
    assert [row[0] for row in by_row(forest, credit)] == pytest.approx(a, abs=1e-9)
    gap = torch.linspace(-0.5, 0.5, forest.n_entries, dtype=F64)
    old = torch.full_like(gap, -2.0)
    loss = m.loss(forest, gxpo.PolicyTokens(old + gap, old, proximal_logprob=old), signals=signals).value
    total = 0.0
    for row, advantage in zip(by_row(forest, gap), a, strict=True):
        ratios = [math.exp(x) for x in row]
        total -= statistics.fmean(min(r * advantage, min(max(r, 0.8), 1.2) * advantage) for r in ratios) / 5
    assert float(loss) == pytest.approx(total, abs=1e-12)


def test_aspo() -> None:
    """arXiv 2508.19201v1, eq. 2 with delta -2 and k 0.7: over right answers with code, bounded by a share of |A|."""
    # lengths and places of the first code; the third is right without code, the last two are wrong
    right = ["..C.......", "....C...", "......", "........................C"]
    rows = [*((text, 1.0) for text in right), ("C...", 0.0), ("..", 0.0)]
    forest = Forest.from_completions([[1]], [[[ord(c) for c in text] for text, _ in rows]], [r for _, r in rows])
    m = gxpo.method("aspo", {**EXACT, "signal.first_match.pattern": "C"})

    class Tools:
        decode = staticmethod(lambda ids: "".join(map(chr, ids)))

    part = m.signals["first_match"]
    assert isinstance(part, kind_of(first_match))
    signals = part.compute(forest, {}, Tools())  # type: ignore[arg-type]
    credit = m.advantages(forest, signals)
    actual = [row[0] for row in by_row(forest, credit * m.token_weights(forest, credit, signals))]

    rewards = [r for _, r in rows]
    base = [(r - statistics.fmean(rewards)) / statistics.stdev(rewards) for r in rewards]
    coded = [i for i, (text, r) in enumerate(rows) if r == 1.0 and "C" in text]
    place = {i: rows[i][0].index("C") for i in coded}
    middle, length = statistics.fmean(place.values()), statistics.fmean(len(rows[i][0]) for i in coded)
    expected = list(base)
    for i in coded:
        bonus = -2.0 * (place[i] - middle) / length
        expected[i] += min(max(bonus, -0.7 * base[i]), 0.7 * base[i])
    assert actual == pytest.approx(expected, abs=1e-9)
    assert expected[0] == pytest.approx(1.7 * base[0]) and expected[3] == pytest.approx(
        0.3 * base[3]
    )  # both bounds bind


def test_tempsamp_r1() -> None:
    """arXiv 2509.18056v2, eqs. 2 and 4: tau 0.8, alpha_1 0.01, alpha_2 1; statistics over all G, the reference too."""
    rewards = [0.95, 0.8, 0.3, 0.0, 1.0]  # the last is the reference answer's
    forest = forest_of([[(r, 1 + i) for i, r in enumerate(rewards)]])
    forest = forest.replace(origin=["policy"] * 4 + ["demonstration"])
    m = gxpo.method("tempsamp_r1", EXACT)
    shaped = []
    for r in rewards:
        if r >= 0.8:
            shaped.append(0.8 + 0.01 * math.log(r - 0.8 + 1))
        else:
            shaped.append(0.8 - (math.exp(1 * (0.8 - r)) - 1) / (math.exp(1) - 1))
    expected = [(x - statistics.fmean(shaped)) / statistics.stdev(shaped) for x in shaped]
    (part,) = m.shapes.values()
    credit = m.credit(forest.with_rewards(part(forest)), Signals.of(forest, {}), 0)
    assert [row[0] for row in by_row(forest, credit)] == pytest.approx(expected, abs=1e-9)


def test_hispo() -> None:
    """LongCat-Flash-Prover, report of meituan-longcat/LongCat-Flash-Prover@6e681bb, eqs. 8 and 9: both masks and the
    sum over all tokens by a constant length. The bounds are gxpo's."""
    lengths = [3, 1, 4]
    forest = forest_of([[(1.0, 3), (0.0, 1), (0.5, 4)]])
    sampler = torch.full((8,), -2.0, dtype=F64)
    # the second answer's only token is off by e^.2; the last token by e^.45 = 1.57, above 1.5; the first answer agrees
    dis = torch.tensor([0.02, -0.03, 0.05, 0.2, 0.01, 0.0, -0.3, 0.45], dtype=F64)
    stale = torch.tensor([0.5, -0.5, 0.1, 0.0, -0.6, 0.1, 1.5, 0.0], dtype=F64)
    credit = torch.tensor([1.0] * 3 + [-1.0] + [-0.5] * 4, dtype=F64)
    m = gxpo.method("hispo@paper", {"objective.horizon": 10.0})
    now = gxpo.PolicyTokens(sampler + dis + stale, sampler, proximal_logprob=sampler + dis)
    actual = float(m.loss(forest, now, advantages=credit).value)

    total, at, kept_keeps = 0.0, 0, []
    for n in lengths:
        gaps, old = dis[at : at + n].tolist(), stale[at : at + n].tolist()
        is_whole = abs(math.exp(sum(gaps) / n) - 1) < 0.1
        for i in range(n):
            keep = is_whole and abs(math.exp(gaps[i]) - 1) < 0.5
            kept_keeps.append(keep)
            ratio, a = math.exp(gaps[i] + old[i]), float(credit[at])
            term = min(ratio, 1.2) * a if a > 0 else min(max(ratio, 0.8), 3.0) * a
            total -= keep * term
        at += n
    assert kept_keeps == [True] * 3 + [False] + [True] * 3 + [False]
    assert actual == pytest.approx(total / 3 / 10, abs=1e-12)
