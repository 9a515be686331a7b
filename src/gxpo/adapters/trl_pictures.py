"""Pictures in TRL's batches: columns for the model's forward pass, and log-probs with other pictures in their place."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.adapters import asks
from gxpo.adapters.standin import StandIn
from gxpo.adapters.trl_rollouts import own_tokens
from gxpo.base import media
from gxpo.base.errors import ConfigError, need
from gxpo.forest.forest import Forest
from gxpo.models.decoder.vision import PLACEHOLDERS

# columns of a batch that TRL passes on to its forward pass, beside token ids and masks
MODALITIES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
FORWARD_ARGUMENTS = {
    "model",
    "input_ids",
    "attention_mask",
    "logits_to_keep",
    "batch_size",
    "compute_entropy",
    "compute_aux_loss",
}
OUTPUT_NAMES = ("logprob", "entropy")
COLUMNS = ("image", "images")  # of a data set with pictures


def has_images(output: Mapping[str, Any]) -> bool:
    """Return True if a batch has images."""
    return output.get("pixel_values") is not None


def need_known(batch: Mapping[str, Any], forward: Any, model: Any) -> None:
    """Raise ConfigError for a column of the batch that TRL would pass to its model and this adapter does not know.

    forward  TRL's function of the forward pass;   model: the model that it calls, whose own `forward` TRL has replaced
    """
    parameters = {*inspect.signature(forward).parameters, *inspect.signature(type(model).forward).parameters}
    if unknown_columns := sorted((parameters & batch.keys()) - {*MODALITIES, *FORWARD_ARGUMENTS}):
        raise ConfigError(
            f"TRL's batch holds {unknown_columns[0]!r} for the model, which this adapter does not hand on: it knows "
            f"{', '.join(MODALITIES)}"
        )


def columns_of(dataset: Any) -> list[str]:
    """Return the columns with images of a data set of `datasets`; none if its columns are unknown or row 0 has none."""
    columns = [name for name in COLUMNS if name in (getattr(dataset, "column_names", None) or ())]
    first = next(iter(dataset), {}) if columns else {}
    return [name for name in columns if first.get(name)]


def check_dataset(trainer: Any, verdicts: bool, components: Sequence[str]) -> None:
    """Raise ConfigError if the data set has images and the method needs more of the model than `PicturedBatch` gives.

    Found by trying the method on synthetic rollouts with a picture, so that a run fails before its first step.

    verdicts, components  as in `asks.refusals`
    """
    lent = trainer._services
    if "model" not in lent.borrowed or not (columns := columns_of(getattr(trainer, "train_dataset", None))):
        return
    try:
        check_trainer(trainer)
        picture_ids = media.ids(media.PICTURES.put(np.full((28, 28, 3), 100, dtype=np.uint8)), 1)
        forest = asks.synthetic(verdicts, components, prompt_prefix=picture_ids)
        services: Any = replace(
            asks.trial_tools(1, tuple(asks.SERVICES)), learner=_TrialBatch(name_of(trainer), forest)
        )
        try:
            asks.rehearse(trainer.gxpo_method, forest, services)
        except asks.Failed as failed:
            if isinstance(failed.error, MissingOutput):
                raise failed.error from None
    except MissingOutput as error:
        raise ConfigError(f"{error}; train_dataset has a column {columns[0]!r}") from None


def check_trainer(trainer: Any) -> None:
    """Raise `MissingOutput` if a trainer's method can't work with the model on images, whatever the batch."""
    if trainer.accelerator.num_processes > 1:
        raise MissingOutput(f"{name_of(trainer)} works with the model itself: on images that takes a single process")
    if trainer._extra_outputs:
        raise MissingOutput(
            f"{name_of(trainer)} reads the policy's {trainer._extra_outputs[0]}, {_only_given(OUTPUT_NAMES)}"
        )


def name_of(trainer: Any) -> str:
    """Return the name of a trainer's method for error messages."""
    return f"{trainer.gxpo_method.name} in TRL"


class MissingOutput(ConfigError):
    """Error of a method that needs more of the model than there is for batches with images."""


