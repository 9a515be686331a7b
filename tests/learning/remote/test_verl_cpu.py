"""Methods of the CPU platform for verl, which need no verl themselves."""

import torch

from gxpo.learning.remote import verl_cpu


def test_the_platform_answers_as_a_single_cpu():
    answers = verl_cpu._answers()
    for name, expected in (
        ("is_available", True),
        ("current_device", "cpu"),
        ("device_count", 1),
        ("communication_backend_name", "gloo"),
        ("ray_resource_name", "CPU"),
        ("synchronize", None),
        ("set_device", None),
    ):
        assert answers[name](object(), 0, anything=True) == expected
    assert (answers["device_name"], answers["vendor_name"]) == ("cpu", "cpu")


def test_ranges_of_the_profiler_do_nothing():
    with verl_cpu._answers()["nvtx_range"](object(), "step"):
        pass


def test_the_module_has_what_only_cuda_has():
    module = verl_cpu._module()
    assert module.memory_allocated() == module.max_memory_reserved("cpu") == 0
    assert module.mem_get_info() == (2**34, 2**34) and module.is_available()
    assert module.empty_cache() is None and module.current_device() == torch.cpu.current_device()
