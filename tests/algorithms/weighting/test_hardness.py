"""GRPO-S: how far a group is from its demonstrations, in reward and in words."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.test_scores import grown
from tests.algorithms.weighting.verdict_rows import part_of

import gxpo
from gxpo.algorithms.weighting.group_curves import _responsiveness as responsiveness
from gxpo.algorithms.weighting.scores import dissimilarity, of_attempts
from gxpo.base.errors import ConfigError


def hardness_weight(**options):
    return part_of("grpo_s", "hardness", **options)


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from(["policy", "policy", "demonstration"]),
        st.booleans(),
        st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
    ),
    min_size=1,
    max_size=9,
)


def s(x):
    return 1 / (1 + math.exp(-x))


def test_by_hand():
    # a: attempts (1,0) right and (0,1) wrong, nothing shown: the model is the right one. Cosines 1, 0: unlike 1/2.
    # b: attempts (1,0), (0,2) wrong, a demonstration (1,1): cosines .707107, unlike .292893. Mean unlike .396447.
    # Of two gaps, 1/2 and 1, none is an outlier.
    rows = [("a", 1.0), ("a", 0.0), ("b", 0.0), ("b", 0.0), ("b", 1.0)]
    forest = grown(rows, origin=["policy"] * 4 + ["demonstration"], success=[True, False, False, False, True])
    e = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 2], [1, 1]])
    weight = hardness_weight()(forest, torch.zeros(5), {"embedding": e}, 0)
    assert weight.tolist() == pytest.approx([0.622459 / 0.597834] * 2 + [0.572704 / 0.597834] * 3, abs=1e-5)
    assert hardness_weight(unlike=0.0, gap=0.0)(forest, torch.zeros(5), {"embedding": e}, 0).tolist() == [1.0] * 5
    squared = hardness_weight(unlike=2.0)(forest, torch.zeros(5), {"embedding": e}, 0)
    assert squared.tolist() == pytest.approx(weight.square().tolist())
    # of ten gaps of 0 and one of 1 the last is left out: s(0) / s(1/11)
    assert responsiveness(torch.tensor([0.0] * 10 + [1.0])) == pytest.approx(0.5 / 0.522711, abs=1e-5)


@given(ROWS, st.floats(0, 2), st.floats(0, 2))
def test_it_equals_a_loop(rows, unlike, gap):
    forest = grown(
        [(g, r) for g, r, *_ in rows],
        origin=[o for *_, o, _, _ in rows],
        compared=[c for *_, c, _ in rows],
        success=[r == 1.0 for _, r, *_ in rows],
    )
    names, far, gaps = list(dict.fromkeys(g for g, *_ in rows)), {}, []
    for name in names:
        demonstrations = [x for x in rows if x[0] == name and x[2] == "demonstration"]
        attempts = [x for x in rows if x[0] == name and x[2] == "policy" and x[3]]
        models = demonstrations or [x for x in attempts if x[1] == 1.0]
        goal = sum(x[1] for x in demonstrations) / len(demonstrations) if demonstrations else 1.0
        if attempts:
            gaps.append(goal - sum(x[1] for x in attempts) / len(attempts))
        if cosines := [cosine(x[4], y[4]) for x in attempts for y in models]:
            far[name] = 1 - sum(cosines) / len(cosines)
    middle = sum(far.values()) / len(far) if far else 0.0
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    # of one or two gaps none is further than two standard deviations from the mean
    expected = [(s(far[g]) / s(middle) if g in far else 1.0) ** unlike for g, *_ in rows]
    assert responsiveness(torch.tensor(gaps)) == pytest.approx(s(mean) / s(mean))
    e = torch.tensor([x[4] for x in rows], dtype=torch.float64)
    weights = hardness_weight(unlike=unlike, gap=gap)(forest, torch.zeros(len(rows)), {"embedding": e}, 0)
    assert weights.tolist() == pytest.approx(expected, abs=1e-9)


def cosine(x, y):
    lengths = math.hypot(*x) * math.hypot(*y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / lengths if lengths else 0.0


def test_harder_groups_weigh_more_whatever_the_embedding_norm():
    group, attempt = torch.tensor([0, 0, 1, 1]), torch.tensor([True] * 4)
    nothing = torch.zeros(4, dtype=torch.bool)
    mean = of_attempts(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, attempt, nothing)
    assert mean.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert of_attempts(torch.ones(4), group, nothing, nothing).isnan().all()
    e = torch.tensor([[1.0, 2.0], [3.0, 1.0], [1.0, 1.0], [-1.0, 0.5]])
    right = torch.tensor([1.0, 0.0, 1.0, 0.0])
    longer = dissimilarity(e * torch.tensor([[2.0], [5], [7], [3]]), group, attempt, nothing, right)
    assert torch.allclose(dissimilarity(e, group, attempt, nothing, right), longer)
    assert dissimilarity(e, group, attempt, nothing, torch.zeros(4)).isnan().all()


def test_hardness_reads_the_hidden_states_of_the_policy():
    m = gxpo.method("grpo_s")
    assert m.signals["mean_hidden"].provides == ("embedding",) and m.needs == ()
    assert "hardness" in gxpo.method("grpo_s+luffy").weights
    for wrong in ({"unlike": -1.0}, {"gap": -0.1}, {"outlier": 0.0}):
        with pytest.raises(ConfigError, match=r"weight\.hardness"):
            hardness_weight(**wrong)
