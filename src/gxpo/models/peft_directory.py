"""PEFT directories with an adapter alone, as models: find the base on this machine and merge both once."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gxpo.base import yamltext
from gxpo.base.errors import ModelError, need
from gxpo.models.cache import cache_directory, put

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_TOKENIZER = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json")


def is_adapter(path: Path) -> bool:
    """Return True for a directory that holds an adapter and no weights of a model."""
    if not (path / CONFIG).is_file():
        return False
    return not (any(path.glob("model*.safetensors*")) or any(path.glob("pytorch_model*.bin*")))


def base_of(path: Path) -> Path:
    """Directory of an adapter's base model: a path, or a snapshot in the hub's cache.

    Raises ModelError, with the command to merge, if the adapter is incomplete or its base is not on this machine.
    """
    try:
        name = json.loads((path / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        text = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{path} is an adapter (PEFT) whose {CONFIG} can't be read ({text}): restore it, or "
            + _merge_first(path, "BASE")
        ) from error
    # a pickle may run code when it is loaded, so adapter_model.bin is refused
    if not (path / WEIGHTS[0]).is_file():
        note = f"; {WEIGHTS[1]} is a pickle, which is never loaded" if (path / WEIGHTS[1]).is_file() else ""
        raise ModelError(f"{path}: an adapter without {WEIGHTS[0]}{note}")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path / CONFIG}: an adapter that names no base model: {_merge_first(path, 'BASE')}")
    # a directory before the hub's cache: peft writes the base as it was named when the adapter was made
    local = Path(name).expanduser()
    if local.is_dir():
        return local
    if (snapshot := _in_hub_cache(name)) is not None:
        return snapshot
    raise ModelError(
        f"{path} is an adapter (PEFT) of {name!r}, which is not on this machine: download it, or "
        + _merge_first(path, name)
    )


def _in_hub_cache(name: str) -> Path | None:
    hub: Any = need("huggingface_hub", "train")
    errors: Any = need("huggingface_hub.errors", "train")
    try:
        cached_path = hub.try_to_load_from_cache(name, "config.json")
    except errors.HFValidationError:
        return None
    return Path(cached_path).parent if isinstance(cached_path, str) else None


def _merge_first(path: Path, base: str) -> str:
    return (
        'merge it first: python -c "import peft, transformers as t; '
        f"m = peft.PeftModel.from_pretrained(t.AutoModelForCausalLM.from_pretrained('{base}'), '{path}'); "
        "m.merge_and_unload().save_pretrained('merged')\", with the tokenizer beside it, and model=merged"
    )


def tokenizer_home(path: Path) -> Path:
    """Directory of a model's tokenizer: for an adapter without one, its base."""
    if not is_adapter(path) or any((path / file).is_file() for file in _TOKENIZER):
        return path
    return base_of(path)


def config_home(path: Path) -> Path:
    """Directory of a model's config: for an adapter, its base."""
    return base_of(path) if is_adapter(path) else path


def merged_directory(path: Path, kind_of: Callable[[Any], Any]) -> Path:
    """Directory of the whole model: `path` itself or, for an adapter, a merged copy in gxpo's cache.

    kind_of  config -> class of transformers that loads the base
    """
    if not is_adapter(path):
        return path
    base = base_of(path)
    if is_adapter(base):
        raise ModelError(f"{path}: the base {base} is an adapter itself: merge that first")
    if (storage := _base_storage(path)) is not None:
        raise ModelError(
            f"{path}: its adapter was trained over {base} in {storage}, and merged into the weights in its files it "
            "would be another policy: gxpo export RUN DIR, without --adapter, writes the merged model"
        )
    # the cache is keyed by the adapter's content and the base's files, so that a changed base is merged anew
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(base.iterdir())]
    digest = hashlib.sha256(json.dumps([str(base.resolve()), files]).encode())
    for name in (CONFIG, WEIGHTS[0], *_TOKENIZER):
        digest.update((path / name).read_bytes() if (path / name).is_file() else b"-")
    target = cache_directory() / "merged" / digest.hexdigest()[:24]
    return target if target.is_dir() else put(target, lambda place: _merge(path, base, place, kind_of))


def _base_storage(path: Path) -> str | None:
    """`learner.base` of the run that exported an adapter, from the configuration beside it; None: as in the files."""
    file = path / "gxpo.yaml"
    settings = yamltext.load(file.read_text(encoding="utf-8"), str(file)) if file.is_file() else {}
    return settings.get("learner.base")


def _merge(path: Path, base: Path, place: Path, kind_of: Callable[[Any], Any]) -> None:
    """Write the merged model and its tokenizer to `place`."""
    peft: Any = need("peft", "train")
    transformers: Any = need("transformers", "train")
    safetensors: Any = need("safetensors", "train")
    try:
        config = transformers.AutoConfig.from_pretrained(str(base), trust_remote_code=False)
        model = kind_of(config).from_pretrained(str(base), dtype="auto", trust_remote_code=False)
        # peft only warns of weights that are missing, which are refused below by name
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="peft")
            peft_model = peft.PeftModel.from_pretrained(model, str(path), is_trainable=False)
        # peft ignores weights that do not fit the base: a wrong base would give an unchanged model
        with safetensors.safe_open(str(path / WEIGHTS[0]), framework="pt") as file:
            stored_names = set(file.keys())
        adapter_names = set(peft.get_peft_model_state_dict(peft_model))
        if stored_names != adapter_names:
            missing, surplus = sorted(adapter_names - stored_names), sorted(stored_names - adapter_names)
            raise ModelError(
                f"{path}: the adapter does not fit its base {base}: "
                + "; ".join(
                    f"{len(names)} weights {fault} ({names[0]})"
                    for names, fault in ((missing, "are missing"), (surplus, "have no place"))
                    if names
                )
            )
        if not hasattr(peft_model, "merge_and_unload"):
            raise ModelError(f"{path}: an adapter of type {peft_model.peft_type} can't be merged into weights")
        peft_model.merge_and_unload().save_pretrained(str(place))
        for home in (base, tokenizer_home(path)):  # the adapter's tokenizer over the base's
            for file in home.iterdir():
                is_tokenizer_file = file.name.startswith(
                    ("token", "vocab", "merges", "special_", "added_", "chat_", "preprocessor")
                )
                if file.is_file() and is_tokenizer_file:
                    shutil.copyfile(file, place / file.name)
    except ModelError:
        raise
    except Exception as error:  # peft, transformers and safetensors raise a dozen types here
        text = " ".join(str(error).split())[:300]
        raise ModelError(f"{path}: the adapter can't be merged into its base {base} ({text})") from error
