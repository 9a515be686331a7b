"""The learner of a flow: what it says of stored steps, and the exactness of its gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.rollouts.flow_session import TASKS, FlowSession, grown, small_flow

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import CheckpointError, ModelError
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.learning.flow import FlowLearner
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree
from gxpo.training.bound_learner import BoundLearner
from gxpo.training.models import flow

ROWS = grown(Denoise(3))
TREE = grown(DenoiseTree(seeds=2, branches=2))
FORESTS = pytest.mark.parametrize("forest", [ROWS, TREE], ids=["independent", "tree"])


def learner(**settings) -> FlowLearner:
    return FlowLearner(small_flow(), **{"lr": 1e-2, "weight_decay": 0.1, **settings})


def other(seed=7, **settings) -> FlowLearner:
    """Not the policy that sampled."""
    return FlowLearner(small_flow(seed=seed), **{"lr": 1e-2, **settings})


def read(model, forest):
    """Log-densities [P] by a walk along each trajectory, live."""
    densities = []
    for r in range(forest.n_trajectories):
        tokens = forest.path_token[forest.path_of(r)].tolist()
        direction = forest.token[int(forest.first_token[int(forest.prompt_node[r])])]
        before = None
        for t in tokens:
            x, time, s = (forest.extras[k][t].double() for k in ("latent", "time", "noise_scale"))
            if before is None:
                densities.append(torch.distributions.Normal(0.0, 1.0).log_prob(x).mean().double())
            elif s == 0:
                densities.append(torch.zeros((), dtype=torch.float64))
            else:
                y, previous_time = before
                v = model.network(y[None], previous_time[None], direction[None])[0]
                variance = s**2 / (previous_time - time)
                drift = v + variance / (2 * previous_time) * (y + (1 - previous_time) * v)
                densities.append(torch.distributions.Normal(y + drift * (time - previous_time), s).log_prob(x).mean())
            before = (x, time)
    return torch.stack(densities)


def coupled(x):
    """A loss in which every entry moves every other's derivative."""
    weight = torch.linspace(-1, 1, len(x["logprob"]), dtype=torch.float64)
    return ((x["logprob"] * weight).sum() / len(weight)).exp()


# ---------------------------------------------------------------- what it says
@FORESTS
def test_the_learner_reads_what_the_sampler_drew(forest):
    actual = learner().outputs(forest, ("logprob", "entropy"))
    assert torch.allclose(actual["logprob"], forest.path_behaviour_logprob, atol=1e-12)
    s = forest.extras["noise_scale"][forest.path_token]
    gaussian = torch.distributions.Normal(0.0, s.clamp_min(1e-9)).entropy()
    assert torch.allclose(actual["entropy"], torch.where(s > 0, gaussian, 0.0), atol=1e-12)


@FORESTS
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_outputs_agree_with_a_walk_along_each_trajectory(forest, size):
    one = other(tokens_per_microbatch=size)
    with torch.no_grad():
        assert torch.allclose(one.outputs(forest)["logprob"], read(one.model, forest), atol=1e-12)


def test_packed_is_flattened_and_order_does_not_matter():
    one = other()
    full_logprob = one.outputs(TREE)["logprob"]
    assert torch.allclose(one.outputs(TREE.flatten())["logprob"], full_logprob, atol=1e-12)
    rows = torch.randperm(TREE.n_trajectories, generator=torch.Generator().manual_seed(0))
    mixed = one.outputs(TREE.select(rows))["logprob"]
    assert torch.allclose(mixed, full_logprob[TREE.entries_of(rows)], atol=1e-12)


def test_a_forest_that_was_written_and_read_says_the_same(tmp_path):
    records.dump(TREE, tmp_path / "a.jsonl")
    again = records.load(tmp_path / "a.jsonl")
    assert torch.equal(other().outputs(again)["logprob"], other().outputs(TREE)["logprob"])


# ---------------------------------------------------------------- gradients
@FORESTS
@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("couples", ["token", "trajectory", "group", "step"])
def test_the_gradient_is_exact_whatever_the_microbatches(forest, size, couples):
    def loss(x):
        if couples == "step":
            return coupled(x)
        unit = torch.arange(forest.n_entries) if couples == "token" else forest.ids(couples, axis="P")
        total = x["logprob"].new_zeros(int(unit.max()) + 1).index_add(0, unit, x["logprob"])
        return (total / 9).exp().sum()

    one = other(tokens_per_microbatch=size)
    loss({"logprob": read(one.model, forest)}).backward()
    expected = {name: p.grad.clone() for name, p in one.model.named_parameters()}
    one.optimiser.zero()
    actual = one.gradient(forest, loss, couples=couples)
    assert actual.keys() == expected.keys()
    for name, g in actual.items():
        assert torch.allclose(g, expected[name], rtol=1e-9, atol=1e-11), name


