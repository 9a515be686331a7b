"""What updates and sampling choose between is timed on synthetic layers, where there is something to choose."""

import pytest
import torch
from tests.learning.llamas import small_llama

from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder import measure
from gxpo.models.decoder.choices import PURPOSES, Sizes, base_of
from gxpo.models.decoder.forward import Decoder
from gxpo.models.decoder.sampling import map_of, packing_works
from gxpo.sampling.engines.torch import TorchEngine

SIZES = Sizes(prompt=20, action=6, group=3, samples=6)
UPDATE = ["products", "update weights", "attention", "attention gradient"]


@pytest.fixture(autouse=True)
def two_tries(monkeypatch):
    monkeypatch.setattr("gxpo.models.decoder.choices.SECONDS", 0.0)


def test_kernels_of_an_update_are_timed_for_16_bits():
    decoder = Decoder(small_llama().to(torch.bfloat16))
    trials = dict(measure.update_trials(decoder, None, 4, SIZES, {}))
    assert list(trials) == UPDATE
    for purpose, trial in trials.items():
        assert tuple(trial.seconds) == PURPOSES[purpose].kernels and min(trial.seconds.values()) > 0
    assert all(p.grad is None for p in decoder.model.parameters())
    # of 32 bits: no dtype is chosen
    assert list(dict(measure.update_trials(Decoder(small_llama()), None, 4, SIZES, {}))) == ["update weights"]


def test_kernels_of_sampling_are_timed_by_class_of_prompt():
    trials = dict(TorchEngine(small_llama().to(torch.bfloat16), stop_ids=[]).trials(SIZES, {}))
    assert [x for x in trials if x != "sampling weights"] == [
        "sampling products", "sampling prompts 16", "sampling prompts 32",
    ]  # fmt: skip
    for purpose, trial in trials.items():
        # plain products would round the scores of 16 bits
        assert tuple(trial.seconds) == tuple(x for x in PURPOSES[base_of(purpose)].kernels if "matmul" not in x)
    trials = dict(TorchEngine(small_llama(), stop_ids=[]).trials(SIZES, {}))
    assert tuple(trials["sampling prompts 32"].seconds) == ("shared", "copied", "shared matmul", "copied matmul")


def test_what_is_chosen_already_is_not_timed():
    decoder = Decoder(small_llama().to(torch.bfloat16))
    chosen = {"products": "native", "update weights": "joined", "attention": "native"}
    assert list(dict(measure.update_trials(decoder, None, 4, SIZES, chosen))) == ["attention gradient"]


def test_under_adapters_on_every_matrix_the_head_is_what_is_left():
    learner = TorchLearner(small_llama(), lr=1e-3, dtype="bfloat16", lora=LoraSettings(rank=2))
    decoder = learner._readout.decoder
    assert not {"products", "update weights"} & set(dict(measure.update_trials(decoder, None, 4, SIZES, {})))
    assert "products" in dict(learner.trials(SIZES, {}))


def test_everything_of_a_learner_uses_what_was_chosen():
    learner = TorchLearner(small_llama(), lr=1e-3, dtype="bfloat16", reference=True, products="float32")
    learner.use({"products": "native", "attention": "float32"})
    both = (learner._readout.decoder, learner._reference.decoder, learner.second_learner(lr=1e-3)._readout.decoder)
    assert [decoder.product for decoder in both] == [torch.bfloat16] * 3
    assert [decoder.choices for decoder in both] == [{"attention": "float32"} | {"products": "native"}] * 3


def test_what_was_not_measured_is_multiplied_in_float32():
    assert Decoder(small_llama().to(torch.bfloat16)).product == torch.float32
    assert Decoder(small_llama().double()).product == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_map_gives_the_same_products_however_it_is_held(dtype):
    # 2 x 3 times 3 x 2: [1 2 3] times columns [1 0 1] and [0 2 0] is 4 and 4, [0 1 0] times them 0 and 2
    x, w = torch.tensor([[1.0, 2, 3], [0, 1, 0]], dtype=dtype), torch.tensor([[1.0, 0, 1], [0, 2, 0]], dtype=dtype)
    for laid_out in (False, packing_works(dtype)):
        times_w = map_of(w, 2, laid_out)
        assert times_w(x).tolist() == [[4, 4], [0, 2]]
        assert times_w(x, torch.ones(2, 2, dtype=dtype)).tolist() == [[5, 5], [1, 3]]


def test_a_build_without_the_operation_holds_weights_as_they_are(monkeypatch):
    packing_works.cache_clear()
    monkeypatch.setattr("gxpo.models.decoder.sampling.map_of", lambda *_: (_ for _ in ()).throw(AttributeError()))
    assert not packing_works(torch.float32)
    packing_works.cache_clear()
