"""Divergence of the policy to a stored teacher: worked numbers, ends, gradients, cuts, chunks, supports."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.divergence import generalised_jensen_shannon, with_rest
from gxpo.learning.readout import Readout, read
from gxpo.learning.torch import TorchLearner

F64 = torch.float64
S, T = torch.tensor([[0.6, 0.3, 0.1]], dtype=F64).log(), torch.tensor([[0.2, 0.5, 0.3]], dtype=F64).log()


def by_loop(s, t, alpha):
    """The divergence of two lists of probabilities."""
    if alpha == 0:
        return sum(q * math.log(q / p) for p, q in zip(s, t, strict=True) if q > 0)
    if alpha == 1:
        return sum(p * math.log(p / q) for p, q in zip(s, t, strict=True) if p > 0)
    total = 0.0
    for p, q in zip(s, t, strict=True):
        m = (1 - alpha) * p + alpha * q
        total += (1 - alpha) * p * math.log(p / m) + alpha * q * math.log(q / m)
    return total


@pytest.mark.parametrize(("alpha", "value"), [(0.5, 0.091121), (0.0, 0.365274), (1.0, 0.396058)])
def test_card(alpha, value):
    assert float(generalised_jensen_shannon(S, T, alpha)) == pytest.approx(value, abs=1e-6)


def test_the_ends_are_not_the_limits():
    # value / alpha goes to KL(T || S) = .365274 and value / (1 - alpha) to KL(S || T) = .396058, the value itself to 0
    near0, near1 = (float(generalised_jensen_shannon(S, T, a)) for a in (1e-6, 1 - 1e-6))
    assert near0 / 1e-6 == pytest.approx(0.365274, rel=1e-4) and near1 / 1e-6 == pytest.approx(0.396058, rel=1e-4)
    assert float(generalised_jensen_shannon(S, T, 0.0)) > 1e5 * near0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
def test_divergence_equals_a_loop_and_its_slope(seed, alpha):
    generator = torch.Generator().manual_seed(seed)
    z = (3 * torch.randn(4, 5, generator=generator, dtype=F64)).requires_grad_()
    t = (3 * torch.randn(4, 5, generator=generator, dtype=F64)).log_softmax(1)
    actual = generalised_jensen_shannon(z.log_softmax(1), t, alpha)
    value = actual.tolist()
    for i in range(4):
        expected = by_loop(z[i].softmax(0).tolist(), t[i].exp().tolist(), alpha)
        assert value[i] == pytest.approx(expected, abs=1e-12) and value[i] >= -1e-15
    (slope,) = torch.autograd.grad(actual.sum(), z)
    for i, k in ((0, 0), (3, 4)):
        ends = []
        for h in (1e-6, -1e-6):
            moved = z[i].detach().clone()
            moved[k] += h
            ends.append(by_loop(moved.softmax(0).tolist(), t[i].exp().tolist(), alpha))
        assert float(slope[i, k]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_nothing_to_be_far_from(alpha):
    """A policy is at 0 from itself, and from nobody; far apart, all is finite, the gradient included."""
    z = torch.tensor([[0.0, 1.0, -2.0]] * 3, dtype=F64, requires_grad=True)
    t = torch.stack([z[0].log_softmax(0), torch.full((3,), -torch.inf, dtype=F64), torch.tensor([-800.0, -900.0, 0.0])])
    actual = generalised_jensen_shannon(z.log_softmax(1), t.detach(), alpha)
    assert actual[:2].tolist() == pytest.approx([0.0, 0.0], abs=1e-15) and bool(actual.isfinite().all())
    (slope,) = torch.autograd.grad(actual.sum(), z)
    assert bool(slope.isfinite().all()) and bool((slope[1] == 0).all()) and float(slope[0].abs().max()) < 1e-15


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_rest_is_one_outcome(alpha):
    """Merging outcomes never adds divergence; with all ids named there is no rest and nothing is lost."""
    generator = torch.Generator().manual_seed(0)
    z, t = (2 * torch.randn(6, 9, generator=generator, dtype=F64) for _ in range(2))
    full_jensen_shannon = generalised_jensen_shannon(z.log_softmax(1), t.log_softmax(1), alpha)
    ids = t.topk(9, 1).indices
    last = torch.zeros(6, dtype=F64)
    for k in range(1, 10):
        s, q = (with_rest(x, x.logsumexp(1), ids[:, :k]) for x in (z, t))
        assert s.shape == (6, k + 1)
        if k < 9:
            assert torch.allclose(s.exp().sum(1), torch.ones(6, dtype=F64), atol=1e-12)
        actual = generalised_jensen_shannon(s, q, alpha)
        assert bool((actual >= last - 1e-12).all()) and bool((actual <= full_jensen_shannon + 1e-12).all())
        last = actual
    assert torch.allclose(last, full_jensen_shannon, atol=1e-12) and bool((s[:, 9] == -torch.inf).all())


def test_a_rest_of_next_to_nothing_keeps_its_digits():
    # 1 - p is 0 in float32; log of the others' probability is -40 all the same
    z = torch.tensor([[40.0, 0.0]])
    s = with_rest(z, z.logsumexp(1), torch.tensor([[0]]))
    assert s[0].tolist() == pytest.approx([0.0, -40.0])


def test_the_rest_of_a_support():
    z = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]] * 2, dtype=F64)
    support = torch.tensor([[0, 2, 4], [3, 1, -1]])
    total = torch.stack([z[0, [0, 2, 4]].logsumexp(0), z[0, [1, 3]].logsumexp(0)])
    actual = with_rest(z, total, torch.tensor([[4, 0], [1, -1]]), support).exp()
    a, b = math.exp(0) + math.exp(2) + math.exp(4), math.exp(1) + math.exp(3)
    assert actual[0].tolist() == pytest.approx([math.exp(4) / a, 1 / a, math.exp(2) / a])
    assert actual[1].tolist() == pytest.approx([math.exp(1) / b, 0.0, math.exp(3) / b])


# ---------------------------------------------------------------- in the learner
def dense_divergence(model, forest, teacher, k, alpha):
    """[P] by the model's own logits of every trajectory written out, top k of the teacher's and the rest."""
    flat, out = forest.flatten(), []
    for r in range(flat.n_trajectories):
        for p in flat.path_of(r).tolist():
            token = int(flat.path_token[p])
            node = int(flat.token_node[token])
            before = flat.context(int(flat.parent[node])) + flat.token[int(flat.first_token[node]) : token].tolist()
            warm = flat.sampling[r].get("temperature") or 1.0
            s, t = ((m(torch.tensor([before])).logits[0, -1] / warm).log_softmax(0) for m in (model, teacher))
            ids = t.topk(k).indices
            others = torch.ones(len(s), dtype=torch.bool)
            others[ids] = False
            s, t = (torch.cat([x[ids], x[others].logsumexp(0)[None]]) for x in (s, t.detach()))
            if alpha in (0.0, 1.0):
                each = t.exp() * (t - s) if alpha == 0 else s.exp() * (s - t)
            else:
                m = ((1 - alpha) * s.exp() + alpha * t.exp()).log()
                each = (1 - alpha) * s.exp() * (s - m) + alpha * t.exp() * (t - m)
            out.append(each.sum())
    return torch.stack(out)


def told(teacher, forest, k):
    actual = teacher.outputs(forest, (f"likeliest@{k}", f"likeliest_logprob@{k}", "entropy"))
    ids = actual[f"likeliest@{k}"].to(torch.int64)
    return {"teacher_ids": ids, "teacher_logprob": actual[f"likeliest_logprob@{k}"]}


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["packed", "flat"]))
def test_value_and_gradient_are_those_of_a_dense_computation(seed, alpha, layout):
    forest, model, other = random_forest(seed), clean_llama(), clean_llama(seed=3)
    slope = torch.linspace(-1, 2, forest.n_entries, dtype=F64)
    teacher = TorchLearner(other, lr=0.0)
    constants = told(teacher, forest, 4)
    name = f"divergence@{alpha}"
    learner = TorchLearner(model, lr=0.0, layout=layout, logits_at_once=70)
    actual = learner.outputs(forest, ("logprob", name), constants=constants)[name]
    expected = dense_divergence(model, forest, other, 4, alpha)
    assert torch.allclose(actual, expected.detach(), rtol=0, atol=1e-10)
    names = [n for n, _ in model.named_parameters()]
    dense = torch.autograd.grad((expected * slope).sum(), list(model.parameters()))
    gradient = learner.gradient(forest, lambda x: (x[name] * slope).sum(), names=("logprob", name), constants=constants)
    for n, g in zip(names, dense, strict=True):
        assert float((gradient[n] - g).norm()) <= 1e-10 * max(1.0, float(g.norm())), n


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_exact_under_every_cut(alpha):
    forest, name = random_forest(4), f"divergence@{alpha}"
    learner, teacher = TorchLearner(clean_llama(), lr=0.0), TorchLearner(clean_llama(seed=2), lr=0.0)
    constants = told(teacher, forest, 5)
    rng = random.Random(0)
    names = ("logprob", name, "mean_logprob")

    def loss(x):  # factors by the ratio make it not linear
        return (x["logprob"].detach().exp() * x[name]).mean() + x[name].square().mean() + x["mean_logprob"].mean()

    def gradient(cuts, two_pass):
        actual = learner.gradient(forest, loss, names=names, cuts=cuts, two_pass=two_pass, constants=constants)
        return torch.cat([g.reshape(-1) for _, g in sorted(actual.items())])

    full_gradient = gradient([torch.arange(forest.n_entries)], True)
    assert float(full_gradient.norm()) > 0
    order = torch.tensor(rng.sample(range(forest.n_entries), forest.n_entries))
    cuts = {
        "trajectories": [forest.path_of(r) for r in range(forest.n_trajectories)],
        "pieces": list(torch.arange(forest.n_entries).split(3)),
        "at random": list(order.split(4)),
    }
    for cut in cuts.values():
        for two_pass in (True, False):
            assert float((gradient(cut, two_pass) - full_gradient).norm() / full_gradient.norm()) <= 1e-12


def test_entries_of_one_token_have_teachers_of_their_own():
    """Two trajectories share a token by a fork; one has a teacher, the other none, or another one."""
    base = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [2, 3], "turns": [{"action": [4, 5]}]}
    fork = {"schema": "gxpo.rollouts/1", "group": "g", "id": "b", "fork": {"of": "a", "turn": 0, "token": 1},
            "turns": [{"action": [6]}]}  # fmt: skip
    forest, learner = Forest.from_records([base, fork]), TorchLearner(clean_llama(), lr=0.0)
    one, other = (told(TorchLearner(clean_llama(seed=s), lr=0.0), forest, 3) for s in (1, 2))
    assert int(forest.path_token[0]) == int(forest.path_token[2])
    rows = torch.tensor([True, True, False, False])
    mixed = {n: torch.where(rows[:, None], one[n], other[n]) for n in one}
    none = {"teacher_ids": one["teacher_ids"].masked_fill(~rows[:, None], -1),
            "teacher_logprob": one["teacher_logprob"].masked_fill(~rows[:, None], -torch.inf)}  # fmt: skip
    name = "divergence@0.5"
    a, b, both, half = (learner.outputs(forest, (name,), constants=g)[name] for g in (one, other, mixed, none))
    assert torch.equal(both, torch.where(rows, a, b)) and float((a - b)[0].abs()) > 1e-3
    assert torch.equal(half, torch.where(rows, a, 0.0))


def test_a_teacher_on_a_support_and_at_a_temperature():
    """Student and teacher are read at the trajectory's temperature, on its support; a support of one id is certain."""
    support = [torch.tensor([[4, 9, 2], [5, -1, -1]])]
    forest = Forest.from_completions([[2, 3]], [[[4, 5]]], [0], support=support, sampling={"temperature": 0.7})
    learner, teacher = TorchLearner(clean_llama(), lr=0.0), clean_llama(seed=1)
    constants = told(TorchLearner(teacher, lr=0.0), forest, 2)
    assert constants["teacher_ids"][1].tolist() == [5, -1]
    assert sorted({4, 9, 2} - set(constants["teacher_ids"][0].tolist()))  # one of them is the rest
    actual = learner.outputs(forest, ("divergence@0.0",), constants=constants)["divergence@0.0"]
    with torch.no_grad():
        z, t = (m(torch.tensor([[2, 3]])).logits[0, -1, [4, 9, 2]] / 0.7 for m in (learner.model, teacher))
    expected = by_loop(z.softmax(0).tolist(), t.softmax(0).tolist(), 0)  # two named ids and one other are all three
    assert actual.tolist() == pytest.approx([expected, 0.0], abs=1e-12)
    gradient = learner.gradient(forest, lambda x: x["divergence@0.0"].sum(), names=("logprob", "divergence@0.0"),
                                constants=constants)  # fmt: skip
    assert all(bool(g.isfinite().all()) for g in gradient.values())


