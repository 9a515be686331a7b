"""A kernel is chosen by the seconds that it takes, as far as they can be told apart."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.models.decoder.choices import PURPOSES, Trial, base_of, check, class_of, kernel, time_kernels


class Work:
    """Time that passes only in pieces of work: by kernel, the seconds of each try; the last is that of all others."""

    def __init__(self, **seconds):
        self.now, self.tries = 0.0, dict.fromkeys(seconds, 0)
        self.runs = {name: [self.piece(name, each)] for name, each in seconds.items()}

    def piece(self, name, seconds):
        *first, last = seconds
        left = iter(first)

        def run():
            self.tries[name] += 1
            self.now += next(left, last)

        return run

    def trial(self, purpose="products"):
        return time_kernels(purpose, self.runs, clock=lambda: self.now)


@pytest.mark.parametrize(
    ("native", "float32", "choice"),
    [(1e-3, 3e-3, "native"), (3e-3, 1e-3, "float32"), (1e-3, 1e-3, "float32"), (1e-3, 1.05e-3, "float32")],
)
def test_the_faster_is_chosen_and_the_first_if_they_are_close(native, float32, choice):
    trial = Work(float32=[float32], native=[native]).trial()
    assert trial.choice == choice and str(trial).startswith(choice)


def test_of_three_kernels_the_fastest_is_chosen():
    trial = Trial({"a": 3.0, "b": 2.0, "c": 1.0}, gain=1.1)
    assert trial.choice == "c" and str(trial) == "c (3 times the speed of a, 2 times the speed of b)"


def test_a_try_that_something_else_disturbed_does_not_count():
    trial = Work(float32=[4e-3], native=[6e-3, 6e-3, 1e-3]).trial()
    assert trial.choice == "native" and trial.seconds == pytest.approx({"float32": 4e-3, "native": 1e-3})


def test_trials_end_where_one_of_them_is_very_slow():
    work = Work(float32=[1e-3], native=[1.0])
    assert work.trial().choice == "float32" and work.tries == {"float32": 2, "native": 2}


def test_close_kernels_are_tried_until_the_time_is_up():
    # 0.008 s a round: 0.1 s end within the thirteenth
    work = Work(plain=[0.004], other=[0.004])
    work.trial()
    assert work.tries["plain"] == 13
    clear = Work(plain=[0.0001], other=[0.0002])
    clear.trial()
    assert clear.tries["plain"] == 5


def test_sizes_are_measured_by_class():
    assert [class_of(n) for n in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]
    choices = {"sampling prompts 64": "copied", "attention": "float32"}
    assert kernel(choices, "sampling prompts", 33) == "copied"
    assert kernel(choices, "sampling prompts", 32) == kernel(choices, "sampling prompts", 65) == "shared"
    assert kernel(choices, "attention") == "float32" and kernel({}, "attention gradient") == "float32"
    assert [base_of(x) for x in ("sampling prompts 64", "attention gradient")] == [
        "sampling prompts", "attention gradient",
    ]  # fmt: skip


def test_every_purpose_falls_back_on_its_first_kernel():
    assert all(kernel({}, purpose) == entry.kernels[0] for purpose, entry in PURPOSES.items())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"atention": "native"}, "no purpose 'atention'"),
        ({"products": "native"}, "give learner.products"),
        ({"sampling prompts": "copied"}, "sampling prompts SIZE"),
        ({"attention": "fast"}, "'attention' is native or float32, not 'fast'"),
    ],
)
def test_unknown_choices_are_refused(choices, message):
    with pytest.raises(ConfigError, match=message):
        check(choices)
    check({"attention gradient": "native", "sampling prompts 32": "copied"})
