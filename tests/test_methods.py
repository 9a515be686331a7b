"""One contract for every registered method: it trains, is exact under micro-batching, stays still where it must, and
computes something that no other method computes."""

import copy
import itertools
import random

import pytest
import torch
from tests.learners.llamas import clean_llama

import gxpo
from gxpo.errors import TaskError
from gxpo.explain.catalogue import entries
from gxpo.forest import Forest
from gxpo.keys import EVIDENCE
from gxpo.learners.torch import TorchLearner
from gxpo.methods import METHODS
from gxpo.signals import Signals
from gxpo.trainer.bound import BoundLearner

NAMES = sorted(METHODS)
EQUAL_GROUPS_LEARN = {"reinforce_pp"}  # built to: groups equal within but not between


def composed(name):
    return gxpo.method(name).fill(horizon=12.0, max_length=12)


def battery(seed, *, sizes=(4, 3, 5), rewards=None):
    """Groups of unequal size and length; two turns where a state may be met again; log-probs of some sampler."""
    rng = random.Random(seed)
    records = []
    for g, size in enumerate(sizes):
        for i in range(size):
            turns = []
            for _ in range(rng.choice((1, 2, 2))):
                action = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 6))]
                turns.append(
                    {
                        "observation": [rng.randrange(1, 60)],
                        "action": action,
                        "state": f"s{rng.randrange(2)}",
                        "logprob": [-rng.random() * 3 - 0.1 for _ in action],
                    }
                )
            reward = rng.choice((0.0, 0.3, 1.0)) if rewards is None else rewards[g]
            records.append(
                {
                    "schema": "gxpo.rollouts/1",
                    "group": f"g{g}",
                    "id": f"{g}.{i}",
                    "prompt": [7 + g, 8, 9],
                    "turns": turns,
                    "reward": reward,
                }
            )
    return Forest.from_records(records)


# ---------------------------------------------------------------- the catalogue
def test_every_row_of_the_catalogue_is_complete():
    rows = {row["name"]: row for row in entries()}
    assert set(rows) == set(METHODS)
    for name, row in rows.items():
        assert row["title"] and row["formula"] and row["idea"] and row["evidence"] in EVIDENCE, name
        assert METHODS[name].authors and METHODS[name].year and METHODS[name].bibtex.startswith(f"@misc{{{name},"), name
        assert {"stages", "defaults", "needs", "requires", "cost"} <= set(row)


def test_a_method_states_only_what_differs_from_the_base():
    base = gxpo.method("grpo").keys
    for name, definition in METHODS.items():
        for key, value in definition.keys.items():
            if key.split(".")[0] != key and key.split(".")[0] in definition.keys:
                continue  # a parameter of a part that the base does not have
            assert key not in base or base[key].value != value, f"{name} repeats {key}"


# ---------------------------------------------------------------- fingerprints
def fingerprint(name):
    """Credit and gradient on a fixed battery, off policy and with a sampler of its own."""
    m, parts = composed(name), []
    for seed in (0, 1):
        forest = battery(seed)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(2, forest.n_entries, generator=generator, dtype=torch.float64)
        proximal = forest.path_behaviour_logprob + 0.4 * noise[0]
        logprob = (proximal + 0.5 * noise[1]).requires_grad_()
        signals = {"proximal_logprob": proximal}
        credit = m.advantages(forest, signals)
        policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob, proximal_logprob=proximal)
        (gradient,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit).value, logprob)
        parts += [credit, gradient * forest.n_entries]
    return torch.cat(parts)


def test_no_two_methods_compute_the_same():
    prints = {name: fingerprint(name) for name in NAMES}
    for a, b in itertools.combinations(NAMES, 2):
        alike = torch.allclose(prints[a], prints[b], rtol=1e-9, atol=1e-12)
        declared = METHODS[a].alias_of == b or METHODS[b].alias_of == a
        assert alike == declared, f"{a} and {b}: alike is {alike}, declared {declared}"


