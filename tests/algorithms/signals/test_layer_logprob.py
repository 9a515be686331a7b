"""Log-probs of an inner layer's policy at the start of the step."""

import pytest
import torch
from tests.learning.llamas import clean_llama, random_forest

import gxpo
from gxpo.algorithms.signals import Signals, SignalTools
from gxpo.algorithms.signals.policy_outputs import layer_logprob
from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

LayerLogprob = kind_of(layer_logprob)


class Counting(TorchLearner):
    calls = 0

    def outputs(self, *args, **settings):
        Counting.calls += 1
        return super().outputs(*args, **settings)


def test_it_is_the_layers_own_as_long_as_it_is_asked_for():
    forest, learner = random_forest(1), Counting(clean_llama(num_hidden_layers=4), lr=0.0)
    wanted = learner.outputs(forest, ("logprob@2",))["logprob@2"]
    Counting.calls = 0
    for part in (LayerLogprob(layer=2, steps=3), LayerLogprob(layer=0.5, steps=3)):
        (name,) = part.provides
        for step, known in ((1, True), (3, True), (4, False)):
            tools = SignalTools(learner, lambda ids: "", 2, step, 0)
            found = part.compute(forest, Signals.of(forest), tools)[name]
            assert torch.equal(found, wanted) if known else bool(found.isnan().all())
    assert Counting.calls == 4  # nothing is computed once it is over
    assert LayerLogprob(layer=2).provides == ("logprob@2",) and LayerLogprob(layer=0.5).provides == ("logprob@0.5",)
    tools = SignalTools(learner, lambda ids: "", 2, 10**6, 0)
    assert torch.equal(LayerLogprob(layer=2).compute(forest, Signals.of(forest), tools)["logprob@2"], wanted)


def test_layers_that_are_not_there():
    for wrong in ({"layer": 0}, {"layer": 1.5}, {"layer": 0.0}, {"steps": -1}):
        with pytest.raises(ConfigError, match="layer"):
            LayerLogprob(**wrong)  # type: ignore[arg-type]
    forest, learner = random_forest(1), TorchLearner(clean_llama(), lr=0.0)
    with pytest.raises(ModelError, match="has layers 1 to 2"):
        LayerLogprob(layer=3).compute(forest, Signals.of(forest), SignalTools(learner, lambda ids: "", 2, 1, 0))


@pytest.mark.parametrize("normed", [True, False])
def test_the_objective_reads_what_the_signal_gives(normed, tmp_path):
    keys = {"objective.normed": normed, "signal.layer_logprob.normed": normed, "signal.layer_logprob.steps": 1}
    m = gxpo.method("bupo", keys)
    assert m.signals["layer_logprob"].provides == m.terms["policy"].needs
    run = gxpo.train("tiny:cold", "arithmetic", m, 1, lambda tokens: float(len(tokens)), out=tmp_path / "run",
                     set={"tasks.per_step": 2, "sampling.max_new_tokens": 4, "eval.tasks": 2})  # fmt: skip
    assert [row["inner_layer"] for row in run.metrics] == [1.0]
