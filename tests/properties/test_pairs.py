"""Every way of giving credit with every objective: two steps, or a refusal that says why. `GXPO_ALL_PAIRS=1` tries all
of them (some minutes); without it each is in at least one pair, drawn with a fixed seed."""

import os
import random
from collections import Counter

import pytest
import torch
from tests.battery import battery, made_up
from tests.learning.llamas import clean_llama

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.learning.torch import TorchLearner
from gxpo.methods import METHODS
from gxpo.training.bound_learner import BoundLearner

ALL = bool(os.environ.get("GXPO_ALL_PAIRS"))


def distinct(*stages: str) -> list[str]:
    """Methods, the first of those that state the same in these stages."""
    actual: dict[str, str] = {}
    for name in sorted(METHODS):
        own_values = {k: v for k, v in METHODS[name].keys.items() if k.split(".")[0] in stages}
        actual.setdefault(repr(sorted((k, repr(v)) for k, v in own_values.items())), name)
    return sorted(actual.values())


HEADS = sorted({head for name in METHODS for head in gxpo.method(name).value_heads})
CREDITS, OBJECTIVES = distinct("credit", "weight", "signal"), distinct("objective")


def pairs() -> list[tuple[str, str]]:
    if ALL:
        return [(c, o) for c in CREDITS for o in OBJECTIVES]
    draw = random.Random(0)
    return sorted({(c, draw.choice(OBJECTIVES)) for c in CREDITS} | {(draw.choice(CREDITS), o) for o in OBJECTIVES})


def composed(credit: str, objective: str) -> gxpo.Method:
    """Credit, weights and signals of one method, the objective of another with the signals that it reads, on rollouts
    and in single updates of the base."""
    own_method, other = METHODS[credit].keys, METHODS[objective].keys
    keys = {k: v for k, v in own_method.items() if k.split(".")[0] in ("credit", "weight", "signal")}
    keys |= {k: v for k, v in other.items() if k.split(".")[0] in ("objective", "signal")}
    return gxpo.method("grpo", keys).fill(horizon=12.0, max_length=12, total_steps=4)


@pytest.fixture(scope="module")
def learner() -> TorchLearner:
    return TorchLearner(clean_llama(vocab_size=64), lr=1e-3, weight_decay=0.0, value_heads=HEADS, reference=True)


def two_steps(m: gxpo.Method, own: TorchLearner) -> str:
    """ "trained", or "still" where nothing had any credit; raises what is wrong."""
    before = own.snapshot()
    for step in (1, 2):
        forest = battery(3 + step)
        signals = made_up(m, forest, step)
        credit = m.advantages(forest, signals, step)
        signals = Signals.of(forest, {**signals, **m.targets(forest, signals, step)}, m.axes)
        weight = m.token_weights(forest, credit, signals, step)
        bound = BoundLearner(own, m, forest, signals, step)
        infos = m.update.run(forest, credit, weight, bound)
        m.adjust({"step": step, "trajectories": forest.n_trajectories, **(bound.metrics[0] if bound.metrics else {})})
        for info, actual in zip(infos, bound.metrics, strict=False):
            assert all(x == x and abs(x) != float("inf") for x in (info.loss, info.grad_norm, *actual.values())), actual
    after = own.snapshot()
    assert all(bool(p.isfinite().all()) for p in after.values())
    moved = any(not torch.equal(before[k], v) for k, v in after.items())
    own.restore(before)
    return "trained" if moved else "still"


@pytest.mark.slow
def test_every_pair_trains_or_is_refused_with_a_reason(learner, capsys):
    outcomes: Counter[str] = Counter()
    refused, wrong = {}, {}
    for credit, objective in pairs():
        start = learner.snapshot()
        try:
            what = two_steps(composed(credit, objective), learner)
            # no turn of these rollouts is a numbered call, so none has others to compare with; and none was logged
            of_others = METHODS[credit].keys.get("credit.origin") == "logged"
            if what == "still" and ("step_info.call" in METHODS[credit].keys.get("credit.group_by", ()) or of_others):
                what = "alone"
        except GxpoError as error:
            what, refused[credit, objective] = "refused", str(error)
        except Exception as error:  # whatever else is raised is what this test looks for
            what, wrong[credit, objective] = "wrong", f"{type(error).__name__}: {error}"
            learner.restore(start)
        outcomes[what] += 1
    with capsys.disabled():
        if ALL:
            print(f"\n{len(CREDITS)} credits x {len(OBJECTIVES)} objectives: {dict(outcomes)}")
            for reason, n in Counter(refused.values()).most_common():
                print(f"  refused {n}: {reason}")
    assert not wrong
    assert all(reason and "\n" not in reason for reason in refused.values())
    # credit has nothing to say to an objective of outcomes, so these pairs can't but be refused
    of_outcomes = sum("reads outcomes, not advantages" in reason for reason in refused.values())
    assert outcomes["still"] == 0 and outcomes["trained"] > 0.75 * (sum(outcomes.values()) - of_outcomes)
