"""Choices between kernels that are stored for a machine: measured once a case, damaged files measured again."""

from types import SimpleNamespace

import pytest
import torch

from gxpo.models.decoder.choices import Sizes
from gxpo.training import kernel_store

MODEL = SimpleNamespace(hidden_size=64, vocab_size=100)
LINES = {"head": ["blocks", "blocks (2 times the speed of whole)"]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GXPO_CACHE", str(tmp_path))
    return tmp_path


def measuring(calls):
    def measure():
        calls.append(1)
        return LINES

    return measure


def test_a_case_is_measured_once_and_recalled(cache):
    calls = []
    case = kernel_store.case_of(MODEL, torch.float32, Sizes())
    for _ in range(2):
        lines, path = kernel_store.recall(case, measuring(calls))
        assert lines == LINES and path.parent == cache / "kernels"
    assert len(calls) == 1


def test_sizes_of_one_class_are_one_case_and_threads_another(monkeypatch):
    case = kernel_store.case_of(MODEL, torch.float32, Sizes(prompt=33, samples=64))
    assert case == kernel_store.case_of(MODEL, torch.float32, Sizes(prompt=64, samples=64))
    assert case != kernel_store.case_of(MODEL, torch.float32, Sizes(prompt=65, samples=64))
    assert case != kernel_store.case_of(MODEL, torch.bfloat16, Sizes(prompt=33, samples=64))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert case != kernel_store.case_of(MODEL, torch.float32, Sizes(prompt=33, samples=64))


def test_a_fact_cannot_take_the_place_of_the_table_of_kernels():
    assert kernel_store.case_of(MODEL, torch.float32, Sizes())["kernels"]["head"] == ["whole", "blocks"]
    with pytest.raises(TypeError, match="kernels"):
        kernel_store.case_of(MODEL, torch.float32, Sizes(), kernels="auto")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"case": {}, "choices": {"head": ["whole", ""]}}'])
def test_a_damaged_file_is_measured_again(text):
    calls = []
    case = kernel_store.case_of(MODEL, torch.float32, Sizes())
    _, path = kernel_store.recall(case, measuring(calls))
    path.write_text(text)
    assert kernel_store.recall(case, measuring(calls))[0] == LINES and len(calls) == 2


def test_a_cache_that_cannot_be_written_costs_the_measurement_alone(cache):
    (cache / "kernels").write_text("a file where the directory would be")
    assert kernel_store.recall(kernel_store.case_of(MODEL, torch.float32, Sizes()), lambda: LINES) == (LINES, None)
