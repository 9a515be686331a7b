"""Training engines: rows of a forest, the learner over them, the probe, and fakes that conformance catches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.learning.llamas import clean_llama, random_forest
from tests.thorough import some
from torch import Tensor

import gxpo
from gxpo.base.errors import ConfigError, ModelError
from gxpo.conformance.engines import check, forest
from gxpo.forest.forest import Forest
from gxpo.learning.optimiser import Schedule
from gxpo.learning.remote import RemoteLearner, Rows
from gxpo.learning.remote.learner import unsupported
from gxpo.learning.remote.probe import check as check_probe
from gxpo.learning.remote.probe import probe
from gxpo.learning.remote.reference import TransformersEngine
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import TokenRow


# ---------------------------------------------------------------- rows
def test_a_fork_inside_an_action_is_read_where_it_stands() -> None:
    rows = [
        {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [1, 2], "turns": [{"action": [3, 4, 5]}]},
        {"schema": "gxpo.rollouts/1", "group": "g", "id": "b", "fork": {"of": "a", "turn": 0, "token": 1},
         "turns": [{"action": [6]}]},
    ]  # fmt: skip
    given_from_records = Forest.from_records(rows)
    actual = Rows.of(given_from_records, torch.arange(given_from_records.n_entries))
    assert [row.tokens.tolist() for row in actual.rows] == [[1, 2, 3, 4, 5], [1, 2, 3, 6]]
    assert [row.read.tolist() for row in actual.rows] == [[2, 3, 4], [3]]
    spelled = [int(torch.cat([r.tokens[r.read] for r in actual.rows])[i]) for i in actual.reading]
    assert spelled == given_from_records.token[given_from_records.path_token].tolist() == [3, 4, 5, 3, 6]


def test_rows_end_with_the_last_token_that_is_read() -> None:
    given_from_completions = Forest.from_completions([[1, 2]], [[[3, 4, 5], [6, 7]]], [[1.0, 0.0]])
    actual = Rows.of(given_from_completions, torch.tensor([0, 3]))
    assert [row.tokens.tolist() for row in actual.rows] == [[1, 2, 3], [1, 2, 6]]
    assert actual.tokens == 6 and actual.chunks(4) == [[0], [1]] and actual.chunks(6) == [[0, 1]]


@pytest.mark.parametrize("seed", range(4))
def test_slopes_of_a_shared_token_add_up(seed: int) -> None:
    given_random_forest = random_forest(seed)
    actual = Rows.of(given_random_forest, torch.arange(given_random_forest.n_entries))
    slope = torch.arange(1.0, given_random_forest.n_entries + 1, dtype=torch.float64)
    full_scattered = torch.cat(actual.scatter(slope))
    assert float(full_scattered.sum()) == float(slope.sum())
    warmth = [s.get("temperature", 1.0) for s in given_random_forest.sampling]
    keys = [
        (t, warmth[r])
        for t, r in zip(
            given_random_forest.path_token.tolist(), given_random_forest.path_trajectory.tolist(), strict=True
        )
    ]
    assert sum(actual.sizes) == len(set(keys))  # every stored token is read once at each temperature
    back = actual.gather(actual.scatter(torch.ones(given_random_forest.n_entries, dtype=torch.float64)))
    assert back.tolist() == [keys.count(key) for key in keys]


def test_a_truncated_support_is_refused() -> None:
    rows = [{"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [1], "turns": [{"action": [3]}],
             "sampling": {"top_k": 5}}]  # fmt: skip
    given_from_records = Forest.from_records(rows)
    with pytest.raises(ModelError, match=r"sampling\.top_k=0"):
        Rows.of(given_from_records, torch.arange(1))


# ---------------------------------------------------------------- the learner
ROW = TokenRow(torch.tensor([2, 3, 4]), torch.tensor([1, 2]), torch.ones(2, dtype=torch.float64))


def engine_and_learner(**settings: Any) -> tuple[TransformersEngine, TorchLearner]:
    model = clean_llama(vocab_size=64)
    return TransformersEngine(copy.deepcopy(model), **settings), TorchLearner(model, lr=0.01, **settings)


@pytest.mark.slow
def test_the_reference_engine_conforms() -> None:
    engine, standard = engine_and_learner()
    before = engine.fingerprint()
    for temperature in (1.0, 0.7):
        results = check(engine, standard, tolerance=1e-12, temperature=temperature)
        assert [str(r) for r in results if not r.passed] == []
        assert len(results) == 11
    assert engine.fingerprint() == before


class Blind(TransformersEngine):
    gradients = None  # type: ignore[assignment]  # an engine that shows no gradients


@pytest.mark.slow
def test_an_engine_without_gradients_is_compared_by_its_steps() -> None:
    model = clean_llama(vocab_size=64)
    engine = Blind(copy.deepcopy(model))
    results = check(engine, TorchLearner(model, lr=0.0), tolerance=1e-12)
    assert [str(r) for r in results if not r.passed] == []


class OwnEps(TransformersEngine):
    """Takes no other eps than its own, as SkyRL's FSDP and Megatron backends."""

    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        return super().step(lr, max_grad_norm)


