"""Trajectories without a score, or that are not compared: what they change of the others' advantages and losses."""

import pytest
import torch
from tests.battery import ON_BATTERY, battery, kinds_of_parts, made_up, policy_of
from tests.methods.five_answers import forest
from tests.thorough import cover_in_lists

import gxpo
from gxpo.methods import METHODS


@pytest.mark.slow
@pytest.mark.parametrize("names", cover_in_lists(sorted(METHODS), kinds_of_parts))
def test_an_unscored_trajectory_changes_nothing(names):
    grown_forest = battery(4, unscored=("0.2", "2.1"))
    differing = {name: what for name in names if (what := what_unscored_trajectories_change(name, grown_forest))}
    assert differing == {}


def what_unscored_trajectories_change(name, whole):
    """Names of what differs for a method between this forest and that of its scored trajectories."""
    m = gxpo.method(name, ON_BATTERY.get(name)).fill(horizon=8.0, max_length=8)
    kept_squeeze = whole.scored.nonzero().squeeze(1)
    without, entries = whole.select(kept_squeeze), whole.entries_of(kept_squeeze)
    shift = torch.linspace(-0.3, 0.3, whole.n_entries, dtype=torch.float64)
    signals = made_up(m, whole, 4)

    def run(f, pick, held):
        logprob = (f.path_behaviour_logprob + shift[pick]).requires_grad_()
        others = {n: 1.0 + 0.1 * shift[pick] + 0.25 * logprob for n in m.outputs}
        x = {**others, "logprob": logprob, "value": 0.1 * shift[pick]}
        out = m.loss(f, policy_of(f, x, held), signals=held)
        (gradient,) = torch.autograd.grad(out.value, logprob)
        return m.advantages(f, held), out.value.detach(), gradient

    everything = torch.arange(whole.n_entries)
    credit, value, gradient = run(whole, everything, signals)
    credit_without, value_without, gradient_without = run(without, entries, signals.select(whole, kept_squeeze))
    gone = torch.ones(whole.n_entries, dtype=torch.bool)
    gone[entries] = False
    right = {
        "credit of what is unscored": bool((credit[gone] == 0).all()),
        "gradient of what is unscored": bool((gradient[gone] == 0).all()),
        "credit": torch.equal(credit[entries], credit_without),
        "loss": torch.equal(value, value_without),
        "gradient": torch.equal(gradient[entries], gradient_without),
    }
    return [what for what, equal in right.items() if not equal]


def test_weights_do_not_see_unscored_trajectories():
    def share(forest, credit, signals, step):  # each entry's share of the batch: depends on how many there are
        return torch.full((forest.n_entries,), 1.0 / forest.n_entries, dtype=torch.float64)

    f = forest((1.0, 0.0, None, 1.0, 0.0))  # 9 entries, 2 of them of the unscored trajectory
    m = gxpo.method("grpo", {"weight.share": share})
    weight = m.token_weights(f, m.advantages(f))
    assert weight[f.path_of(2)].tolist() == [0.0, 0.0]
    assert weight[f.path_of(0)].tolist() == pytest.approx([1 / 7, 1 / 7])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "gigpo", "reinforce_pp_baseline"])
def test_an_uncompared_trajectory_is_in_no_statistic(name):
    m = gxpo.method(name)
    scores = [1.0, 0.0, 0.5, 1.0, 0.0]
    compared = torch.tensor([True, True, False, True, True])
    full_forest = forest(scores, compared=compared)
    changed = forest([1.0, 0.0, 99.0, 1.0, 0.0], compared=compared)
    others = full_forest.entries_of(compared)
    assert torch.equal(m.advantages(full_forest)[others], m.advantages(changed)[others])
    assert torch.equal(m.advantages(full_forest)[others], m.advantages(full_forest.select(compared)))


def test_an_uncompared_trajectory_is_measured_against_others():
    f = forest([1.0, 0.0, 0.5, 1.0, 0.0], compared=torch.tensor([True, True, False, True, True]))
    a = gxpo.method("dr_grpo").advantages(f)
    assert a[f.path_of(2)].tolist() == [0.0, 0.0]  # 0.5 - mean(1, 0)
    b = gxpo.method("dr_grpo").advantages(
        f.replace(outcome=torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0], dtype=torch.float64))
    )
    assert b[f.path_of(2)].tolist() == [1.5, 1.5]  # 2 - mean(1, 0)


def test_weight_zero_counts_in_denominators_only():
    f = forest([1.0, 0.0, 1.0, 1.0, 0.0])
    silenced = f.replace(weight=torch.tensor([1.0, 0, 1, 1, 1], dtype=torch.float64))
    m = gxpo.method("grpo")

    def gradient(x):
        logprob = x.path_behaviour_logprob.clone().requires_grad_()
        m.loss(x, gxpo.PolicyTokens(logprob, x.path_behaviour_logprob)).value.backward()
        return logprob.grad

    full, partial = gradient(f), gradient(silenced)
    mine = f.path_of(1)
    assert bool((partial[mine] == 0).all()) and bool((full[mine] != 0).all())
    others = torch.ones(f.n_entries, dtype=torch.bool)
    others[mine] = False
    assert torch.equal(full[others], partial[others])
