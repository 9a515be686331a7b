"""Exact accumulation: the gradient is the same however the step is cut, in one pass or two."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner

NAMES = ("logprob", "entropy")
MODEL = clean_llama()


def losses(forest: Forest, proximal: torch.Tensor, credit: torch.Tensor) -> dict:
    """One loss of each coupling, written over the whole step."""
    keep = forest.path_trainable.to(torch.float64)
    R, row = forest.n_trajectories, forest.path_trajectory
    group = forest.ids("group", axis="R")

    def total(x, ids, n):
        return torch.zeros(n, dtype=torch.float64).index_add(0, ids, x)

    length = total(keep, row, R).clamp_min(1)
    gain = total(credit * keep, row, R)

    def token(x):
        ratio = (x["logprob"] - proximal).exp()
        each = torch.minimum(ratio * credit, ratio.clamp(0.8, 1.2) * credit) + 0.1 * x["entropy"]
        return -(each * keep).sum() / keep.sum()

    def trajectory(x):  # a ratio per sequence, clipped
        ratio = (total((x["logprob"] - proximal) * keep, row, R) / length).exp()
        return -torch.minimum(ratio * gain, ratio.clamp(0.9, 1.1) * gain).mean()

    def contrast(x):  # each trajectory's log-ratio against its group's, and against staying where it was
        score = total((x["logprob"] - proximal) * keep, row, R)
        n = int(group.max()) + 1
        return -(gain * (score - (1 + total(score.exp(), group, n)).log()[group])).sum()

    def variance(x):  # every entry of the step with every other
        return (x["logprob"] * keep).var() + x["entropy"].mean().square()

    return {"token": token, "trajectory": trajectory, "group": contrast, "step": variance}


def partitions(forest: Forest, seed: int) -> dict[str, list[torch.Tensor]]:
    P, generator = forest.n_entries, torch.Generator().manual_seed(seed)
    return {
        "all in one": [torch.arange(P)],
        "three runs, cutting trajectories": list(torch.arange(P).tensor_split(3)),
        "at random": list(torch.randperm(P, generator=generator).tensor_split(5)),
        "by trajectory": [forest.path_of(r) for r in range(forest.n_trajectories)],
        "by group": [(forest.ids("group", axis="P") == g).nonzero().squeeze(1) for g in range(len(set(forest.group)))],
    }


def farthest(one: dict, other: dict) -> float:
    top = torch.cat([(one[n] - other[n]).reshape(-1) for n in one]).norm()
    return float(top / torch.cat([x.reshape(-1) for x in other.values()]).norm())


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6))
def test_every_cut_gives_the_same_gradient(seed):
    forest = random_forest(seed)
    learner = TorchLearner(MODEL, lr=0.0)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, forest.n_entries, generator=generator, dtype=torch.float64)
    x = learner.outputs(forest)["logprob"]
    for couples, loss in losses(forest, x + 0.2 * noise[0], noise[1]).items():
        full_gradient = learner.gradient(forest, loss, names=NAMES, couples=couples)
        for name, cuts in partitions(forest, seed).items():
            for two_pass in (None, True):
                actual = learner.gradient(forest, loss, names=NAMES, couples=couples, cuts=cuts, two_pass=two_pass)
                assert farthest(actual, full_gradient) < 1e-12, (couples, name, two_pass)
        small = TorchLearner(MODEL, lr=0.0, tokens_per_microbatch=20)
        assert farthest(small.gradient(forest, loss, names=NAMES, couples=couples), full_gradient) < 1e-12


def test_retryst_one_plain_backward_pass():
    # a loop over trajectories of the whole model's own logits, cut nowhere
    forest = random_forest(11)
    learner = TorchLearner(MODEL, lr=0.0, tokens_per_microbatch=16)
    proximal = learner.outputs(forest)["logprob"] + 0.1
    credit = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)
    logprob, entropy = [], []
    for p in range(forest.n_entries):
        t = int(forest.path_token[p])
        node = int(forest.token_node[t])
        context = forest.context(int(forest.parent[node])) + forest.token[forest.first_token[node] : t].tolist()
        temperature = forest.sampling[int(forest.path_trajectory[p])].get("temperature", 1.0)
        log_p = (MODEL(torch.tensor([context])).logits[0, -1] / temperature).log_softmax(-1)
        logprob.append(log_p[int(forest.token[t])])
        entropy.append(-(log_p.exp() * log_p).sum())
    x = {"logprob": torch.stack(logprob), "entropy": torch.stack(entropy)}
    for couples, loss in losses(forest, proximal, credit).items():
        names, parameters = zip(*MODEL.named_parameters(), strict=True)
        expected = dict(zip(names, torch.autograd.grad(loss(x), parameters, retain_graph=True), strict=True))
        actual = learner.gradient(forest, loss, names=NAMES, couples=couples)
        assert farthest({n: actual[n] for n in names}, expected) < 1e-12


def test_one_pass_is_taken_where_units_are_whole():
    forest = random_forest(2)
    learner = TorchLearner(MODEL, lr=0.0)
    cuts = partitions(forest, 0)
    loss = losses(forest, torch.zeros(forest.n_entries), torch.ones(forest.n_entries, dtype=torch.float64))
    learner.gradient(forest, loss["token"], names=NAMES, couples="token", cuts=cuts["at random"], two_pass=False)
    learner.gradient(forest, loss["trajectory"], couples="trajectory", cuts=cuts["by trajectory"], two_pass=False)
    learner.gradient(forest, loss["group"], couples="group", cuts=cuts["by group"], two_pass=False)
    with pytest.raises(ModelError, match="cut through a trajectory"):
        learner.gradient(forest, loss["trajectory"], couples="trajectory", cuts=cuts["at random"], two_pass=False)
    with pytest.raises(ModelError, match="couples"):
        learner.gradient(forest, loss["token"], couples="tokens")


def test_inactive_entries_are_not_run_and_change_nothing():
    forest = Forest.from_completions([[2, 3, 4], [5, 6]], [[[7, 8], [9]], [[10, 11], [12]]], [1, 0, 0, 0])
    learner = TorchLearner(MODEL, lr=0.0)
    credit = torch.tensor([1.0, -0.5, 0, 0, 0, 0], dtype=torch.float64)
    active = credit != 0

    def loss(x):
        return -((x["logprob"] - forest.path_behaviour_logprob.nan_to_num()).exp() * credit).sum()

    assert farthest(learner.gradient(forest, loss, active=active), learner.gradient(forest, loss)) < 1e-12
    info = learner.step(forest, loss, active=active)
    assert (info.tokens_forward, info.microbatches) == (3 + 1, 1)  # the second tree and the second leaf are left out
    assert info.outputs["logprob"].isfinite().tolist() == active.tolist()
    expected = learner.outputs(forest)["logprob"][active]
    assert torch.allclose(info.outputs["logprob"][active], expected, rtol=0, atol=1e-12)


def test_only_what_the_loss_reads_is_run():
    """A term names all that it reads as active: the mean log-ratio of a trajectory needs its other tokens too."""
    forest = Forest.from_completions([[2, 3]], [[[7, 8, 9], [10, 11]]], [1, 0])
    active = torch.tensor([True, True, True, False, False])
    info = TorchLearner(MODEL, lr=0.0).step(
        forest, lambda x: x["logprob"][0] * x["logprob"][:3].detach().mean(), couples="group", active=active
    )
    assert info.outputs["logprob"].isfinite().tolist() == active.tolist()
    assert info.tokens_forward == 4  # 2 3 7 8: the last token of the trajectory predicts nothing


def test_loss_is_that_of_the_whole_step():
    forest = random_forest(4)
    learner = TorchLearner(MODEL, lr=0.0, tokens_per_microbatch=12)
    x = learner.outputs(forest, NAMES)
    for couples, loss in losses(forest, x["logprob"] + 0.1, torch.ones(forest.n_entries, dtype=torch.float64)).items():
        info = learner.step(forest, loss, names=NAMES, couples=couples)
        assert info.microbatches > 1
        assert abs(info.loss - float(loss(x))) < 1e-12
