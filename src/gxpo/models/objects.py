"""Model and tokenizer given as Python objects: check them and write a directory that `models.load` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ModelError, need

DTYPES = ("float32", "float64", "bfloat16")  # that a learner trains


@dataclass(eq=False)
class ModelObject:
    """A causal language model of transformers and its tokenizer."""

    model: Any
    tokenizer: Any

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> ModelObject | None:
        """Build from the arguments of `gxpo.train`: a model with `tokenizer`, or a pair; None for the name of a model.

        Raises `ModelError`, which says what to pass instead.
        """
        if isinstance(model, (tuple, list)):
            if len(model) != 2 or tokenizer is not None:
                raise ModelError("model: give (model, tokenizer), or model= and tokenizer=")
            model, tokenizer = model
        if model is None or isinstance(model, (str, Path)):
            if tokenizer is None:
                return None
            raise ModelError(
                f"tokenizer: {model or 'the default model'!s} brings its own: load both and give them as objects "
                "(AutoModelForCausalLM.from_pretrained, AutoTokenizer.from_pretrained), or leave tokenizer out"
            )
        _check_model(model)
        _check_tokenizer(tokenizer, model)
        return cls(model, tokenizer)

    @property
    def dtype(self) -> str:
        """Name of the dtype of its parameters."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def description(self) -> str:
        """Description of the model's origin, for config.yaml."""
        return f"argument, a {type(self.model).__name__} of {self.model.num_parameters():,} parameters"

    def save(self, folder: Path) -> None:
        """Write both in the format of transformers."""
        logging: Any = need("transformers.utils.logging", "train")
        # transformers draws progress bars of its own, in the middle of what a run prints
        has_bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        finally:
            if has_bars:
                logging.enable_progress_bar()
        for file in folder.rglob("*"):  # safetensors makes its files unreadable for others
            file.chmod(0o755 if file.is_dir() else 0o644)


def _check_model(model: Any) -> None:
    """Raise ModelError for an object that could not be trained, or not be loaded again from its files."""
    transformers: Any = need("transformers", "train")
    kind = type(model).__name__
    if hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
        raise ModelError(
            f"model: a {kind} of peft: give the base model and set learner.lora_rank, or give model.merge_and_unload()"
        )
    if isinstance(model, type) or not isinstance(model, transformers.PreTrainedModel):
        subject = f"the class {model.__name__}" if isinstance(model, type) else f"a {kind}"
        raise ModelError(
            f"model: {subject} is no model of transformers: give a PreTrainedModel with a head for causal language "
            "modelling, as AutoModelForCausalLM.from_pretrained(...) returns it, a directory or a name"
        )
    # workers and `gxpo resume` load it by AutoModelForCausalLM, which chooses the class by the configuration
    class_by_config = transformers.AutoModelForCausalLM._model_mapping  # with what register() has added
    if type(model.config) not in class_by_config or not isinstance(model, class_by_config[type(model.config)]):
        loaded_class = class_by_config[type(model.config)].__name__ if type(model.config) in class_by_config else None
        advice = (
            f"give a {loaded_class}"
            if loaded_class is not None
            else "register it: AutoConfig.register(...), AutoModelForCausalLM.register(...)"
        )
        raise ModelError(f"model: a {kind} is not what AutoModelForCausalLM loads for its configuration: {advice}")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ModelError(
            f"model: its parameters are {dtype}, and {', '.join(DTYPES)} can be trained: give model.float()"
        )
    if any(p.is_meta for p in model.parameters()):
        raise ModelError("model: its parameters are on the meta device and hold no numbers: load it on a real one")


def _check_tokenizer(tokenizer: Any, model: Any) -> None:
    """Raise ModelError unless the tokenizer is one of transformers and fits the model's embeddings."""
    if tokenizer is None:
        raise ModelError("tokenizer is missing: a model that is an object needs one, train(model=..., tokenizer=...)")
    if hasattr(tokenizer, "tokenizer") and hasattr(tokenizer, "image_processor"):
        raise ModelError("tokenizer: a processor of images and text: give processor.tokenizer")
    if not all(callable(getattr(tokenizer, name, None)) for name in ("encode", "decode", "save_pretrained")):
        raise ModelError(
            f"tokenizer: {type(tokenizer).__name__} is no tokenizer of transformers: give what AutoTokenizer loads"
        )
    # an id beyond the embedding would fail only once such a token occurs, in the middle of a run
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ModelError(
            f"tokenizer: it has {len(tokenizer)} tokens and the model embeds {rows}: "
            "model.resize_token_embeddings(len(tokenizer)), or give the tokenizer that belongs to it"
        )