def pictures_of(prompt: Any) -> list[Any]:
    """Return the pictures of a conversation, in order, as TRL takes them out of its messages."""
    if isinstance(prompt, str):
        return []
    contents = [message["content"] for message in prompt if isinstance(message.get("content"), list)]
    return [part["image"] for parts in contents for part in parts if part.get("type") == "image"]


def with_rows(prompt: Tensor, placeholder: int, refs: Sequence[str], sizes: Sequence[int]) -> Tensor:
    """Replace the placeholders of a prompt [L] by ids of `gxpo.base.media`, one for each row of a picture.

    refs   references of the pictures, in order
    sizes  of each picture, in any unit: placeholders are shared out in proportion. Each run of them, as of a tile,
           begins with row 0 of its picture.
    """
    places = (prompt == placeholder).nonzero().squeeze(1).tolist()
    ends = (torch.tensor(sizes).cumsum(0) * len(places) // max(1, sum(sizes))).tolist()
    out, picture, row, last_position = prompt.clone(), 0, 0, -2
    for count, position in enumerate(places):
        previous_picture = picture
        while count >= ends[picture]:
            picture += 1
        row = row + 1 if picture == previous_picture and position == last_position + 1 else 0
        media.PICTURES.placeholders[refs[picture]] = placeholder
        out[position] = media.FIRST + media.key_of(refs[picture]) * media.ROWS + row
        last_position = position
    return out


class _Pictured:
    """Refusals for a policy that reads images through TRL's forward pass: only log-probs and entropies are given."""

    model = None  # gxpo does not read it itself
    _name: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise MissingOutput(f"{self._name} asks for the model's {name}, {_only_given(OUTPUT_NAMES)}")

    def _refuse_others(self, names: Collection[str], extra_inputs: Collection[str]) -> None:
        if refused_names := [name for name in names if name not in OUTPUT_NAMES] or list(extra_inputs):
            raise MissingOutput(f"{self._name} asks for the policy's {refused_names[0]}, {_only_given(OUTPUT_NAMES)}")

    def _need_same(self, base: Forest, forest: Forest) -> Tensor:
        """Mask the picture rows among the tokens, [T] bool; `MissingOutput` if two forests differ in other tokens."""
        fits = forest.n_tokens == base.n_tokens and torch.equal(forest.path_token, base.path_token)
        rows = base.token >= media.FIRST
        if not fits or not torch.equal(forest.token[~rows], base.token[~rows]):
            raise MissingOutput(f"{self._name} reads the answers after other tokens, {_only_given(('the rollouts',))}")
        return rows


class _TrialBatch(_Pictured):
    """Stand-in for a `PicturedBatch`, to try a method before there is a batch."""

    def __init__(self, name: str, base: Forest) -> None:
        self._name, self._base = name, base

    def outputs(self, forest: Forest, names: Collection[str], **extra_inputs: Any) -> dict[str, Tensor]:
        """Outputs of the stand-in policy, refused like those of `PicturedBatch`."""
        self._refuse_others(names, extra_inputs)
        self._need_same(self._base, forest)
        return StandIn().outputs(forest, tuple(names))


class PicturedBatch(_Pictured):
    """Policy on one generation batch with images, through TRL's forward pass.

    It gives log-probs and entropies of the batch's rows, also with other pictures of the same sizes. Any other request
    of a method to the model is a ConfigError.
    """

    def __init__(self, trainer: Any, output: Mapping[str, Any], prompts: Sequence[Any]) -> None:
        self._trainer, self._output = trainer, output
        self._name = name_of(trainer)
        check_trainer(trainer)
        ref_by_picture: dict[Any, str] = {}
        self._refs = [[_ref(x, ref_by_picture) for x in pictures_of(prompt)] for prompt in prompts]
        if [len(refs) for refs in self._refs] != list(output["num_images"]):
            raise ConfigError(f"{self._name} works with the model itself: images may be in prompts, not in answers")
        self._base: Forest | None = None
        self._compared = False

    @property
    def prompt_ids(self) -> Tensor:
        """TRL's prompt ids (B, P) with ids of `gxpo.base.media` for the pictures, so that equal texts differ."""
        ids, config = self._output["prompt_ids"], self._trainer.accelerator.unwrap_model(self._trainer.model).config
        placeholder = next((i for name in PLACEHOLDERS if (i := getattr(config, name, None)) is not None), -1)
        if not bool((ids == placeholder).any()):
            raise ConfigError(f"{self._name} finds no token {placeholder} in the prompts to stand for their images")
        grids, rows, grid_offset = self._output.get("image_grid_thw"), [], 0
        for prompt, refs in zip(ids, self._refs, strict=True):
            sizes = [1] * len(refs) if grids is None else grids[grid_offset : grid_offset + len(refs)].prod(1).tolist()
            rows.append(with_rows(prompt, placeholder, refs, sizes) if refs else prompt)
            grid_offset += len(refs)
        return torch.stack(rows)

    def set_forest(self, forest: Forest) -> None:
        """Set the forest of the batch, which later ones are compared with."""
        self._base = forest

    def outputs(self, forest: Forest, names: Collection[str], **extra_inputs: Any) -> dict[str, Tensor]:
        """Policy outputs by name, [P] float64.

        ConfigError for others than log-probs and entropies, and for a forest that differs in more than pictures.
        """
        self._refuse_others(names, extra_inputs)
        trainer, batch = self._trainer, dict(self._output)
        replacements = self._replaced_pictures(forest)
        if replacements:
            batch["pixel_values"] = self._pixel_values(replacements)
        with torch.no_grad():
            logprob, entropy, _ = trainer._outputs(
                trainer.model, batch, batch_size=trainer.args.per_device_train_batch_size
            )
        own_mask = own_tokens(self._output)
        values = {"logprob": logprob, "entropy": entropy}
        return {name: values[name][own_mask].cpu().double() for name in names}

    def _replaced_pictures(self, forest: Forest) -> dict[str, str]:
        """Return the replaced pictures: reference in the batch -> reference in the forest."""
        base = self._base
        assert base is not None
        rows = self._need_same(base, forest)
        pairs = torch.stack([base.token[rows], forest.token[rows]], 1).unique(dim=0).tolist()
        replacement_of = {media.ref_of(old): media.ref_of(new) for old, new in pairs}
        return {old: new for old, new in replacement_of.items() if old != new}

    def _pixel_values(self, replacements: Mapping[str, str]) -> Tensor:
        """Return TRL's pixel_values with some pictures replaced."""
        pixel_values = self._output["pixel_values"]
        # the image processor is called by itself, without the settings of TRL's call: compared once with TRL's result
        if not self._compared:
            recomputed = self._processed({})
            if recomputed.shape != pixel_values.shape or not torch.equal(recomputed.to(pixel_values), pixel_values):
                kind = type(self._trainer.processing_class.image_processor).__name__
                raise ConfigError(
                    f"{self._name} hides parts of the pictures, and {kind} by itself makes other pixel_values of them "
                    "than the whole processor (as of settings of the call, or pictures that are not RGB)"
                )
            self._compared = True
        return self._processed(replacements).to(pixel_values)

    def _processed(self, replacements: Mapping[str, str]) -> Tensor:
        image: Any = need("PIL.Image", "vision")
        pictures = [
            [image.fromarray(media.PICTURES.pixels(replacements.get(ref, ref))) for ref in refs] for refs in self._refs
        ]
        return self._trainer.processing_class.image_processor(images=pictures, return_tensors="pt")["pixel_values"]


def _only_given(read: Sequence[str]) -> str:
    return f"which is not given where the batch shows images: {' and '.join(read)} are"


def _ref(picture: Any, ref_by_picture: dict[Any, str]) -> str:
    """Store a picture and return its reference; the copies of one picture in a group's rows are stored once."""
    key = (picture.mode, picture.size, picture.tobytes()) if hasattr(picture, "tobytes") else None
    if key is None or not hasattr(picture, "mode"):
        return media.PICTURES.put(picture)
    if key not in ref_by_picture:
        ref_by_picture[key] = media.PICTURES.put(picture)
    return ref_by_picture[key]
