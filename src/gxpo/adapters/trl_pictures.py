"""Pictures in TRL's batches: the keys its model is called with, and the policy with other pictures in their place."""

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

# Keys of a batch that TRL hands to its forward pass as they are, beside token ids and masks.
MODALITIES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
GIVEN = {"model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy", "compute_aux_loss"}
READ = ("logprob", "entropy")
COLUMNS = ("image", "images")  # of a data set, as TRL reads them


def has_images(output: Mapping[str, Any]) -> bool:
    """Whether a batch shows images."""
    return output.get("pixel_values") is not None


def need_known(batch: Mapping[str, Any], forward: Any, model: Any) -> None:
    """ConfigError for a key of the batch that TRL would hand to its model and this adapter would not.

    forward  TRL's function of the forward pass;   model  what it calls, whose own `forward` TRL has replaced
    """
    takes = {*inspect.signature(forward).parameters, *inspect.signature(type(model).forward).parameters}
    if other := sorted((takes & batch.keys()) - {*MODALITIES, *GIVEN}):
        raise ConfigError(
            f"TRL's batch holds {other[0]!r} for the model, which this adapter does not hand on: it knows "
            f"{', '.join(MODALITIES)}"
        )


def columns_of(dataset: Any) -> list[str]:
    """The columns of a data set of `datasets` that show images, as TRL reads them; none where they are not known,
    or its first row shows none."""
    columns = [name for name in COLUMNS if name in (getattr(dataset, "column_names", None) or ())]
    first = next(iter(dataset), {}) if columns else {}
    return [name for name in columns if first.get(name)]


def check_dataset(trainer: Any, verdicts: bool, components: Sequence[str]) -> None:
    """ConfigError where the trainer's data set shows images and its method asks of the model what `PicturedBatch` does
    not give, found by trying the method on synthetic rollouts with a picture.

    verdicts, components  as of `asks.refusals`
    """
    lending = trainer._lending
    if "model" not in lending.borrowed or not (columns := columns_of(getattr(trainer, "train_dataset", None))):
        return
    try:
        check_trainer(trainer)
        picture_ids = media.ids(media.PICTURES.put(np.full((28, 28, 3), 100, dtype=np.uint8)), 1)
        forest = asks.synthetic(verdicts, components, before=picture_ids)
        lent: Any = replace(asks.tools(1, tuple(asks.SERVICES)), learner=_Tried(name_of(trainer), forest))
        try:
            asks.rehearse(trainer.gxpo_method, forest, lent)
        except asks.Failed as failed:
            if isinstance(failed.error, Ungiven):
                raise failed.error from None
    except Ungiven as error:
        raise ConfigError(f"{error}; train_dataset has a column {columns[0]!r}") from None


def check_trainer(trainer: Any) -> None:
    """`Ungiven` where a trainer's method can't work with the model on images, whatever the batch."""
    if trainer.accelerator.num_processes > 1:
        raise Ungiven(f"{name_of(trainer)} works with the model itself: on images that takes a single process")
    if trainer._further:
        raise Ungiven(f"{name_of(trainer)} reads the policy's {trainer._further[0]}, {_unread(READ)}")


def name_of(trainer: Any) -> str:
    """A trainer's method, as errors call it."""
    return f"{trainer.gxpo_method.name} in TRL"


class Ungiven(ConfigError):
    """A method asks for what it is not given where a batch shows images."""


def pictures_of(prompt: Any) -> list[Any]:
    """The pictures of a conversation, in order, as TRL takes them out of its messages."""
    if isinstance(prompt, str):
        return []
    contents = [message["content"] for message in prompt if isinstance(message.get("content"), list)]
    return [part["image"] for parts in contents for part in parts if part.get("type") == "image"]


