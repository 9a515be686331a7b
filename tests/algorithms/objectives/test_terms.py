"""What a term returns, and what it asks of the policy."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest

import gxpo
from gxpo.algorithms.objectives import PolicyGradient, TermPart, evaluate
from gxpo.parts.protocols import Output


@dataclass(frozen=True)
class Scalar:
    """A term of the interface before: a scalar, and figures apart."""

    couples = "token"

    def __call__(self, forest, policy, credit, weight, signals, step):
        return 2.0 * policy.logprob.sum() + step

    def active(self, forest, credit, weight, signals=None):
        return forest.path_trainable

    def metrics(self, forest, policy, credit, weight, signals=None):
        return {"largest": float(policy.logprob.max()), "of": signals["of"]}


@dataclass(frozen=True)
class Pair(TermPart):
    def __call__(self, forest, policy, credit, weight, signals, step):
        return policy.logprob.sum(), {"count": 5.0}

    def active(self, forest, credit, weight, signals=None):
        return forest.path_trainable


def test_a_term_gives_value_and_figures_once(toy) -> None:
    args = (toy.forest, toy.policy(), toy.credit, toy.weight, {"of": 3.0}, 4)
    value, figures = evaluate(Pair(), *args)
    assert float(value.detach()) == pytest.approx(-4.0) and figures == {"count": 5.0}
    value, figures = evaluate(Scalar(), *args)  # logprob -.2 -1.1 -2.4 -.1 -.2
    assert float(value.detach()) == pytest.approx(-4.0) and figures == pytest.approx({"largest": -0.1, "of": 3.0})
    value, figures = (Pair() + Scalar() + Pair())(*args)
    assert float(value.detach()) == pytest.approx(-12.0)
    assert figures == pytest.approx({"count": 5.0, "largest": -0.1, "of": 3.0, "count_2": 5.0})


def test_a_method_takes_terms_of_both_kinds() -> None:
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3]]], [1.0, 0.0], logprobs=[[[-1.0], [-2.0]]])
    m = gxpo.method("grpo", {"objective": Pair, "objective.add.old": Scalar})
    policy = gxpo.PolicyTokens(forest.path_behaviour_logprob, forest.path_behaviour_logprob)
    output = m.loss(forest, policy, signals={"of": 7.0}, step=2)
    assert float(output.value) == -7.0
    assert output.metrics == {"loss": -7.0, "count": 5.0, "largest": -1.0, "of": 7.0}


def test_figures_of_a_loss_carry_no_gradient(toy) -> None:
    _, figures = PolicyGradient()(toy.forest, toy.policy(), toy.credit, toy.weight, {}, 0)
    assert all(type(x) is float for x in figures.values())


@pytest.mark.parametrize(
    ("output", "name", "kind", "at", "normed"),
    [
        (Output("logprob"), "logprob", "logprob", "", True),
        (Output("logprob", 3), "logprob@3", "logprob", "3", True),
        (Output("entropy", 0.25, normed=False), "unnormed_entropy@0.25", "entropy", "0.25", False),
        (Output("value", "low"), "value@low", "value", "low", True),
        (Output("divergence", 0.5), "divergence@0.5", "divergence", "0.5", True),
        (Output("likeliest", 20), "likeliest@20", "likeliest", "20", True),
    ],
)
def test_a_request_is_its_name(output: Output, name: str, kind: str, at: str, normed: bool) -> None:
    assert output == name and {name: 1}[output] == 1
    for read in (output, Output(name), pickle.loads(pickle.dumps(output)), copy.deepcopy(output)):
        assert (read, read.kind, read.at, read.normed) == (name, kind, at, normed)


def test_what_a_method_reads_is_typed() -> None:
    assert [o.kind for o in gxpo.method("bupo").outputs] == ["logprob", "logprob"]
    assert gxpo.method("bupo").outputs[1].at == "0.15"
    assert gxpo.method("hiper").value_heads == ("value@high", "value@low", "value@switch")