def test_a_tree_and_its_flat_trajectories_have_one_gradient():
    one = other(tokens_per_microbatch=7)
    tree, flat = (one.gradient(f, coupled, couples="step") for f in (TREE, TREE.flatten()))
    assert all(torch.allclose(tree[n], flat[n], rtol=1e-10, atol=1e-13) for n in tree)


def test_steps_of_the_ode_and_initial_noise_move_nothing():
    one = other()
    fixed = ~ROWS.path_trainable
    assert bool(fixed.any())
    actual = one.gradient(ROWS, lambda x: (x["logprob"] * fixed).sum())
    assert all(not bool(g.any()) for g in actual.values())


@settings(max_examples=10)
@given(st.sets(st.integers(0, ROWS.n_trajectories - 1), min_size=1))
def test_inactive_entries_are_not_run(rows):
    one = other(tokens_per_microbatch=3)
    active = torch.zeros(ROWS.n_entries, dtype=torch.bool)
    active[ROWS.entries_of(sorted(rows))] = True
    active &= ROWS.path_trainable
    info = one.step(ROWS, lambda x: torch.where(active, x["logprob"], 0.0).sum(), active=active)
    assert bool(info.outputs["logprob"][active].isfinite().all())
    assert bool(info.outputs["logprob"][~active].isnan().all())
    assert info.tokens_forward == info.tokens_flat == int(active.sum())  # independent samples share no step


# ---------------------------------------------------------------- steps, copies, checkpoints
def test_a_step_raises_what_had_credit():
    one, entries = learner(lr=1e-3), TREE.path_trainable
    credit = torch.linspace(-1, 1, TREE.n_entries, dtype=torch.float64) * entries

    def value():
        return float((one.outputs(TREE)["logprob"] * credit).sum())

    before = value()
    info = one.step(TREE, lambda x: -(x["logprob"] * credit).sum(), active=entries)
    assert not info.empty and value() > before and one.meta() == {"steps": 1}


def test_an_empty_step_changes_nothing():
    one = learner()
    one.step(ROWS, coupled, couples="step")
    before, crc = one.tensors(), one.fingerprint()
    assert one.step(ROWS, coupled, active=torch.zeros(ROWS.n_entries, dtype=torch.bool)).empty
    assert all(torch.equal(before[n], x) for n, x in one.tensors().items()) and one.fingerprint() == crc


def test_the_reference_stays_and_snapshots_come_back():
    one = learner(reference=True)
    start, at = one.outputs(ROWS)["logprob"], one.snapshot()
    one.step(ROWS, coupled, couples="step")
    assert torch.equal(one.outputs(ROWS, policy="reference")["logprob"], start)
    assert not torch.equal(one.outputs(ROWS)["logprob"], start)
    one.restore(at)
    assert torch.equal(one.outputs(ROWS)["logprob"], start)
    with pytest.raises(ModelError, match="reference=True"):
        learner().outputs(ROWS, policy="reference")
    with pytest.raises(ModelError, match="'current' or 'reference'"):
        one.outputs(ROWS, policy="old")


def test_a_checkpoint_goes_on_bit_for_bit():
    one = learner()
    for _ in range(2):
        one.step(ROWS, coupled, couples="step")
    two = other()
    two.load_tensors(one.tensors(), one.meta())
    assert two.fingerprint() == one.fingerprint()
    three = learner()
    three.load_tensors(one.tensors(), one.meta())
    for x in (one, three):
        x.step(ROWS, coupled, couples="step")
    assert one.fingerprint() == three.fingerprint()
    with pytest.raises(CheckpointError, match="steps None"):
        two.load_tensors(one.tensors(), {})


def test_a_learner_beside_goes_its_own_way():
    one = learner()
    two, crc = one.second_learner(lr=1e-2), one.fingerprint()
    assert two.fingerprint() == crc
    two.step(ROWS, coupled, couples="step")
    assert one.fingerprint() == crc != two.fingerprint()


def test_what_a_flow_cannot_learn_from_is_said():
    text = Forest.from_completions([[1, 2]], [[[3, 4]]], [1.0])
    with pytest.raises(ModelError, match="extras latent, time, noise_scale"):
        learner().outputs(text)
    some = Forest.concat([ROWS, Forest.from_completions([[10]], [[[3, 4]]], [1.0], groups=["other"])])
    with pytest.raises(ModelError, match="actions that are not latents"):
        learner().outputs(some)
    with pytest.raises(ModelError, match="no output 'value'"):
        learner().outputs(ROWS, ("value",))
    with pytest.raises(ModelError, match="no hidden states"):
        learner().hidden(ROWS)
    with pytest.raises(ModelError, match=r"conditions 10\.\.355 of 5"):
        small = learner()
        small.model.conditions = 5
        small.outputs(ROWS)


