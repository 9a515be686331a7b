"""Pictures in prompts for vLLM: one placeholder id for each picture, with its pixels sent beside the prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gxpo.base import media
from gxpo.base.errors import ModelError

if TYPE_CHECKING:
    from gxpo.models.decoder.vision import Vision

PROBE = (61, 90)  # height and width, in pixels, of a picture that both sides read once
MOST = 64  # pictures in one prompt
ARGUMENTS = {  # of vllm.LLM
    "limit_mm_per_prompt": {"image": MOST, "video": 0},
    "mm_processor_kwargs": {"use_fast": False},  # scale by Pillow, as the learner; torchvision's pixels are others
    "mm_device_do_normalize": False,  # what vLLM takes over from torchvision's processors, and from Pillow's wrongly
}
Arrays = dict[str, np.ndarray]


def custom_processor(vision: Vision) -> str | None:
    """Name of gxpo's own picture processor, which vLLM does not have; None: it is one of transformers."""
    return None if hasattr(vision.processor, "save_pretrained") else type(vision.processor).__name__


def collapse(prompt: Sequence[int], vision: Vision) -> tuple[list[int], tuple[str, ...]]:
    """Collapse each picture's rows, and the ids that its processor writes around them, to one placeholder.

    Returns the prompt and the references of its pictures in order. `ModelError` if those ids are missing around a
    picture, or if the text holds a placeholder of its own.
    """
    before, after = vision.around
    ids, refs, end = list[int](), list[str](), 0
    # vLLM's processor writes the surrounding ids again: kept here they would stand in the prompt twice.
    for run in media.runs(prompt):
        start, stop = run.first - len(before), run.first + run.n
        if start < end or (*prompt[start : run.first],) != before or (*prompt[stop : stop + len(after)],) != after:
            raise ModelError(
                f"a request shows {media.label(run.ref)} without the ids {[*before, *after]} around its rows, which "
                "vLLM's processor writes: make its messages with the model's own chat template"
            )
        ids += [*prompt[end:start], vision.placeholder]
        end = stop + len(after)
        refs.append(run.ref)
    ids += prompt[end:]
    if refs and ids.count(vision.placeholder) != len(refs):
        raise ModelError(
            f"a request shows {len(refs)} pictures and has the placeholder {vision.placeholder} in its text too, where "
            "vLLM would look for another: take it out of the text"
        )
    return ids, tuple(refs)


def expand(prompt: Sequence[int], vision: Vision) -> list[int]:
    """Prompt with the placeholder for every row of a picture, as vLLM must have read it."""
    return [vision.placeholder if media.is_row(token) else token for token in prompt]


def message(prompts: Sequence[Sequence[int]], vision: Vision) -> tuple[dict[str, Any], Arrays]:
    """Build header and arrays of a message with prompts, some of which show pictures.

    pictures  [reference, height, width] of each distinct picture;   pixels  theirs, uint8, concatenated
    shown     [prompt, numbers of its pictures in order] of each prompt with pictures
    tokens, lengths  the collapsed prompts;   expanded, expanded_lengths  the ids that vLLM must read for `shown`
    """
    plain = [collapse(prompt, vision) for prompt in prompts]
    number = {ref: i for i, ref in enumerate(dict.fromkeys(ref for _, refs in plain for ref in refs))}
    pixels = [media.PICTURES.pixels(ref) for ref in number]
    refs_by_request = [(i, refs) for i, (_, refs) in enumerate(plain) if refs]
    expanded_prompts = [expand(prompts[i], vision) for i, _ in refs_by_request]
    header = {
        "pictures": [[ref, *x.shape[:2]] for ref, x in zip(number, pixels, strict=True)],
        "shown": [[i, [number[ref] for ref in refs]] for i, refs in refs_by_request],
    }
    return header, {
        **_join("", [ids for ids, _ in plain]),
        **_join("expanded_", expanded_prompts),
        "pixels": np.concatenate([x.reshape(-1) for x in pixels]),
    }


def _join(prefix: str, rows: Sequence[Sequence[int]]) -> Arrays:
    """Concatenate rows of ids; return them with their lengths."""
    name = prefix.removesuffix("_") or "tokens"
    return {
        name: np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]),
        f"{prefix}lengths": np.asarray([len(row) for row in rows], dtype=np.int32),
    }


def probe(vision: Vision, ids: Sequence[int]) -> list[int]:
    """Build a probe prompt: text around a picture whose size every processor has to change."""
    noise = np.random.default_rng(0).integers(0, 256, (*PROBE, 3))
    ramp = np.linspace(0, 255, PROBE[1])[None, :, None]
    ref = media.PICTURES.put(((noise + 3 * ramp) / 4).astype(np.uint8))
    text = [i for i in ids if i not in vision.banned_ids]
    return [*text[: len(text) // 2], *vision.ids(ref), *text[len(text) // 2 :]]


def describe(vision: Vision, config: Any, folder: Path) -> None:
    """Write the configuration files from which vLLM builds the model's picture processor."""
    processor: Any = vision.processor
    processor.save_pretrained(folder)
    preprocessor_config = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    name = _PROCESSORS[config.model_type]
    preprocessor_config["processor_class"] = name
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor_config), encoding="utf-8")
    processor_config: dict[str, Any] = {"processor_class": name}
    # The ids that stand for a picture depend on the type of model.
    tower = config.vision_config
    if config.model_type == "llava":
        processor_config |= {
            "patch_size": tower.patch_size,
            "vision_feature_select_strategy": config.vision_feature_select_strategy,
            "num_additional_image_tokens": int(tower.model_type == "clip_vision_model"),
        }
    elif config.model_type in ("idefics3", "smolvlm"):
        processor_config["image_seq_len"] = math.prod(vision.processor.grid(*PROBE))  # of a picture that is not split
    (folder / "processor_config.json").write_text(json.dumps(processor_config), encoding="utf-8")


_PROCESSORS = {  # by type of model
    "llava": "LlavaProcessor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "SmolVLMProcessor",
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
}