class BlindOwnEps(OwnEps):
    gradients = None  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OwnEps, BlindOwnEps])
@pytest.mark.parametrize("eps", some([1e-8, 1e-5], [1e-5]))
def test_an_engine_whose_eps_is_fixed_is_probed_by_small_slopes(kind: type[OwnEps], eps: float) -> None:
    model = clean_llama(vocab_size=64)
    engine = kind(copy.deepcopy(model), weight_decay=0.01 if kind.gradients else 0.0)  # steps that are compared decay
    engine.eps, before = eps, engine.fingerprint()
    results = check(engine, TorchLearner(model, lr=0.0), tolerance=1e-9)
    assert [str(r) for r in results if not r.passed] == []
    actual = probe(engine, ROW)
    assert actual.fixed_eps == eps and actual.trouble(0.01) is None and engine.fingerprint() == before
    assert probe(TransformersEngine(copy.deepcopy(model)), ROW).fixed_eps is None


def test_three_steps_equal_the_learners() -> None:
    engine, standard = engine_and_learner(weight_decay=0.1)
    remote = RemoteLearner(engine, lr=0.01, schedule=Schedule("linear", total=4), tokens_per_microbatch=30)
    standard.optimiser.schedule = Schedule("linear", total=4)
    for group in engine.adamw.param_groups:  # matrices alone decay here
        group["weight_decay"] = 0.0
    decayed = [p for p in engine.model.parameters() if p.dim() >= 2]
    engine.adamw = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1},
         {"params": [p for p in engine.model.parameters() if p.dim() < 2], "weight_decay": 0.0}])  # fmt: skip
    given_forest = forest(64)
    credit = torch.linspace(-1, 1, given_forest.n_entries, dtype=torch.float64)

    def loss(x: Mapping[str, Tensor]) -> Tensor:
        return -(credit * x["logprob"]).mean() - 0.01 * x["entropy"].mean()

    for _ in range(3):
        names = ("logprob", "entropy")
        mine, theirs = (learner.step(given_forest, loss, names=names) for learner in (remote, standard))
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-12)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-10)
    after = standard.outputs(given_forest)["logprob"]
    assert torch.allclose(remote.outputs(given_forest)["logprob"], after, rtol=0, atol=1e-10)
    assert remote.meta() == {"steps": 3} and remote.optimiser.current_lr == pytest.approx(0.0025)