def with_rows(prompt: Tensor, placeholder: int, refs: Sequence[str], sizes: Sequence[int]) -> Tensor:
    """A prompt [L] with ids of `gxpo.base.media` in its placeholders' places.

    sizes  of each picture, in any unit: placeholders are shared out in proportion. A run of them, as of a tile, begins
           with its picture's row 0.
    """
    places = (prompt == placeholder).nonzero().squeeze(1).tolist()
    ends = (torch.tensor(sizes).cumsum(0) * len(places) // max(1, sum(sizes))).tolist()
    out, which, row, last = prompt.clone(), 0, 0, -2
    for count, at in enumerate(places):
        before = which
        while count >= ends[which]:
            which += 1
        row = row + 1 if which == before and at == last + 1 else 0
        media.PICTURES.placeholders[refs[which]] = placeholder
        out[at] = media.FIRST + media.key_of(refs[which]) * media.ROWS + row
        last = at
    return out


class _Pictured:
    """What a method can't have of a policy that reads images by TRL's forward pass."""

    model = None  # gxpo does not read it itself
    _name: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Ungiven(f"{self._name} asks for the model's {name}, {_unread(READ)}")

    def _need_read(self, names: Collection[str], extra_inputs: Collection[str]) -> None:
        if other := [name for name in names if name not in READ] or list(extra_inputs):
            raise Ungiven(f"{self._name} asks for the policy's {other[0]}, {_unread(READ)}")

    def _need_same(self, base: Forest, forest: Forest) -> Tensor:
        """Rows of pictures among the tokens of two forests that are the same but for these."""
        fits = forest.n_tokens == base.n_tokens and torch.equal(forest.path_token, base.path_token)
        rows = base.token >= media.FIRST
        if not fits or not torch.equal(forest.token[~rows], base.token[~rows]):
            raise Ungiven(f"{self._name} reads the answers after other tokens, {_unread(('the rollouts',))}")
        return rows


class _Tried(_Pictured):
    """In the place of a `PicturedBatch`: a method is tried with it before there is one."""

    def __init__(self, name: str, base: Forest) -> None:
        self._name, self._base = name, base

    def outputs(self, forest: Forest, names: Collection[str], **given: Any) -> dict[str, Tensor]:
        """As of `PicturedBatch`, of the stand-in for a policy."""
        self._need_read(names, given)
        self._need_same(self._base, forest)
        return StandIn().outputs(forest, tuple(names))


class PicturedBatch(_Pictured):
    """The policy on one generation batch that shows images, through TRL's forward pass.

    It gives log-probs and entropies of the batch's rows, whose pictures may be others of the same sizes; what else
    methods ask of a model is a ConfigError.
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
        """(B, P) TRL's, with ids of `gxpo.base.media` for the pictures."""
        ids, config = self._output["prompt_ids"], self._trainer.accelerator.unwrap_model(self._trainer.model).config
        placeholder = next((i for name in PLACEHOLDERS if (i := getattr(config, name, None)) is not None), -1)
        if not bool((ids == placeholder).any()):
            raise ConfigError(f"{self._name} finds no token {placeholder} in the prompts to stand for their images")
        grids, rows, at = self._output.get("image_grid_thw"), [], 0
        for prompt, refs in zip(ids, self._refs, strict=True):
            sizes = [1] * len(refs) if grids is None else grids[at : at + len(refs)].prod(1).tolist()
            rows.append(with_rows(prompt, placeholder, refs, sizes) if refs else prompt)
            at += len(refs)
        return torch.stack(rows)

    def is_of(self, forest: Forest) -> None:
        """Take the forest of the batch, with which others are compared."""
        self._base = forest

    def outputs(self, forest: Forest, names: Collection[str], **given: Any) -> dict[str, Tensor]:
        """[P] float64 by name. ConfigError for other outputs than log-probs and entropies, and for a forest that
        differs from the batch by more than pictures."""
        self._need_read(names, given)
        trainer, batch = self._trainer, dict(self._output)
        changed = self._changed(forest)
        if changed:
            batch["pixel_values"] = self._pixel_values(changed)
        with torch.no_grad():
            logprob, entropy, _ = trainer._outputs(
                trainer.model, batch, batch_size=trainer.args.per_device_train_batch_size
            )
        own_mask = own_tokens(self._output)
        values = {"logprob": logprob, "entropy": entropy}
        return {name: values[name][own_mask].cpu().double() for name in names}

    def _changed(self, forest: Forest) -> dict[str, str]:
        """Reference of each picture that another one is shown for -> that one's."""
        base = self._base
        assert base is not None
        rows = self._need_same(base, forest)
        pairs = torch.stack([base.token[rows], forest.token[rows]], 1).unique(dim=0).tolist()
        replacement_of = {media.ref_of(old): media.ref_of(new) for old, new in pairs}
        return {old: new for old, new in replacement_of.items() if old != new}

    def _pixel_values(self, changed: Mapping[str, str]) -> Tensor:
        """TRL's pixel_values, with other pictures."""
        pixel_values = self._output["pixel_values"]
        if not self._compared:
            recomputed = self._processed({})
            if recomputed.shape != pixel_values.shape or not torch.equal(recomputed.to(pixel_values), pixel_values):
                kind = type(self._trainer.processing_class.image_processor).__name__
                raise ConfigError(
                    f"{self._name} hides parts of the pictures, and {kind} by itself makes other pixel_values of them "
                    "than the whole processor (as of settings of the call, or pictures that are not RGB)"
                )
            self._compared = True
        return self._processed(changed).to(pixel_values)

    def _processed(self, changed: Mapping[str, str]) -> Tensor:
        image: Any = need("PIL.Image", "vision")
        pictures = [
            [image.fromarray(media.PICTURES.pixels(changed.get(ref, ref))) for ref in refs] for refs in self._refs
        ]
        return self._trainer.processing_class.image_processor(images=pictures, return_tensors="pt")["pixel_values"]


def _unread(read: Sequence[str]) -> str:
    return f"which is not given where the batch shows images: {' and '.join(read)} are"


def _ref(picture: Any, ref_by_picture: dict[Any, str]) -> str:
    """Reference of a picture; rows of a group hold copies of one, which are put once."""
    key = (picture.mode, picture.size, picture.tobytes()) if hasattr(picture, "tobytes") else None
    if key is None or not hasattr(picture, "mode"):
        return media.PICTURES.put(picture)
    if key not in ref_by_picture:
        ref_by_picture[key] = media.PICTURES.put(picture)
    return ref_by_picture[key]