@pytest.mark.parametrize("at_once", [1, 100, 2**24])
def test_chunks_change_nothing(at_once):
    generator = torch.Generator().manual_seed(0)
    readout = Readout(clean_llama())
    states = torch.randn(12, 32, dtype=F64, generator=generator)
    target, warm = torch.randint(0, 23, (12,), generator=generator), torch.linspace(0.5, 2, 12, dtype=F64)
    table = torch.randn(12, 23, dtype=F64, generator=generator).log_softmax(1)
    ids = table.topk(3, 1).indices
    constants = {"teacher_ids": ids, "teacher_logprob": with_rest(table, table.logsumexp(1), ids)}
    names = ("divergence@0.5", "likeliest@3", "logprob", "likeliest_logprob@3")
    actual = read(readout, states, target, warm, None, names, logits_at_once=at_once, constants=constants)
    z = (readout.causal.lm_head(states) / warm[:, None]).log_softmax(1)
    student = torch.cat([z.gather(1, ids), z.scatter(1, ids, -torch.inf).logsumexp(1)[:, None]], 1)
    expected = [by_loop(a.exp().tolist(), b.exp().tolist(), 0.5)
              for a, b in zip(student, constants["teacher_logprob"], strict=True)]  # fmt: skip
    assert actual["divergence@0.5"].tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(actual["likeliest@3"].long(), z.topk(3, 1).indices)
    assert torch.allclose(actual["likeliest_logprob@3"][:, :3], z.topk(3, 1).values.detach(), atol=1e-12)


