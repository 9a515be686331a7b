"""Choices between kernels: which of several ways of computing the same thing is used, by measurement on this machine.

`PURPOSES` is the table: for each purpose its kernels. `time_kernels` runs them on matrices of the run's own sizes for
some tenths of a second, `Trial.choice` is the fastest. Every purpose is measured once on a machine for a model and a
class of sizes, before a run's first step (`gxpo.training.kernel_store`); the choices stand in config.yaml
(`learner.choices`, `learner.products`, `sampling.products`), and a resumed run uses them. What was not measured has its
first kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gxpo.base.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Purpose:
    """Kernels of a purpose, the first of which is used where nothing was measured.

    gain   how many times as fast as the first another one has to be
    sizes  True: measured for each class of sizes, whose highest number is behind the name ("prompts 64")
    """

    kernels: tuple[str, ...]
    gain: float = 1.0
    sizes: bool = False


# the first of two dtypes is the one that rounds less, or the one whose results need fewer conversions
PURPOSES: dict[str, Purpose] = {
    "products": Purpose(("float32", "native"), gain=1.1),  # matrix products of an update: `learner.products`
    # maps of the same input one by one, or by copies of their weights one above the other in a single product
    "update weights": Purpose(("apart", "joined"), gain=1.02),
    "attention": Purpose(("native", "float32"), gain=1.1),  # of an update, forward
    "attention gradient": Purpose(("float32", "native"), gain=1.1),
    "row attention": Purpose(("dense", "flex"), gain=1.1),  # masks of packed rows of transformers' models, on GPUs
    "head": Purpose(("whole", "blocks"), gain=1.1),  # log-probs from all logits of a token, or by parts of them
    "sampling products": Purpose(("float32", "native"), gain=1.1),  # `sampling.products`
    # as torch holds them, or in the order in which oneDNN reads
    "sampling weights": Purpose(("plain", "laid out"), gain=1.1),
    # keys of a prompt once or for every sample; attention to a sample's tokens by the fused kernel or by products
    "sampling prompts": Purpose(("shared", "copied", "shared matmul", "copied matmul"), sizes=True),
}
KEYS = {"products": "learner.products", "sampling products": "sampling.products"}  # choices with a key of their own
LEAST_CLASS = 16  # the smallest class of sizes

TRIES = 5  # of each kernel; more where two are close
SECONDS = 0.1  # after which two tries are enough
CLEAR = 1.5  # ratio of two kernels that more tries would not turn round
Runs = Mapping[str, Sequence[Callable[[], object]]]  # by kernel: pieces of the same work


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run's step: tokens of a prompt and of an action, samples of a group and of a step."""

    prompt: int = 64
    action: int = 64
    group: int = 8
    samples: int = 64


@dataclass(frozen=True)
class Trial:
    """Seconds of the same work by each kernel of a purpose, in the order of its table."""

    seconds: Mapping[str, float]
    gain: float = 1.0

    @property
    def choice(self) -> str:
        first, *other_names = self.seconds
        fastest = min(other_names, key=lambda name: self.seconds[name], default=first)
        return fastest if self.gain * self.seconds[fastest] < self.seconds[first] else first

    def __str__(self) -> str:
        seconds = {name: s for name, s in self.seconds.items() if name != self.choice}
        speeds = [f"{s / self.seconds[self.choice]:.2g} times the speed of {name}" for name, s in seconds.items()]
        return f"{self.choice} ({', '.join(speeds)})"


def time_kernels(purpose: str, runs: Runs, *, clock: Callable[[], float] = time.perf_counter) -> Trial:
    """Time the kernels of a purpose in turn, some tenths of a second, except where one is very slow."""
    # the best time of every piece by itself: other load on the machine then disturbs only a few of them
    best = {name: [float("inf")] * len(pieces) for name, pieces in runs.items()}
    start_time, tries = clock(), 0
    # at least twice: the first run also pays for touching the memory
    while tries < 2 or (clock() - start_time < SECONDS and (tries < TRIES or not _is_clear(best))):
        for name, pieces in runs.items():
            for i, run in enumerate(pieces):
                start = clock()
                run()
                best[name][i] = min(best[name][i], clock() - start)
        tries += 1
    return Trial({name: sum(each) for name, each in best.items()}, PURPOSES[base_of(purpose)].gain)


def _is_clear(best: Mapping[str, Sequence[float]]) -> bool:
    seconds = [sum(each) for each in best.values()]
    return max(seconds) > CLEAR * min(seconds)


def class_of(size: int) -> int:
    """Class of a size: the power of two that is not below it."""
    return max(LEAST_CLASS, 1 << (max(size, 1) - 1).bit_length())


def base_of(purpose: str) -> str:
    """Purpose in the table, of one that may end in a class of sizes."""
    name, _, size = purpose.rpartition(" ")
    return name if size.isdecimal() and PURPOSES.get(name, Purpose(())).sizes else purpose


def kernel(choices: Mapping[str, str], purpose: str, size: int | None = None) -> str:
    """Kernel that was chosen for a purpose, and for the class of this size."""
    first = PURPOSES[purpose].kernels[0]
    return choices.get(purpose if size is None else f"{purpose} {class_of(size)}", first)


def check(choices: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a purpose or kernel that is not in the table."""
    for purpose, name in choices.items():
        entry = PURPOSES.get(base_of(purpose))
        if entry is None or purpose in KEYS or (entry.sizes and base_of(purpose) == purpose):
            names = [n + (" SIZE" if p.sizes else "") for n, p in PURPOSES.items() if n not in KEYS]
            hint = f"give {KEYS[purpose]}" if purpose in KEYS else f"it has {', '.join(names)}"
            raise ConfigError(f"learner.choices has no purpose {purpose!r}{did_you_mean(purpose, names)}: {hint}")
        if name not in entry.kernels:
            raise ConfigError(f"learner.choices: {purpose!r} is {' or '.join(entry.kernels)}, not {name!r}")
