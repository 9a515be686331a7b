"""One thread, no network, and the same hypothesis examples in every run."""

import dataclasses
import functools
import gc
import os
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ.get("GXPO_TEST_DEVICE", "cpu") == "cpu":  # `learner.device: auto` would take a GPU, whose bits differ
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("MKL_CBWR", "AUTO")  # as gxpo.base.library_variables does for programs of gxpo

import pytest
import torch
import typer.main
from _pytest.assertion.rewrite import AssertionRewritingHook
from hypothesis import HealthCheck, settings
from tests import strict_device

torch.set_num_threads(1)
if strict_device.DEVICE == strict_device.NAME:
    strict_device.install()
typer.main.get_command = functools.cache(typer.main.get_command)  # else each `gxpo ...` makes all commands anew

# GXPO_HYPOTHESIS=search looks for new counterexamples: other examples each time, and many more of them.
# of a property in `make test`, also where its test names more: those are for the search; `make processors` tries some
# of the same examples again with the kernels of lesser processors
MOST_EXAMPLES = 4 if "ATEN_CPU_CAPABILITY" in os.environ else 12
slow = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, derandomize=True, max_examples=20, suppress_health_check=slow)
settings.register_profile("search", deadline=None, max_examples=1000, suppress_health_check=slow)
PROFILE = os.environ.get("GXPO_HYPOTHESIS", "default")
settings.load_profile(PROFILE)


@pytest.fixture(scope="session")
def _warm_starts(tmp_path_factory):
    """A cache that holds what stands for the warm start of the arithmetic: the model after one step of it."""
    from gxpo.models.cache import put
    from gxpo.training.models.warmup import WARMUPS, _cache_key, warm_start

    recipe = WARMUPS["arithmetic"]
    root = tmp_path_factory.getbasetemp()
    place = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "warm"  # one for all workers
    target = place / f"tiny-arithmetic-0-{_cache_key('arithmetic', 0, recipe)}"
    short = {"batch": 8, "first_check": 1, "max_steps": 1, "low": 0.0, "high": 1.0, "well_formed": 0.0, "checked_on": 2}
    path = warm_start("arithmetic", cache=place / "made", recipe=dataclasses.replace(recipe, **short))
    put(target, lambda folder: shutil.copytree(path, folder, dirs_exist_ok=True))
    return place


@pytest.fixture
def hardly_warm(_warm_starts, monkeypatch):
    """`model=tiny` as typed, for the arithmetic, and `model=flow`, without the minute that their warm starts take."""
    from gxpo.training.models import flow

    monkeypatch.setenv("GXPO_CACHE", str(_warm_starts))
    monkeypatch.setitem(flow.RECIPE, "steps", 20)


for finder in sys.meta_path:
    if isinstance(finder, AssertionRewritingHook):  # gxpo has a plugin, so that pytest would rewrite all of its modules
        finder._must_rewrite.discard("gxpo")

gc.disable()  # until everything is collected: nothing of it is ever freed


def pytest_collection_finish(session):
    gc.enable()
    gc.freeze()  # what torch, transformers and the tests themselves have made is not walked again
    gc.set_threshold(50_000, 20, 20)


def pytest_collection_modifyitems(items):
    """Sort the tests that need the warm start of the arithmetic to the front, and cap the examples of properties."""
    items.sort(key=lambda item: item.get_closest_marker("warm_start") is None)
    for test in {getattr(item.obj, "__func__", item.obj) for item in items if hasattr(item, "obj")}:
        limits = getattr(test, "_hypothesis_internal_use_settings", settings())
        is_property = getattr(test, "is_hypothesis_test", False)
        if is_property and PROFILE == "default" and limits.max_examples > MOST_EXAMPLES:
            test._hypothesis_internal_use_settings = settings(limits, max_examples=MOST_EXAMPLES)
