"""verl 0.9.1's own metric, loss, logging and dump functions, without ray, tensordict or a GPU.

Modules are loaded from the unpacked wheel (`VERL_SOURCE`) as they are; what they import and the corpus does not call is
stubbed. Methods of `ray_trainer.py`, whose import needs ray, are taken from its text one by one.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

SOURCE = Path(os.environ.get("VERL_SOURCE", "verl")) / "verl"


class Tensors(dict):
    """What `DataProto.batch` is asked for: tensors by name."""

    @property
    def batch_size(self) -> tuple[int, ...]:
        return (len(self["responses"]),)


class DataProto:
    """The attributes of verl's DataProto that its metric functions read."""

    def __init__(self, tensors: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
        self.batch, self.non_tensor_batch = Tensors(tensors), dict(arrays or {})
        self.meta_info: dict[str, Any] = {}

    @classmethod
    def from_dict(cls, tensors: dict[str, Any], **_: Any) -> DataProto:
        return cls(tensors)

    def union(self, other: DataProto) -> DataProto:
        self.batch.update(other.batch)
        return self


def _stub(name: str, **items: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = [str(SOURCE.joinpath(*name.split(".")[1:]))]
    for key, value in items.items():
        setattr(module, key, value)
    sys.modules[name] = module


def _stub_all() -> None:
    kind = type("Unused", (), {})
    _stub("tensordict", TensorDict=kind)
    for name in ("verl", "verl.protocol"):
        _stub(name, DataProto=DataProto)
    for name in ("trainer", "trainer.ppo", "utils.debug", "utils.logger", "workers"):
        _stub(f"verl.{name}")
    _stub("verl.utils", as_torch_index=None, group_mean_std=None)
    _stub("verl.trainer.config", AlgoConfig=kind)
    _stub("verl.trainer.config.algorithm", RolloutCorrectionConfig=kind)
    _stub("verl.workers.config", ActorConfig=kind)
    _stub("verl.workers.config.actor", PolicyLossConfig=kind)
    _stub("verl.utils.fs", copy_to_local=None)
    _stub("verl.utils.model", update_model_config=None)
    _stub("verl.utils.device", get_device_name=lambda: "cpu", get_torch_device=None)
    _stub("verl.utils.import_utils", deprecated=lambda *a, **k: lambda f: f)


_stub_all()
core = importlib.import_module("verl.trainer.ppo.core_algos")
metrics = importlib.import_module("verl.trainer.ppo.metric_utils")
debug = importlib.import_module("verl.utils.debug.metrics")
correction = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
reduce_metrics = importlib.import_module("verl.utils.metric").reduce_metrics
FileLogger = importlib.import_module("verl.utils.tracking").FileLogger
line = importlib.import_module("verl.utils.logger.aggregate_logger").concat_dict_to_str
masked_mean = importlib.import_module("verl.utils.torch_functional").masked_mean


def _of_text(file: str, *names: str) -> dict[str, Any]:
    """Compile functions and methods of a file, without importing it."""
    space: dict[str, Any] = {
        "os": os, "json": json, "np": np, "torch": torch, "DataProto": DataProto, "core_algos": core,
        "masked_mean": masked_mean, "process_validation_metrics": metrics.process_validation_metrics,
    }  # fmt: skip
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), file, "exec"), space)
    return space


_trainer = _of_text("trainer/ppo/ray_trainer.py", "_write_generations", "_val_metrics_update", "apply_kl_penalty")
write_generations, apply_kl_penalty = _trainer["_write_generations"], _trainer["apply_kl_penalty"]


def validation_metrics(sources: list[str], uids: list[str], infos: dict[str, list[Any]]) -> dict[str, float]:
    return _trainer["_val_metrics_update"](None, sources, uids, infos, [])
