"""CPU platform for verl, which has none: devices, streams and memory figures that its engines query."""

from __future__ import annotations

import types
from contextlib import contextmanager
from typing import Any

import torch

from gxpo.base.errors import need

_MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
_NOTHING = ("empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all", "ipc_collect")


def register() -> None:
    """Register the CPU as verl's platform, with gloo between processes, and its FSDP engine for CPUs; idempotent.

    Must run before any engine of verl is imported.
    """
    platform()
    engines: Any = need("verl.workers.engine.base", "verl")
    fsdp: Any = need("verl.workers.engine.fsdp.transformer_impl", "verl")
    if "cpu" in engines.EngineRegistry._engines["language_model"]["fsdp2"]:
        return
    registration = engines.EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
    registration(fsdp.FSDPEngineWithLMHead)


def platform() -> None:
    """Register the CPU as verl's platform; idempotent."""
    base: Any = need("verl.plugin.platform.platform_base", "verl")
    manager: Any = need("verl.plugin.platform.platform_manager", "verl")
    if "cpu" in manager.PlatformRegistry.registered_names():
        return
    answers = type("CPU", (base.PlatformBase,), _answers())
    manager.set_platform(manager.PlatformRegistry.register("cpu")(answers)())


def _answers() -> dict[str, Any]:
    """Methods of the platform by name."""

    @contextmanager
    def nvtx_range(self: Any, message: str) -> Any:
        yield

    # verl asks these of its platform: a CPU is one device, with nothing to set
    constant = {
        "is_available": True,
        "current_device": "cpu",
        "device_count": 1,
        "get_device_capability": (None, None),
        "communication_backend_name": "gloo",
        "visible_devices_envvar": "GXPO_NO_DEVICES",
        "ray_resource_name": "CPU",
        "ray_noset_envvars": [],
        "is_ipc_supported": False,
    }
    silent = ("set_device", "synchronize", "manual_seed", "manual_seed_all", "set_allocator_settings", "empty_cache",
              "profiler_start", "profiler_stop", "cudart")  # fmt: skip
    answers: dict[str, Any] = {name: _always(x) for name, x in constant.items()} | {n: _always(None) for n in silent}
    return {**answers, "nvtx_range": nvtx_range, "device_name": "cpu", "vendor_name": "cpu", "device_module": _module()}


def _always(value: Any) -> Any:
    return lambda self, *args, **kwargs: value


def _module() -> Any:
    """torch.cpu extended by the functions that only torch.cuda has."""
    module = types.SimpleNamespace(**{n: getattr(torch.cpu, n) for n in dir(torch.cpu) if not n.startswith("__")})
    for name in _MEMORY:
        setattr(module, name, lambda *_: 0)
    for name in _NOTHING:
        setattr(module, name, lambda *_: None)
    module.mem_get_info = lambda *_: (1 << 34, 1 << 34)
    module.is_available = lambda: True
    return module