def test_all_logits_are_never_held():
    held_sizes, model = [], clean_llama()
    model.lm_head.register_forward_hook(lambda module, inputs, output: held_sizes.append(output.numel()))
    forest = Forest.from_completions([[2, 3]], [[[4, 5, 6, 7]] * 20], [0] * 20)
    learner = TorchLearner(model, lr=0.0, logits_at_once=230)
    constants = told(learner, forest, 3)
    name = "divergence@0.5"
    learner.gradient(forest, lambda x: x[name].sum(), names=("logprob", name), constants=constants)
    assert (
        max(held_sizes[4:]) <= 230 and len(held_sizes) > 3 * 8
    )  # after the probe's four; computed again in the backward pass


def test_more_ids_than_there_are():
    forest = Forest.from_completions([[2, 3]], [[[4, 5]]], [0])
    actual = TorchLearner(clean_llama(), lr=0.0).outputs(forest, ("likeliest_logprob@100", "likeliest@100"))
    assert actual["likeliest@100"].shape == (2, 23) and actual["likeliest_logprob@100"].shape == (2, 24)
    assert sorted(actual["likeliest@100"][0].tolist()) == list(range(23))
    assert bool((actual["likeliest_logprob@100"][:, 23] == -torch.inf).all())


def test_what_is_refused():
    forest = Forest.from_completions([[2, 3]], [[[4, 5]]], [0])
    learner = TorchLearner(clean_llama(), lr=0.0)
    for name, what in (
        ("divergence@0.5", "give teacher_ids and teacher_logprob"),
        ("divergence@2", "mixture from 0 to 1"),
        ("divergence@half", "mixture from 0 to 1"),
        ("divergence", "no output 'divergence'"),
        ("likeliest@0", "number of ids"),
        ("likeliest@x", "number of ids"),
    ):
        ids, logprob = torch.zeros(2, 1).long(), torch.zeros(2, 2, dtype=F64)
        constants = {"teacher_ids": ids, "teacher_logprob": logprob} if "mixture" in what else None
        with pytest.raises(ModelError, match=what):
            learner.outputs(forest, (name,), constants=constants)
    with pytest.raises(ModelError, match="has no gradient"):
        learner.gradient(forest, lambda x: x["logprob"].sum(), names=("logprob", "likeliest@2"))
    with pytest.raises(ValueError, match="has 3 rows"):
        learner.step(forest, lambda x: x["logprob"].sum(), constants={"teacher_ids": torch.zeros(3, 1)})