# ---------------------------------------------------------------- the methods
@pytest.mark.parametrize("name", ["flow_grpo", "tempflow_grpo"])
def test_microbatches_are_exact_and_the_first_ratio_is_one(name):
    small = {"rollout.group_size": 4} if name == "flow_grpo" else {"rollout.seeds": 2, "rollout.branches": 3}
    m = gxpo.method(name, small)
    forest = grown(m.rollout, TASKS[:2])
    moved = []
    for size in (2, 1000):
        one = learner(tokens_per_microbatch=size, max_grad_norm=None)
        signals = Signals.of(forest, {"proximal_logprob": one.outputs(forest)["logprob"]})
        credit = m.advantages(forest, signals)
        weight = m.token_weights(forest, credit, signals)
        bound = BoundLearner(one, m, forest, signals, 3)  # the sampler has version 2
        m.update.run(forest, credit, weight, bound)
        assert bound.metrics[0]["on_policy"] == 1.0 and bound.sampler_gap < 1e-12
        moved.append(one.snapshot())
    assert all(torch.allclose(moved[0][n], moved[1][n], atol=1e-9) for n in moved[0])
    start = learner().snapshot()
    assert any(not torch.equal(moved[0][n], start[n]) for n in start)


@pytest.mark.parametrize("name", ["dance_grpo", "ddpo", "awm", "dgpo_diffusion", "diffusion_nft"])
def test_losses_of_denoisers_are_exact_under_microbatches(name):
    m = gxpo.method(name, {"rollout.group_size": 4})
    forest = grown(m.rollout, TASKS[:2])
    anchor = other().outputs(forest, ("prediction",))["prediction"]
    facts = {"anchor_prediction": anchor, "reference_logprob": learner().outputs(forest)["logprob"]}
    facts |= {"baseline": torch.full_like(forest.outcome, 0.4), "spread": torch.full_like(forest.outcome, 0.3)}
    moved = []
    for size in (2, 1000):
        one = learner(tokens_per_microbatch=size, max_grad_norm=None, weight_decay=0.0)
        signals = Signals.of(forest, {"proximal_logprob": one.outputs(forest)["logprob"], **facts}, m.axes)
        credit = m.advantages(forest, signals)
        m.update.run(forest, credit, m.token_weights(forest, credit, signals), BoundLearner(one, m, forest, signals, 3))
        moved.append(one.snapshot())
    start = learner().snapshot()
    assert all(torch.allclose(moved[0][n], moved[1][n], atol=1e-9) for n in start)
    assert max(float((moved[0][n] - start[n]).abs().max()) for n in start) > 1e-3


@pytest.mark.parametrize("name", ["flow_grpo", "tempflow_grpo"])
def test_the_policy_gradient_is_the_published_one(name):
    # d L / d logp = -w A / n on policy, n the trained steps of all trajectories
    small = {"rollout.group_size": 3} if name == "flow_grpo" else {"rollout.seeds": 2, "rollout.branches": 2}
    m = gxpo.method(name, small)
    forest = grown(m.rollout, TASKS[:2])
    logprob = forest.path_behaviour_logprob.clone().requires_grad_()
    credit = m.advantages(forest)
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    m.loss(forest, policy, advantages=credit).value.backward()
    s, trained = forest.extras["noise_scale"][forest.path_token], forest.path_trainable
    model = flow.FlowModel(4)
    w = s / model.noise_scales(0.7)[0][:-1].mean() if name == "tempflow_grpo" else torch.ones_like(s)
    expected = torch.where(trained, -w * credit / trained.sum(), 0.0)
    assert torch.allclose(logprob.grad, expected, atol=1e-12)


def test_a_few_steps_bring_points_nearer():
    session = FlowSession(small_flow())
    one = FlowLearner(session.model, lr=3e-2)
    m = gxpo.method("flow_grpo", {"rollout.group_size": 16})
    means = []
    for step in range(12):
        session.step = step
        forest = grown(m.rollout, TASKS, session)
        means.append(float(forest.outcome.mean()))
        credit = m.advantages(forest)
        weight = m.token_weights(forest, credit)
        m.update.run(forest, credit, weight, BoundLearner(one, m, forest, Signals.of(forest), step))
    assert sum(means[-3:]) > sum(means[:3]) + 0.3