def test_tokens_that_are_not_active_are_not_run() -> None:
    engine, _ = engine_and_learner()
    remote, given_forest = RemoteLearner(engine, lr=0.01), forest(64)
    active = torch.zeros(given_forest.n_entries, dtype=torch.bool)
    assert remote.step(given_forest, lambda x: x["logprob"].sum(), active=active).empty
    active[:3] = True
    info = remote.step(given_forest, lambda x: x["logprob"][:3].sum(), active=active)
    assert torch.equal(info.outputs["logprob"].isfinite(), active)
    assert info.tokens_forward < 12


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    engine, _ = engine_and_learner()
    remote, given_forest, before = RemoteLearner(engine, lr=0.01), forest(64), engine.fingerprint()
    info = remote.step(given_forest, lambda x: (torch.inf * x["logprob"]).sum())
    assert info.nonfinite and engine.fingerprint() == before and remote.optimiser.steps == 0
    assert not remote.step(given_forest, lambda x: x["logprob"].sum()).nonfinite
    assert engine.fingerprint() != before


# ---------------------------------------------------------------- what engines get wrong
class Mean(TransformersEngine):
    """Takes a mean over the rows of a call."""

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        super().pull(rows, {name: [s / len(rows) for s in own_value] for name, own_value in slopes.items()})


class Dropped(TransformersEngine):
    """Leaves out the last row of a call with several."""

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        n = max(1, len(rows) - 1)
        super().pull(rows[:n], {name: own_value[:n] for name, own_value in slopes.items()})


class Padded(TransformersEngine):
    """Gives the places that are not asked for, as padding would be, the slope of the last one."""

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        wide = [TokenRow(r.tokens, torch.cat([r.read, r.read[-1:]]), r.temperature[[*range(len(r.read)), -1]])
                for r in rows]  # fmt: skip
        super().pull(
            wide, {name: [torch.cat([s, 0.1 * s[-1:]]) for s in own_value] for name, own_value in slopes.items()}
        )


class Ranks(TransformersEngine):
    """Averages over two ranks and forgets their number."""

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        super().pull(rows, {name: [s / 2 for s in own_value] for name, own_value in slopes.items()})


class Last(TransformersEngine):
    """Keeps the gradient of the last call alone."""

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        self.discard()
        super().pull(rows, slopes)


class Shifted(TransformersEngine):
    """Reads the log-prob of the token before."""

    def _outputs(self, row: TokenRow) -> dict[str, Tensor]:
        return super()._outputs(TokenRow(row.tokens, (row.read - 1).clamp(min=1), row.temperature))


class Unscaled(TransformersEngine):
    """Leaves out the temperature."""

    def _outputs(self, row: TokenRow) -> dict[str, Tensor]:
        return super()._outputs(TokenRow(row.tokens, row.read, torch.ones_like(row.temperature)))


class Clipped(TransformersEngine):
    """Reports the norm after clipping to 0.1."""

    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        return super().step(lr, max_grad_norm, eps=eps)


FAKES = {
    Mean: "probe: twice",
    Dropped: "probe: twice",
    Padded: "probe: scale",
    Ranks: "probe: scale",
    Last: "probe: apart",
    Shifted: "log-probs",
    Unscaled: "log-probs",
    Clipped: "probe: twice",
}


@pytest.mark.slow
@pytest.mark.parametrize("fake", FAKES, ids=lambda fake: fake.__name__)
def test_a_wrong_engine_is_caught(fake: type[TransformersEngine]) -> None:
    model = clean_llama(vocab_size=64)
    engine = fake(copy.deepcopy(model))
    failed = [
        r.name for r in check(engine, TorchLearner(model, lr=0.0), tolerance=1e-9, temperature=0.7) if not r.passed
    ]
    assert FAKES[fake] in failed


@pytest.mark.parametrize("fake", [Ranks, Mean, Last])
def test_the_probe_stops_a_run(fake: type[TransformersEngine]) -> None:
    with pytest.raises(ModelError, match="instead of"):
        check_probe(fake(clean_llama(vocab_size=64)), ROW)


