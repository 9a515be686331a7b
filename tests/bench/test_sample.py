"""Both sides of the sampling rows draw what the row says; no clock is looked at."""

import pytest
import torch

from gxpo.bench import sample
from gxpo.bench.sample import Work
from gxpo.sampling.engines import decode

WORK = vars(Work("tiny", rows=4, length=5, group=2, new=6))


@pytest.fixture
def path(folder):
    return str(folder / "tiny")


@pytest.mark.parametrize("target", [sample.engine, sample.bare_loop, sample.generate, sample.second_turn])
def test_every_side_draws_all_tokens_of_all_rows(path, target):
    once = target(path, "float32", WORK)
    for _ in range(2):
        actual = once()
        assert actual["tokens"] == 4 * 6 and actual["tokens_per_s"] > 0


def test_static_cache_loop_draws_all_but_the_first_token(path):
    once = sample.static_loop(path, "float32", WORK, compiled=False)
    for _ in range(2):
        actual = once()
        assert actual["tokens"] == 4 * 5 and actual["compile_s"] > 0


@pytest.mark.parametrize("group", [1, 2])
def test_the_bare_loop_draws_from_the_model(path, group, monkeypatch):
    """With uniforms of 0 and nearly 1 it takes the first and the last token of the distribution's support."""
    work = vars(Work("tiny", rows=2, length=5, group=group, new=3))
    size = sample._model(path, "float32").config.vocab_size
    joined, real = [], torch.cat

    def cat(tensors, dim):
        joined.append(real(tensors, dim))
        return joined[-1]

    for value, expected in ((0.0, 0), (1 - 1e-7, size - 1)):
        with monkeypatch.context() as patch:
            once = sample.bare_loop(path, "float32", work)
            patch.setattr(torch, "rand", lambda rows, one, value=value: torch.full((rows, one), value))
            patch.setattr(sample, "_speed", lambda tokens, seconds: {})
            patch.setattr(torch, "cat", lambda tensors, dim=0, **how: cat(tensors, dim))
            once()
        assert joined[-1].tolist() == [[expected] * 3] * 2


def test_compaction_off_draws_the_same_number_of_tokens(path, monkeypatch):
    monkeypatch.setattr(decode, "KEEP_UNTIL", decode.KEEP_UNTIL)  # put back afterwards
    work = vars(Work("tiny", rows=8, length=5, group=8, new=24))
    on = sample.engine(path, "float32", work, stops=True)()
    off = sample.engine(path, "float32", work, stops=True, compaction=False)()
    assert decode.KEEP_UNTIL == 0
    assert on["tokens"] == off["tokens"] < 8 * 24


def test_a_second_turn_goes_on_from_what_was_kept(path, monkeypatch):
    """Of each context only the action's last token and the 3 that were read between go through."""
    engines = []
    engine = sample._engine
    monkeypatch.setattr(sample, "_engine", lambda *a: engines.append(found := engine(*a)) or found)
    for keep in (True, False):
        sample.second_turn(path, "float32", WORK, keep=keep, n_between=3)()
    (kept_value, *_), (again, *_) = engines
    first = 2 * 5  # two prompts of 5
    assert kept_value.prefilled_tokens == first + 4 * (1 + 3) and kept_value.reused_tokens == 4 * (5 + 6 - 1)
    assert again.prefilled_tokens == first + 4 * (5 + 6 + 3) and again.reused_tokens == 0


def test_prompts_have_the_given_length_and_sharing_a_baseline(path):
    assert [len(p) for p in sample._prompts(path, 3, 7)] == [7, 7, 7]
    (shared,) = [c for c in sample.switches("tiny", "f") if c.name == "prefix_sharing/tiny"]
    assert shared.candidate.arguments["work"]["group"] == 8 and shared.baseline.arguments["work"]["group"] == 1
    same = ("rows", "length", "new")
    assert all(shared.candidate.arguments["work"][k] == shared.baseline.arguments["work"][k] for k in same)


def test_rows_have_names_of_their_own():
    for quick in (False, True):
        names = [case.name for case in sample.cases("folder", quick)]
        assert len(set(names)) == len(names)
    assert set(sample.GENERATE) <= {work.name for work in sample.FULL}
