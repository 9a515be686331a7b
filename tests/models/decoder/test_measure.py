"""The dtype of products is the one that is faster, as far as that can be told apart."""

import pytest
import torch
from tests.learning.llamas import small_llama

from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder import measure
from gxpo.models.decoder.forward import Decoder


class Clock:
    """Time that passes only in products: by dtype, the seconds of each try of one; the last is that of all others."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.tries, self.seconds = 0.0, {"native": 0, "float32": 0}, seconds
        monkeypatch.setattr(measure, "_product", self.product)

    def product(self, w, rows, dtype, update, laid_out):
        name = "float32" if dtype == torch.float32 else "native"
        *tries, last = self.seconds[name]
        left = iter(tries)

        def run():
            self.tries[name] += 1
            self.now += next(left, last)

        return run

    def __call__(self):
        return self.now


def trial(clock, **keys):
    decoder = Decoder(small_llama().to(torch.bfloat16))
    return measure.products(decoder, None, 64, update=True, clock=clock, **keys)


@pytest.mark.parametrize(
    ("native", "float32", "choice"),
    [(1e-3, 3e-3, "native"), (3e-3, 1e-3, "float32"), (1e-3, 1e-3, "float32"), (1e-3, 1.05e-3, "float32")],
)
def test_the_faster_is_chosen_and_float32_if_they_are_close(monkeypatch, native, float32, choice):
    found = trial(Clock(monkeypatch, native=[native], float32=[float32]))
    assert found.choice == choice and str(found).startswith(choice)


def test_a_try_that_something_else_disturbed_does_not_count(monkeypatch):
    found = trial(Clock(monkeypatch, native=[6e-3, 6e-3, 1e-3], float32=[4e-3]))
    assert found.choice == "native" and found.float32 / found.native == pytest.approx(4)


def test_trials_end_where_one_of_the_two_is_very_slow(monkeypatch):
    clock = Clock(monkeypatch, native=[1.0], float32=[1e-3])
    assert trial(clock).choice == "float32"
    assert clock.tries["native"] == 2 * 7  # twice each of a layer's matrices


def test_real_products_are_timed_for_updates_and_for_sampling():
    decoder = Decoder(small_llama().to(torch.bfloat16))
    for update in (True, False):
        found = measure.products(decoder, None, 4, update=update)
        assert found is not None and found.native > 0 and found.float32 > 0
    assert all(p.grad is None for p in decoder.model.parameters())


def test_there_is_nothing_to_choose_for_a_model_in_float32():
    assert measure.products(Decoder(small_llama()), None, 4, update=True) is None


def test_under_adapters_on_every_matrix_the_head_is_what_is_left():
    learner = TorchLearner(small_llama(), lr=1e-3, dtype="bfloat16", lora=LoraSettings(rank=2))
    decoder = learner._readout.decoder
    assert measure.products(decoder, None, 4, update=True) is None
    assert learner.products_trial() is not None


def test_everything_of_a_learner_multiplies_as_it_is_told():
    learner = TorchLearner(small_llama(), lr=1e-3, dtype="bfloat16", reference=True, products="float32")
    learner.use_products("native")
    both = (learner._readout.decoder, learner._reference.decoder, learner.second_learner(lr=1e-3)._readout.decoder)
    assert [decoder.product for decoder in both] == [torch.bfloat16] * 3