@pytest.mark.slow
@pytest.mark.parametrize(("fake", "figure"), FAKES.items(), ids=lambda x: getattr(x, "__name__", x))
def test_a_wrong_engine_whose_eps_is_fixed_is_caught(fake: type[TransformersEngine], figure: str) -> None:
    model = clean_llama(vocab_size=64)

    class Fixed(OwnEps, fake):  # type: ignore[misc, valid-type]
        pass

    standard = TorchLearner(model, lr=0.0)
    failed = [
        r.name for r in check(Fixed(copy.deepcopy(model)), standard, tolerance=1e-9, temperature=0.7) if not r.passed
    ]
    assert figure in failed


def test_a_wrong_eps_hides_a_scale_that_only_the_norm_shows() -> None:
    """A gradient of half the size and twice the eps look alike to the steps: their scale is known as far as eps is."""
    model = clean_llama(vocab_size=64)

    class Both(Ranks):
        def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
            return super().step(lr, max_grad_norm, eps=self.eps * 2)

    engine = Both(copy.deepcopy(model))
    assert check_probe(engine, ROW).scale == pytest.approx(1.0, rel=5e-3)
    failed = [r.name for r in check(engine, TorchLearner(model, lr=0.0), tolerance=1e-9) if not r.passed]
    assert "probe: norm" in failed and "probe: scale" not in failed

    class Told(OwnEps):  # its steps take 1e-8, whatever it says
        def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
            return TransformersEngine.step(self, lr, max_grad_norm, eps=1e-8)

    engine = Told(copy.deepcopy(model))
    engine.eps = 4e-8
    with pytest.raises(ModelError, match=r"scale 0\.25.* if the eps of its AdamW is 4e-08"):
        check_probe(engine, ROW)


def test_the_probe_finds_the_scale_and_puts_the_weights_back() -> None:
    engine = Ranks(clean_llama(vocab_size=64))
    row = TokenRow(torch.tensor([2, 3, 4]), torch.tensor([2]), torch.ones(1, dtype=torch.float64))
    before = engine.fingerprint()
    actual = probe(engine, row)
    assert actual.scale == pytest.approx(0.5, rel=5e-3)
    assert (actual.twice, actual.apart, actual.cancelled) == pytest.approx((2.0, 2.0, 0.0))
    assert engine.fingerprint() == before


# ---------------------------------------------------------------- what can't be had
ALL = frozenset({"logprob", "entropy", "reference", "temperature", "save"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("grpo", None),
        ("gspo", None),
        ("gigpo", None),
        ("gae", "value head"),
        ("trpo", "update"),
        ("sfpo", "update"),
    ],
)
def test_methods_that_need_the_weights_here_are_named(name: str, why: str | None) -> None:
    actual = unsupported(gxpo.method(name), ALL)
    assert actual is None if why is None else actual is not None and why in actual


def test_what_needs_the_weights_says_so() -> None:
    engine, _ = engine_and_learner()
    remote = RemoteLearner(engine, lr=0.01)
    with pytest.raises(ConfigError, match=r"cluster\.backend"):
        remote.snapshot()
    with pytest.raises(ModelError, match="value"):
        remote.outputs(forest(64), ("value",))
    with pytest.raises(ModelError, match="no reference"):
        remote.outputs(forest(64), policy="reference")


def test_saved_states_go_on_alike(tmp_path: Path) -> None:
    engine, _ = engine_and_learner()
    remote, given_forest = RemoteLearner(engine, lr=0.01), forest(64)

    def loss(x: Mapping[str, Tensor]) -> Tensor:
        return x["logprob"].square().mean()

    remote.step(given_forest, loss)
    engine.save(tmp_path / "saved")
    remote.step(given_forest, loss)
    after = engine.fingerprint()
    engine.load(tmp_path / "saved")
    assert engine.fingerprint() != after
    remote.step(given_forest, loss)
    assert engine.fingerprint() == after
