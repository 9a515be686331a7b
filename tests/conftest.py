"""One thread, no network, and the same hypothesis examples in every run."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ.get("GXPO_TEST_DEVICE", "cpu") == "cpu":  # `learner.device: auto` would take a GPU, whose bits differ
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("MKL_CBWR", "AUTO")  # as gxpo.exact does for programs of gxpo

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# GXPO_HYPOTHESIS=search looks for new counterexamples: other examples each time, and many more of them.
slow = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, derandomize=True, max_examples=40, suppress_health_check=slow)
settings.register_profile("search", deadline=None, max_examples=1000, suppress_health_check=slow)
settings.load_profile(os.environ.get("GXPO_HYPOTHESIS", "default"))


def pytest_collection_modifyitems(items):
    """First, and one after the other in one process: what needs the warm start of the arithmetic, made on first use."""
    items.sort(key=lambda item: item.get_closest_marker("warm_start") is None)
