"""Starting from another run: its settings below the new ones, and its parameters."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gxpo.base.errors import CheckpointError
from gxpo.learning.torch import VALUE_HEAD
from gxpo.models import nf4
from gxpo.parts.definition import Stated, stage_of
from gxpo.parts.protocols import WritesFiles
from gxpo.parts.settings import RUN_KEYS
from gxpo.training import checkpoint, config, inputs
from gxpo.training.directory import CONFIG, config_of, origin_of, run_of
from gxpo.training.shards import PARAMETER, Shards, View

OWN = ("out", "init_from", "logging.name", "phases", "versions")  # of one run alone


def read_verified_config(run: Path, *, allow_changed_data: bool = True) -> tuple[dict[str, Stated], str]:
    """Read a run's config.yaml (keys, text), checked against its newest checkpoint before anything it names is loaded.

    Raises `CheckpointError` if config.yaml differs or, unless `allow_changed_data`, a file that it names.
    """
    path = config_of(run)
    keys, text = config.read(path), path.read_text(encoding="utf-8")
    state = checkpoint.newest_state(run)
    refuse_other_config(run, text, state)
    if not allow_changed_data:
        digests = {k: v for k, v in state.get("inputs", {}).items() if not k.startswith("dataset:")}
        inputs.refuse_changes(run, digests, {k: inputs.of_file(k, run) for k in digests})
    return keys, text


def config_sums(text: str, before: str | None = None) -> list[int]:
    """CRC-32 of the config.yaml that a checkpoint belongs to, and of the one it replaces (`Trainer.reconfigure`)."""
    return [zlib.crc32(x.encode()) for x in (text, before) if x is not None]


def refuse_other_config(run: Path, text: str, state: Mapping[str, Any]) -> None:
    """`CheckpointError` unless `text`, the run's config.yaml, is one that the checkpoint of this state belongs to."""
    recorded_crc = state["config"]
    if zlib.crc32(text.encode()) not in (recorded_crc if isinstance(recorded_crc, list) else [recorded_crc]):
        raise CheckpointError(
            f"{run}/{CONFIG} is not the configuration of its checkpoint: restore it, or start another run with "
            "`gxpo train`"
        )


def checkpoint_of(path: Path, step: int | None = None) -> Path:
    """Path of a run's newest whole checkpoint, or that of `step`; a checkpoint's own directory as it is."""
    run = run_of(path)
    if run != Path(path):
        checkpoint.verify(Path(path))
        return Path(path)
    if step is None:
        return checkpoint.latest(run)
    path_of_step = checkpoint.at_step(run, step)
    folder = path_of_step.parent
    if not path_of_step.is_dir():
        steps_saved = ", ".join(str(int(p.name.split("-")[1])) for p in sorted(folder.glob("step-*"))) or "none"
        raise CheckpointError(
            f"{run} has no checkpoint of step {step}; there is {steps_saved} (trainer.keep_checkpoints)"
        )
    return path_of_step


def parameters_of(path: Path, step: int | None = None) -> Mapping[str, Tensor]:
    """Load the trained parameters of a run's checkpoint by name, on the CPU, at the precision they were updated in;
    sharded ones are joined on access."""
    checkpoint_path = checkpoint_of(path, step)
    engine = checkpoint_path / checkpoint.ENGINE
    if engine.is_dir() and not any(engine.glob("*.safetensors")):
        raise CheckpointError(
            f"{engine} is in the format of the training engine that wrote it (cluster.backend), which alone can read it"
        )
    tensors: Mapping[str, Tensor] = Shards(engine) if engine.is_dir() else checkpoint.load(checkpoint_path)[0]
    return View(tensors, PARAMETER)


def load_learner(learner: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a checkpoint into a learner; return its tensors and state."""
    tensors, state = checkpoint.load(path)
    if (path / checkpoint.ENGINE).is_dir() != isinstance(learner, WritesFiles):
        raise CheckpointError(f"{path} was written with another cluster.backend: resume it with that, or use init_from")
    if isinstance(learner, WritesFiles):
        learner.load(path / checkpoint.ENGINE, state["learner"])
    else:
        learner_tensors = {name: x for name, x in tensors.items() if not name.startswith(("signal/", "rollout/"))}
        learner.load_tensors(learner_tensors, state["learner"])
    return tensors, state


def start_from(learner: Any, path: str | Path) -> None:
    """Give a fresh learner the parameters of another run; its optimiser state and its reference policy stay.

    A value head is taken over where both have one, and stays as it is or behind where one has none.
    """
    keys = config.read(config_of(run_of(Path(path))))
    # over other numbers the same adapters are another policy
    base, is_nf4 = getattr(keys.get("learner.base"), "value", None), bool(nf4.layers_of(learner.model))
    if (base == "nf4") != is_nf4:
        remedy = "leave learner.base out" if base is None else f"set learner.base={base}"
        raise CheckpointError(f"init_from {path}: its adapters were trained over learner.base={base}: {remedy}")
    try:
        restore_shared(learner, parameters_of(Path(path)))
    except CheckpointError as error:
        raise CheckpointError(
            f"init_from {path} does not fit: {error}; start with its model and learner.lora_* settings, or export it "
            "and give the directory as model"
        ) from error


def restore_shared(learner: Any, parameters: Mapping[str, Tensor]) -> None:
    """Restore parameters of a learner whose value heads may be others: those that both have, and all of the model."""
    heads = {name: x for name, x in learner.snapshot().items() if name.startswith(VALUE_HEAD)}
    shared = {name: parameters[name] for name in parameters if name in heads or not name.startswith(VALUE_HEAD)}
    learner.restore(heads | shared)


def inherit_keys(run: Path, settings: Mapping[str, Stated], *, is_composed: bool = False) -> dict[str, Stated]:
    """Merge the keys of another run's config.yaml below the given ones; their origins are RUN/config.yaml:LINE.

    A key that nobody had stated there (a default, or a value that a method brought: its origin is noted behind the
    line) is not taken where what it depends on is given anew: all such keys under another `method` or `compat`, and a
    part's parameters under another part. One that somebody had stated is taken where it can be, and else left out with
    a warning. `is_composed`: the method is given as an object, so none of its keys is taken.
    """
    path = run / CONFIG
    keys, lines = config.read(path), path.read_text(encoding="utf-8").splitlines()
    # Origins that are noted behind the lines tell what somebody stated from defaults and methods' own keys.
    words = str(keys["method"].value).split("+") if "method" in keys else []
    methods = {"default", *words, *(w.split("@")[0] for w in words)}
    is_other_method = any(
        k in settings and settings[k].value != getattr(keys.get(k), "value", None) for k in ("method", "compat")
    )
    out: dict[str, Stated] = {}
    for key, setting in keys.items():
        origin = origin_of(lines, setting.origin)
        is_default = origin in methods
        is_replaced = is_other_method or any(key.startswith(f"{k}.") for k in settings)
        of_method = key in ("method", "compat") or (key not in RUN_KEYS and stage_of(key) is not None)
        if key in OWN or key.split(".")[0] == "versions" or (is_default and is_replaced) or (is_composed and of_method):
            continue
        # A stated key of a part that the new method lacks is left out with a warning.
        origin_note = f"{setting.origin} ({origin})" if is_default else setting.origin
        out[key] = Stated(setting.value, origin_note, optional=is_replaced and of_method)
    return config.over(out, settings)