# ---------------------------------------------------------------- exact under micro-batching
@pytest.fixture(scope="module")
def learner():
    return TorchLearner(clean_llama(vocab_size=64), lr=1e-3, weight_decay=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_the_same_however_the_step_is_cut(name, learner):
    m, forest = composed(name), battery(3)
    signals = {"proximal_logprob": learner.outputs(forest)["logprob"] + 0.3}
    credit = m.advantages(forest, signals)
    weight = m.token_weights(forest, credit, signals)
    active = m.active(forest, credit, weight)
    held = Signals.of(forest, signals)

    def loss(x):
        policy = gxpo.PolicyTokens(
            x["logprob"],
            forest.path_behaviour_logprob,
            entropy=x.get("entropy"),
            proximal_logprob=signals["proximal_logprob"],
        )
        return m.objective(forest, policy, credit, weight, held)

    def gradient(cuts, two_pass):
        found = learner.gradient(
            forest, loss, names=m.outputs, couples=m.couples, active=active, cuts=cuts, two_pass=two_pass
        )
        return torch.cat([g.reshape(-1) for _, g in sorted(found.items())])

    everything = torch.arange(forest.n_entries)
    rows = [forest.path_of(r) for r in range(forest.n_trajectories)]
    inside = list(everything.split(2))
    whole = gradient([everything], True)
    assert float(whole.norm()) > 0
    ways = {
        "two passes, by trajectory": (rows, True),
        "two passes, by three": ([torch.cat(rows[i : i + 3]) for i in range(0, len(rows), 3)], True),
        "two passes, inside trajectories": (inside, True),
        "fast, at once": ([everything], False),
        "fast, by trajectory": (rows, False),
    }
    if m.couples == "token":
        ways["fast, inside trajectories"] = (inside, False)
    for way, (cuts, two_pass) in ways.items():
        difference = float((gradient(cuts, two_pass) - whole).norm() / whole.norm())
        assert difference <= 1e-12, f"{name}, {way}: {difference:.2e}"


# ---------------------------------------------------------------- equal groups
@pytest.mark.parametrize("name", NAMES)
def test_groups_of_equal_rewards_move_nothing(name):
    """All rewards of a group are equal, groups differ; decay must not move anything either."""
    m = composed(name)
    forest = battery(5, rewards=(0.1, 0.7, 1 / 3))
    own = TorchLearner(clean_llama(vocab_size=64), lr=1e-2, weight_decay=0.1)
    before = copy.deepcopy(own.snapshot())
    signals = Signals.of(forest)
    credit = m.advantages(forest, signals)
    weight = m.token_weights(forest, credit, signals)
    bound = BoundLearner(own, m, forest, signals, 1)
    infos = m.update.run(forest, credit, weight, bound)
    same = all(torch.equal(before[k], v) for k, v in own.snapshot().items())
    state_returns_differ = name == "gigpo"  # steps of one state may still differ in what followed
    if name in EQUAL_GROUPS_LEARN:
        assert not same and not any(i.empty for i in infos)
    elif not state_returns_differ:
        assert bool((credit == 0).all()) and same and all(i.empty for i in infos)


def test_gigpo_is_still_on_equal_groups_without_discount():
    m = gxpo.method("gigpo", {"credit.discount": 1.0})
    assert bool((m.advantages(battery(5, rewards=(0.1, 0.7, 1 / 3))) == 0).all())


# ---------------------------------------------------------------- they train
def parity(completion):
    """A reward that a cold model gets half of the time, with a verdict."""
    return {"correct": float(sum(map(ord, completion)) % 2)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:reward")
def test_every_method_trains_two_steps(name, tmp_path):
    run = gxpo.train(
        "tiny:cold",
        "arithmetic",
        name,
        2,
        lambda completion: parity(completion),
        out=tmp_path / "run",
        set={
            "tasks.per_step": 4,
            "rollout.group_size": 4,
            "sampling.max_new_tokens": 6,
            "eval.tasks": 8,
            "update.weight_decay": 0.0,
        },
    )
    rows = run.metrics
    assert [r["step"] for r in rows] == [1, 2]
    assert rows[0]["weights_crc"] != rows[1]["weights_crc"] and rows[-1]["empty_steps"] == 0
    for row in rows:
        assert row["grad_norm"] > 0 and all(v is None or isinstance(v, (int, float)) for v in row.values())
    assert all(bool(p.isfinite().all()) for p in run.trainer.learner.snapshot().values())


@pytest.mark.filterwarnings("ignore:reward")
def test_equal_rewards_are_an_empty_step_of_the_trainer(tmp_path):
    keys = {
        "tasks.per_step": 2,
        "rollout.group_size": 3,
        "sampling.max_new_tokens": 4,
        "eval.tasks": 4,
        "update.weight_decay": 0.1,
    }
    always = lambda completion: {"correct": 1.0}  # noqa: E731  a closure on purpose: it runs in process
    run = gxpo.train("tiny:cold", "arithmetic", "grpo", 2, always, out=tmp_path / "run", set=keys)
    rows = run.metrics
    assert [r["empty_steps"] for r in rows] == [1, 2] and rows[0]["weights_crc"] == rows[1]["weights_crc"]
    assert rows[1]["zero_signal_groups"] == 1.0
    with pytest.raises(TaskError, match="none of"):
        gxpo.train("tiny:cold", "arithmetic", "dapo", 1, always, out=tmp_path / "dapo", set=keys)
