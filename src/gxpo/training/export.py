"""Export of a checkpoint to a directory that transformers or peft load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, ConfigError, GxpoError, ModelError
from gxpo.learning.lora import ALONE, LoraSettings, merge_adapters, parameters_of_policy, trained_policies, with_lora
from gxpo.learning.torch import VALUE_HEAD
from gxpo.models import nf4
from gxpo.models.chat.render import source
from gxpo.models.chat.rendered import RENDERED
from gxpo.models.processors import save_processor
from gxpo.parts.settings import RunSettings
from gxpo.sampling.rollouts.build import RolloutPart
from gxpo.training import config, models
from gxpo.training.card import model_card
from gxpo.training.directory import run_of
from gxpo.training.models import pipelines
from gxpo.training.shards import View
from gxpo.training.start import checkpoint_of, parameters_of, read_verified_config

DTYPES = ("float32", "bfloat16", "float64")


def export(
    run: str | Path, directory: str | Path, *, adapter: bool = False, step: int | None = None, dtype: str | None = None
) -> Path:
    """Write a checkpoint of `run` (the newest, or that of `step`) to `directory`; no task or reward is loaded.

    adapter  LoRA runs: the adapter alone, as peft has it, instead of the merged model
    dtype    of the tensors; default: the run's own. A bfloat16 run keeps float32 parameters, which "float32" gives.

    The directory holds weights (safetensors), tokenizer with its chat template, generation config, the processor of
    pictures of a model that sees, README.md (the model card) and gxpo.yaml (the run's configuration). It appears whole
    or not at all, and must not exist or be empty. Where several policies were trained it holds such a directory for
    each, by its name; a frozen policy is the model that the run started from, and is not written.
    """
    run = Path(run)
    home = run_of(run)
    path = checkpoint_of(run, step)
    keys, _ = read_verified_config(home)
    resolved = config.resolve(keys)
    export_step = int(path.name.rpartition("-")[2])
    return write(resolved, parameters_of(path), home, export_step, directory, adapter=adapter, dtype=dtype)


def write(
    resolved: config.RunConfig,
    parameters: Mapping[str, Tensor],
    run: Path,
    step: int,
    directory: str | Path,
    *,
    adapter: bool = False,
    dtype: str | None = None,
) -> Path:
    """Write these parameters, as they were after `step` of `run`, as `export` does; a value head is left out."""
    # Everything that can be refused is, before a model is loaded.
    settings, target = resolved.settings, Path(directory)
    if pipelines.is_pipeline(settings.model):
        return _write_pipeline(settings, parameters, target, adapter=adapter)
    if pipelines.denoises(settings.model):
        raise ConfigError(
            f"{run} trained a flow, which transformers can't load: its parameters are in the run's checkpoints "
            "(scripts/pages/plot_flow.py draws them)"
        )
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: one of {', '.join(DTYPES)}")
    if adapter and not settings.learner.lora_rank:
        raise ConfigError(f"{run} trains every parameter (learner.lora_rank is 0), so it has no adapter: leave it out")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty: give another directory")
    # Methods that train several policies have a parameter set for each.
    policies = getattr(resolved.method.rollout, "policies", {ALONE: "trained"})
    names = trained_policies(policies)
    parameters = View(parameters, leave_out=VALUE_HEAD)
    # Written beside the target and renamed, so that a kill leaves no half export under its name.
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        for name in names:
            policy_parameters = parameters_of_policy(name, parameters, policies) if len(policies) > 1 else parameters
            folder = partial if len(names) == 1 else partial / name
            folder.mkdir(exist_ok=True)
            _write_one(folder, settings, policy_parameters, adapter=adapter, dtype=dtype)
            text = config.named_from((run / "config.yaml").read_text(encoding="utf-8"), run)
            (folder / "gxpo.yaml").write_text(text, encoding="utf-8")
            (folder / "README.md").write_text(model_card(resolved, run, step, adapter=adapter), encoding="utf-8")
        if len(names) > 1:
            others = RolloutPart.hook(resolved.method.rollout, "models")
            (partial / "README.md").write_text(_overview(policies, settings.model, others), encoding="utf-8")
        for file in partial.rglob("*"):  # safetensors makes its files unreadable for others
            if file.is_file():
                file.chmod((partial / "README.md").stat().st_mode)
        os.replace(partial, target)
    except GxpoError:
        raise
    except Exception as error:  # the libraries report a full disk by types of their own
        text = " ".join(str(error).split())
        raise CheckpointError(f"{target} not written: {text}; free space there, or give another directory") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_pipeline(s: RunSettings, parameters: Mapping[str, Tensor], target: Path, *, adapter: bool) -> Path:
    """Write a pipeline of diffusers with the trained network, adapters merged."""
    if adapter:
        raise ConfigError("--adapter: adapters of a pipeline are exported merged into its network: leave it out")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty: give another directory")
    model = pipelines.load(s.model, steps=s.sampling.denoising_steps)
    if (lora := lora_settings(s)) is not None:
        pipelines.with_adapters(model, lora.rank, lora.alpha, lora.targets, lora.seed)
    _load_parameters(model, parameters, torch.float32)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        pipelines.save(model, pipelines.directory_of(s.model), partial)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_one(
    folder: Path, settings: RunSettings, parameters: Mapping[str, Tensor], *, adapter: bool, dtype: str | None
) -> None:
    """Write the files that transformers or peft load."""
    model, tokenizer = load_trained(settings, parameters, adapter=adapter, dtype=dtype)
    if adapter:  # not the embeddings: peft would ask a model hub whether they have grown
        model.save_pretrained(folder, save_embedding_layers=False)
    else:
        model.save_pretrained(folder)
        save_processor(model, folder)
    tokenizer.save_pretrained(folder)


def _overview(policies: Mapping[str, str], base: str, models: Mapping[str, str]) -> str:
    """README.md over the directories of several policies."""
    lines = [
        f"- `{name}`: "
        + (f"[its own directory]({name})" if kind == "trained" else f"frozen, the model `{models.get(name, base)}`")
        for name, kind in policies.items()
    ]
    return "\n".join(["# The policies of a team", "", *lines, ""])


def load_trained(
    settings: RunSettings, parameters: Mapping[str, Tensor], *, adapter: bool = False, dtype: str | None = None
) -> tuple[Any, Any]:
    """Load a separate model with these parameters (LoRA: merged in at least float32, or, `adapter`, as peft's), and its
    tokenizer. Nothing of a live trainer is touched."""
    base = settings.learner.base
    # An adapter is the same whatever its base is stored in.
    loaded = models.load(
        settings.model, task=settings.task, dtype=settings.learner.dtype, base=None if adapter else base
    )
    # The template that the policy was trained with has to go with it.
    if settings.chat.template not in ("auto", "none", RENDERED):
        loaded.tokenizer.chat_template = source(loaded.tokenizer, settings.chat.template)
    # Merging in 16 bits would round away what the adapter has learned.
    kind = getattr(torch, dtype or settings.learner.dtype)
    full = kind if torch.finfo(kind).bits >= 32 else torch.float32
    if adapter and dtype is None:  # adapters are float32 beside a bfloat16 base too
        kind = full
    model: Any = loaded.model
    if base is not None and not adapter:  # merged into the numbers that it was trained over, not into the model's own
        model = nf4.as_dense(model, getattr(torch, settings.learner.dtype))
    lora = lora_settings(settings)
    if lora is None:
        _load_parameters(model, parameters, full)
    else:
        # Peft's files name their base; a built-in model has no place to load it from.
        base = loaded.path or (None if settings.model.startswith("tiny") else settings.model)
        model = with_lora(model, lora, base=None if base is None else str(base))
        _load_parameters(model, parameters, full)
        model = model if adapter else merge_adapters(model)
    return _cast(model, kind), loaded.tokenizer


def lora_settings(settings: RunSettings) -> LoraSettings | None:
    """Settings of the adapters that a run trains; None if it trains every parameter."""
    s, targets = settings.learner, settings.learner.lora_targets
    if not s.lora_rank:
        return None
    return LoraSettings(
        rank=s.lora_rank,
        alpha=s.lora_alpha,
        seed=settings.seed,
        targets=targets if isinstance(targets, str) else tuple(targets),
    )


def _load_parameters(model: Any, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Set the trained parameters of a model that is first brought to `dtype`: all of them, each with its shape."""
    parameter_by_name = {name: p for name, p in _cast(model, dtype).named_parameters() if p.requires_grad}
    # All names of both: a parameter that the checkpoint lacks would stay untrained in silence.
    for name in sorted(parameter_by_name.keys() | parameters.keys()):
        model_shape, checkpoint_shape = (
            tuple(x[name].shape) if name in x else None for x in (parameter_by_name, parameters)
        )
        if model_shape != checkpoint_shape:
            raise ModelError(
                f"checkpoint and model differ: {name} is {checkpoint_shape} in the checkpoint and {model_shape} in the "
                "model; has the directory of `model` changed since the run?"
            )
        with torch.no_grad():
            parameter_by_name[name].copy_(parameters[name])


def _cast(model: Any, dtype: torch.dtype) -> Any:
    """Cast parameters to `dtype`; buffers stay exact (rotary tables)."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model
