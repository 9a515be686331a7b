"""Players of a run: frozen roles whose weights are those of another checkpoint (`rollout.models`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.torch import VALUE_HEAD
from gxpo.methods.method import Method
from gxpo.parts.settings import RunSettings
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.build import RolloutPart
from gxpo.training import config, export, models
from gxpo.training.directory import run_of
from gxpo.training.models.load import check_name, is_run
from gxpo.training.shards import View
from gxpo.training.start import parameters_of, read_verified_config


def models_of(method: Method) -> Mapping[str, str]:
    """Role -> the model directory, hub id or run whose weights play it; empty for most methods."""
    return RolloutPart.hook(method.rollout, "models")


def check_players(s: RunSettings, method: Method) -> None:
    """Refuse roles whose checkpoint does not exist, or can't act in this run; nothing is loaded."""
    for role, name in models_of(method).items():
        try:
            if not is_run(name):
                check_name(name, s.task)
                continue
            keys, _ = read_verified_config(run_of(Path(name).expanduser()))
            policies = getattr(config.resolve(keys).method.rollout, "policies", None) or {}
        except (ConfigError, ModelError) as error:
            raise ModelError(f"rollout.models.{role}: {error}") from error
        if sum(kind == "trained" for kind in policies.values()) > 1:
            raise ConfigError(
                f"rollout.models.{role}: {name} trained several policies ({', '.join(policies)}): export it, and name "
                "the directory of one"
            )


def players_of(
    s: RunSettings, method: Method, tokenizer: Any, vocabulary: int, device: str, notify: Callable[[str], None]
) -> dict[str, TorchEngine]:
    """Load the players of a run: role -> engine; roles of one checkpoint share it. They are in no optimiser.

    ModelError unless their tokenizers equal `tokenizer`: what they say is read as token ids.
    """
    engine_by_name: dict[str, TorchEngine] = {}
    for role, name in models_of(method).items():
        if name in engine_by_name:
            continue
        model, own_tokenizer = _load(s, name, device, notify)
        if own_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ModelError(
                f"rollout.models.{role}: {name} has another tokenizer than the policy ({s.model}): take a checkpoint "
                "with the same one"
            )
        if model.get_input_embeddings().num_embeddings > vocabulary:  # rows that no token has
            model.resize_token_embeddings(vocabulary)
        model.requires_grad_(False)
        engine_by_name[name] = TorchEngine(
            model,
            tokenizer,
            device=device,
            batch_rows=s.sampling.batch_rows,
            acting=lambda policy: nullcontext(),
            kernels=s.learner.kernels,
            choices=s.learner.choices,
        )
    return {role: engine_by_name[name] for role, name in models_of(method).items()}


def _load(s: RunSettings, name: str, device: str, notify: Callable[[str], None]) -> tuple[Any, Any]:
    """Load model and tokenizer of a run's newest checkpoint, or of a model's name."""
    if not is_run(name):
        loaded = models.load(name, task=s.task, device=device, dtype=s.learner.dtype, notify=notify)
        return loaded.model, loaded.tokenizer
    path = Path(name).expanduser()
    keys, _ = read_verified_config(run_of(path))
    parameters = View(parameters_of(path), leave_out=VALUE_HEAD)
    model, tokenizer = export.load_trained(config.resolve(keys).settings, parameters, dtype=s.learner.dtype)
    return model.to(device), tokenizer
