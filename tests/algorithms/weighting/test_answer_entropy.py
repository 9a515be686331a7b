"""SEED-GRPO's weight: the card's numbers, a loop, both estimators, what it reduces to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of

import gxpo
from gxpo.algorithms.weighting.group_curves import damped
from gxpo.algorithms.weighting.scores import _cluster_entropy as answer_entropy
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest


def answer_entropy_weight(**options):
    return part_of("seed_grpo", "answer_entropy", **options)


ROWS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from([-1, 0, 1, 2]), st.booleans(), st.floats(-3, 0)),
    min_size=1,
    max_size=10,
)


def ids(*x: int) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int64)


def grown(rows: list[tuple[str, float]], length: int = 1, **fields: list) -> Forest:
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": str(i), "prompt": [1], "reward": r,
             "turns": [{"action": [5] * length, "logprob": [-1.0] * length}], **{k: v[i] for k, v in fields.items()}}
            for i, (g, r) in enumerate(rows)
        ]
    )  # fmt: skip


def test_the_cards_numbers():
    one = torch.zeros(4, dtype=torch.int64)
    # 2/2: -(log .5 + log .5) / 2 = log 2; 3/1: -(log .75 + log .25) / 2
    assert answer_entropy(ids(0, 0, 1, 1), one).tolist() == pytest.approx([0.693147] * 4, abs=1e-6)
    assert answer_entropy(ids(0, 0, 0, 1), one).tolist() == pytest.approx([0.836988] * 4, abs=1e-6)
    # Shannon has them the other way round: .75 log(4/3) + .25 log 4 = .562335
    shannon = [float(answer_entropy(c, one, estimator="shannon")[0]) for c in (ids(0, 0, 1, 1), ids(0, 0, 0, 1))]
    assert shannon == pytest.approx([0.693147, 0.562335], abs=1e-6)
    # over log 4 that is a half: A = [.75, -.25, -.25, -.25] / 2
    forest = grown([("g", r) for r in (1.0, 0.0, 0.0, 0.0)])
    m, signals = gxpo.method("seed_grpo"), {"answer_cluster": ids(0, 0, 1, 1)}
    credit = m.advantages(forest, signals)
    scaled = credit * m.token_weights(forest, credit, signals)
    assert scaled.tolist() == pytest.approx([0.375, -0.125, -0.125, -0.125])


@given(ROWS, st.sampled_from(["mean_log", "shannon"]), st.booleans())
def test_it_equals_a_loop(rows, estimator, by_likelihood):
    group = ids(*(g for g, *_ in rows))
    cluster = ids(*(4 * g + c if c >= 0 else -1 for g, c, *_ in rows))
    where, score = torch.tensor([w for *_, w, _ in rows]), torch.tensor([s for *_, s in rows], dtype=torch.float64)
    found = answer_entropy(cluster, group, where, score if by_likelihood else None, estimator)
    expected = []
    for g, *_ in rows:
        mass: dict[int, float] = {}
        for h, c, w, s in rows:
            if h == g and c >= 0 and w:
                mass[c] = mass.get(c, 0.0) + (math.exp(s) if by_likelihood else 1.0)
        p = [m / sum(mass.values()) for m in mass.values()]
        if estimator == "shannon":
            expected.append(-sum(x * math.log(x) for x in p))
        else:
            expected.append(-sum(map(math.log, p)) / len(p) if p else 0.0)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@given(ROWS, st.sampled_from(["linear", "exponential", "focal"]), st.sampled_from(["mean_log", "shannon"]))
def test_weights_are_shares_and_one_where_all_agree(rows, decay, estimator):
    forest = grown([("ab"[g], 1.0) for g, *_ in rows], compared=[w for *_, w, _ in rows])
    group = forest.ids("group", axis="R")
    cluster = ids(*(4 * g + c if c >= 0 else -1 for g, (_, c, *_) in zip(group.tolist(), rows, strict=True)))
    part = answer_entropy_weight(decay=decay, estimator=estimator)
    weight = part(forest, torch.zeros(len(rows)), {"answer_cluster": cluster}, 0)
    assert bool((weight >= 0).all() and (weight <= 1).all())
    for g in set(group.tolist()):
        said = {c for h, (_, c, w, _) in zip(group.tolist(), rows, strict=True) if h == g and w and c >= 0}
        if len(said) <= 1:
            assert weight[group == g].tolist() == pytest.approx([1.0] * int((group == g).sum()))
        assert len(set(weight[group == g].tolist())) == 1


def test_decays():
    share = torch.tensor([0.0, 0.25, 1.0, 1.5])
    assert damped(share).tolist() == pytest.approx([1, 0.75, 0, 0])
    assert damped(share, alpha=0.5).tolist() == pytest.approx([1, 0.875, 0.5, 0.25])
    assert damped(share, decay="exponential").tolist() == pytest.approx([math.exp(-x) for x in (0, 0.25, 1, 1.5)])
    assert damped(share, decay="focal", power=2.0).tolist() == pytest.approx([1, 0.5625, 0, 0])


def test_likelihoods_are_of_a_token_and_never_push_a_weight_below_zero():
    forest = grown([("g", 1.0), ("g", 0.0)], length=2)
    # mean log-probabilities -1 and -3: p = 1 / (1 + e^-2) = .880797, .119203; -(log p1 + log p2) / 2 = 1.126928
    signals = {"answer_cluster": ids(0, 1), "proximal_logprob": torch.tensor([-0.5, -1.5, -4.0, -2.0]).double()}
    weight = answer_entropy_weight(mass="likelihood", decay="exponential")(forest, torch.zeros(4), signals, 0)
    assert weight.tolist() == pytest.approx([math.exp(-1.126928 / math.log(2))] * 4, abs=1e-6)
    assert answer_entropy_weight(mass="likelihood")(forest, torch.zeros(4), signals, 0).tolist() == [0.0] * 4
    far = {**signals, "proximal_logprob": torch.tensor([0.0, 0.0, -2000.0, -2000.0]).double()}
    assert bool(
        answer_entropy_weight(mass="likelihood", decay="exponential")(forest, torch.zeros(4), far, 0).isfinite().all()
    )


def test_alpha_zero_is_dr_grpos_credit_and_disagreement_at_one_trains_nothing():
    forest, signals = grown([("g", 1.0), ("g", 0.0), ("h", 1.0)]), {"answer_cluster": ids(0, 1, 2)}
    off, on = (gxpo.method("seed_grpo", {"weight.answer_entropy.alpha": a}) for a in (0.0, 1.0))
    credit = on.advantages(forest, signals)
    assert credit.tolist() == [0.5, -0.5, 0.0]
    assert off.token_weights(forest, credit, signals).tolist() == [1.0] * 3
    assert on.token_weights(forest, credit, signals).tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-12)


def test_bad_options_are_refused():
    for wrong in ({"alpha": -1.0}, {"power": 0.0}, {"decay": "step"}, {"estimator": "other"}, {"mass": "other"}):
        with pytest.raises(ConfigError, match=r"weight\.answer_entropy"):
            answer_entropy_weight(**wrong)  # type: ignore[arg-type]  # that is what is tested
