"""Labelled tokens are pushed up: the card's pair, credit after weighting, and phrases that are labelled in a text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of

import gxpo
from gxpo.algorithms.segments import SegmentTools
from gxpo.algorithms.weighting.token_curves import raised
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest


def labelled_weight(**options):
    return part_of("hicra", "labelled", **options)


F64 = torch.float64


def test_card() -> None:
    """A = [.5, -.5], alpha .2, both planning: [.6, -.4]; others as they are."""
    a = torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=F64)
    weight = raised(torch.tensor([True, True, False, False]), a)
    assert (weight * a).tolist() == pytest.approx([0.6, -0.4, 0.5, -0.5])


@given(st.lists(st.tuples(st.floats(-2, 2), st.booleans()), max_size=8), st.floats(0, 1))
def test_weight_times_credit_is_credit_and_alpha_of_its_size(rows: list[tuple[float, bool]], alpha: float) -> None:
    a, marked = torch.tensor([x for x, _ in rows], dtype=F64), torch.tensor([m for _, m in rows], dtype=torch.bool)
    weight = raised(marked, a, alpha=alpha)
    expected = [x + alpha * abs(x) if m else x for x, m in rows]
    assert (weight * a).tolist() == pytest.approx(expected, abs=1e-12) and bool((weight >= 0).all())


def test_hicra_labels_phrases_in_the_text_of_an_action() -> None:
    """A token a character: "So let  me TRY 1" has the phrase from character 3 to 13."""
    text = "So let  me TRY 1"
    forest = Forest.from_completions([[1]], [[[ord(c) for c in text], [ord("2")]]], [1.0, 0.0])
    m = gxpo.method("hicra")
    cut = m.segmenter(forest, SegmentTools(lambda ids: "".join(map(chr, ids))))
    credit = m.advantages(cut)
    weight = m.token_weights(cut, credit)
    up = [i for i, w in enumerate(weight.tolist()) if w != 1.0]
    assert up == list(range(3, 14)) and weight[3] == pytest.approx(1.2)
    lost = m.advantages(cut.with_rewards(torch.tensor([0.0, 1.0])))
    assert m.token_weights(cut, lost)[3] == pytest.approx(0.8)


def test_without_alpha_hicra_is_grpo() -> None:
    forest = Forest.from_completions([[1]], [[[2, 3], [4]]], [1.0, 0.0])
    forest = forest.replace(extras={"label": torch.ones(forest.n_tokens, dtype=torch.int64)})
    m = gxpo.method("hicra", {"weight.labelled.alpha": 0.0})
    assert m.token_weights(forest, m.advantages(forest)).tolist() == [1.0] * 3


# errata
def test_chained_indexing_multiplies_a_copy() -> None:
    """HICRA's reference where no token plans, by a port's account: `a[rows][mask] *= 0.5` leaves a as it was."""
    a = torch.ones(2, 3)
    a[torch.tensor([0])][torch.tensor([[True, True, True]])] *= 0.5
    assert a.tolist() == [[1.0] * 3] * 2


def test_errors() -> None:
    forest = Forest.from_completions([[1]], [[[2]]], [1.0])
    with pytest.raises(GxpoError, match="set segment=spans"):
        labelled_weight()(forest, torch.ones(1), {}, 0)
    for alpha in (-0.1, 1.5):
        with pytest.raises(ConfigError, match=r"weight\.labelled\.alpha"):
            labelled_weight(alpha=alpha)
