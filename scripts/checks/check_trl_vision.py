"""The TRL adapter on pictures, against TRL itself: `python scripts/checks/check_trl_vision.py --python TRL_PYTHON`.

Small models that see, of three families, on prompts with one picture and with two: optimiser steps of TRL's GRPOTrainer
and of the adapter under the same settings, losses and gradients compared, the tower's included; then methods that hide
patches of the pictures. Needs Pillow, no torchvision. Exit status 1 where a check fails.

    python scripts/checks/check_trl_vision.py --python TRL_PYTHON --only "qwen2.5-vl, twice"   # this case alone
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from check_trl import ROOT, record_steps

CLOSE = 1e-6  # relative, of losses and of gradients
STEPS = 2
TEMPLATE = (
    "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
MOVED = {"num_iterations": 2, "learning_rate": 0.05}  # a second pass over the rollouts, after steps that are felt
# name -> (family, micro-batch, TRL's settings, the adapter's method, its overrides, settings of both)
CASES: Mapping[str, tuple[str, int, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    "qwen2.5-vl": ("qwen2.5-vl", 16, {}, "grpo@trl", {}, {}),
    "qwen2.5-vl, accumulated": ("qwen2.5-vl", 4, {}, "grpo@trl", {}, {}),
    "qwen2.5-vl, twice": ("qwen2.5-vl", 8, {}, "grpo@trl", {}, MOVED),
    "qwen2.5-vl, cispo": ("qwen2.5-vl", 8, {"loss_type": "cispo"}, "cispo@trl", {}, MOVED),
    "qwen2.5-vl, sequence mean": (
        "qwen2.5-vl", 8, {"loss_type": "grpo"}, "grpo@trl", {"objective.aggregate": "sequence_mean"}, MOVED,
    ),
    "qwen2.5-vl, reference": (
        "qwen2.5-vl", 8, {"use_bias_correction_kl": False}, "grpo@trl", {"objective.kl.coef": 0.1},
        {**MOVED, "beta": 0.1},
    ),
    "llava": ("llava", 16, {}, "grpo@trl", {}, {}),
    "llava, twice in parts": ("llava", 4, {}, "grpo@trl", {}, MOVED),
    "idefics3": ("idefics3", 16, {}, "grpo@trl", {}, {}),
    "idefics3, twice in parts": ("idefics3", 4, {}, "grpo@trl", {}, MOVED),
}  # fmt: skip


# ------------------------------------------------------------ models and their processors
HEADS: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "initializer_range": 0.125}


def tokenizer(*more: str) -> Any:
    """Return gxpo's characters, and tokens of a family's own."""
    from gxpo.models.tiny import character_tokenizer

    return character_tokenizer(*more)


def language_settings(tokens: Any) -> dict[str, Any]:
    """Return the settings of the language model over a tokenizer's vocabulary."""
    return {
        **HEADS, "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": len(tokens),
        "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


def qwen() -> tuple[Any, Any]:
    """Make a Qwen2.5-VL and its processor."""
    import transformers
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as configs
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class Processor(transformers.Qwen2_5_VLProcessor):
        """Without videos, whose processor needs torchvision."""

        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    words = tokenizer("<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
             "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    tower = configs.Qwen2_5_VLVisionConfig(
        depth=2, hidden_size=64, intermediate_size=128, num_heads=4, patch_size=4, spatial_merge_size=2,
        temporal_patch_size=2, initializer_range=0.125, window_size=16, out_hidden_size=64, fullatt_block_indexes=[1],
    )  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 100.0}
    spoken = configs.Qwen2_5_VLTextConfig(**language_settings(words), rope_parameters=rope)
    ids = {name: words.convert_tokens_to_ids(token) for name, token in names.items()}
    config = transformers.Qwen2_5_VLConfig(text_config=spoken, vision_config=tower, **ids)
    pictures = Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 64, "longest_edge": 64 * 64})
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    processor = Processor(pictures, words, chat_template=TEMPLATE.replace("IMAGE", image))
    return transformers.Qwen2_5_VLForConditionalGeneration(config), processor


def llava() -> tuple[Any, Any]:
    """Make a Llava and its processor."""
    import transformers
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = tokenizer("<image>")
    tower = transformers.CLIPVisionConfig(
        **HEADS, intermediate_size=128, num_hidden_layers=2, image_size=32, patch_size=8, initializer_factor=6.25
    )
    config = transformers.LlavaConfig(
        vision_config=tower, text_config=transformers.LlamaConfig(**language_settings(words)), vision_feature_layer=-1,
        image_token_index=words.convert_tokens_to_ids("<image>"), image_seq_length=16,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.LlavaProcessor(
        pictures, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config), processor


def idefics() -> tuple[Any, Any]:
    """Make an Idefics3 and its processor, which cuts each picture into tiles."""
    import transformers
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tiles = [f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)]
    words = tokenizer("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles, "<image>")
    tower = transformers.Idefics3VisionConfig(
        **HEADS, intermediate_size=128, num_hidden_layers=2, image_size=32, patch_size=8
    )
    config = transformers.Idefics3Config(
        vision_config=tower, text_config=transformers.LlamaConfig(**language_settings(words)), scale_factor=2,
        image_token_id=words.convert_tokens_to_ids("<image>"), tie_word_embeddings=False,
    )  # fmt: skip
    pictures = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    processor = transformers.Idefics3Processor(
        pictures, words, image_seq_len=4, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    return transformers.Idefics3ForConditionalGeneration(config), processor


FAMILIES: Mapping[str, Callable[[], tuple[Any, Any]]] = {"qwen2.5-vl": qwen, "llava": llava, "idefics3": idefics}


def make_model(family: str, folder: Path) -> tuple[Any, Any]:
    """Make a model of the seed 0 in float64, its weights away from their first zeros and ones, and its processor.

    From a directory: TRL loads the reference model by its name.
    """
    import transformers

    torch.manual_seed(0)
    model, processor = FAMILIES[family]()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    model.save_pretrained(folder / family)
    processor.tokenizer.padding_side = "left"
    return transformers.AutoModelForImageTextToText.from_pretrained(folder / family, dtype=torch.float64), processor


# ------------------------------------------------------------ steps
def value(completion_ids: Any, **columns: Any) -> list[float]:
    """Reward that differs within groups and says nothing, in eighths: TRL holds it and its means in float32."""
    return [sum(ids) % 8 / 8 for ids in completion_ids]


def prompts() -> list[dict[str, Any]]:
    """Make questions about pictures of noise: two of each third prompt, one of the others."""
    from PIL import Image

    generator, rows = np.random.default_rng(0), []
    for i in range(64):
        pixels = generator.integers(0, 256, (1 + (i % 3 == 0), 40 + 8 * (i % 2), 32, 3), dtype=np.uint8)
        rows.append({
            "prompt": [{"role": "user", "content": f"{'ab'[i % 2]}{i % 10}?"}],
            "images": [Image.fromarray(x) for x in pixels],
        })  # fmt: skip
    return rows


def steps_of(trainer: Any, family: str, micro: int, folder: str, *, steps: int = STEPS, **options: Any) -> list[Any]:
    """Train on pictures; return (loss, flat gradient, trainer) of each optimiser step. `method` and `overrides` go to
    the trainer."""
    model, processor = make_model(family, Path(folder))
    picture_counts = set[int]()

    def watch(run: Any) -> None:
        picture_counts.update(*(batch["num_images"] for batch in run._buffered_inputs))

    settings = {"output_dir": f"{folder}/out", "max_steps": steps, "learning_rate": 0.01, **options}
    records = record_steps(trainer, model, processor, prompts(), value, micro, watch=watch, **settings)
    assert picture_counts == {1, 2}, picture_counts
    return records


def against_trl(case: str, folder: str) -> list[dict[str, float]]:
    """Return a row for each optimiser step: relative differences of loss and gradient, and the gradient's norm."""
    import trl

    from gxpo.adapters.trl import GRPOTrainer

    family, micro, theirs, method, overrides, both = CASES[case]
    steps = STEPS * both.get("num_iterations", 1)
    our_steps = steps_of(GRPOTrainer, family, micro, folder, steps=steps, method=method, overrides=overrides, **both)
    their_steps = steps_of(trl.GRPOTrainer, family, micro, folder, steps=steps, **theirs, **both)
    rows = []
    for (loss, gradient, _), (expected, slope, _) in zip(our_steps, their_steps, strict=True):
        rows.append({
            "loss": abs(loss - expected) / max(abs(expected), 0.1),
            "gradient": float((gradient - slope).norm() / slope.norm().clamp_min(0.01)),
            "norm": float(slope.norm()),
        })  # fmt: skip
    return rows


def masked_logprobs(family: str, steps: list[Any], rows: list[Any]) -> float:
    """Return the largest difference (nats) of papo's log-probs with patches hidden from those of transformers: each
    rollout by itself, unpadded, its pictures put through the whole processor.

    steps  of `steps_of`, the first of which is checked;   rows  of its generation batch
    """
    from PIL import Image

    from gxpo.algorithms.signals.masked_observation import masked_picture
    from gxpo.base import media

    model, processor = make_model(family, Path(steps[0][2].args.output_dir).parent)
    scored, worst = steps[0][2]._batch_by_mode["train"], 0.0
    assert scored.step == 1 and scored.forest.n_trajectories == len(rows)
    for index, row in enumerate(rows):
        keys = [media.key_of(media.PICTURES.put(x)) for x in row["images"]]
        hidden = [
            masked_picture(np.asarray(x), (14, 14), 0.6, "black", steps[0][2].args.seed, 1, key)
            for x, key in zip(row["images"], keys, strict=True)
        ]
        parts = [*({"type": "image", "image": Image.fromarray(x)} for x in hidden),
                 {"type": "text", "text": row["prompt"][0]["content"]}]  # fmt: skip
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=True, return_dict=True, return_tensors="pt"
        )
        action = torch.tensor([scored.forest.action(index)])
        for name, tail in (
            ("input_ids", action),
            ("attention_mask", action * 0 + 1),
            ("mm_token_type_ids", action * 0),
        ):
            if name in inputs:
                inputs[name] = torch.cat([inputs[name], tail], 1)
        with torch.no_grad():
            logits = model(**inputs).logits[0, -action.numel() - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, action[0][:, None]).squeeze(1)
        mine = scored.signals["masked_logprob"][scored.forest.entries_of(torch.tensor([index]))]
        worst = max(worst, float((mine - expected).abs().max()))
    return worst


def hidden_patches(family: str, folder: str) -> dict[str, float]:
    """Check papo's first step: `masked_logprobs`, and the relative difference of its gradient in one and in four
    micro-batches, and from grpo's."""
    from gxpo.adapters.trl import GRPOTrainer

    rows: list[Any] = []

    class RecordingTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            rows.extend(inputs)
            return super()._generate_and_score_completions(inputs)

    steps = steps_of(RecordingTrainer, family, 16, folder, steps=1, method="papo")
    parts_gradient = steps_of(GRPOTrainer, family, 4, folder, steps=1, method="papo")[0][1]
    plain_gradient = steps_of(GRPOTrainer, family, 16, folder, steps=1, method="grpo")[0][1]
    gradient = steps[0][1]
    return {
        "log-probs": masked_logprobs(family, steps, rows),
        "in parts": float((parts_gradient - gradient).norm() / gradient.norm()),
        "from grpo": float((plain_gradient - gradient).norm() / gradient.norm()),
    }


def checks(only: list[str], folder: str) -> bool:
    import trl

    from gxpo.adapters.trl import TESTED

    print(f"TRL {trl.__version__} (the adapter was written for {TESTED}), torch {torch.__version__}")
    good = True
    for case in only or CASES:
        rows = against_trl(case, folder)
        loss, gradient = (max(row[k] for row in rows) for k in ("loss", "gradient"))
        right = max(loss, gradient) < CLOSE and min(row["norm"] for row in rows) > 1e-3
        good &= right
        norms = ", ".join(f"{row['norm']:.3f}" for row in rows)
        figures = f"loss {loss:.1e}, gradient {gradient:.1e} (norms {norms})"
        print(f"{'ok  ' if right else 'FAIL'} {case}: {figures}", flush=True)
    for family in () if only else FAMILIES:
        gaps = hidden_patches(family, folder)
        right = max(gaps["log-probs"], gaps["in parts"]) < CLOSE < 1e-3 < gaps["from grpo"]
        good &= right
        figures = ", ".join(f"{name} {x:.1e}" for name, x in gaps.items())
        print(f"{'ok  ' if right else 'FAIL'} {family}, papo hides patches: {figures}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has TRL (default: this one)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=[], metavar="CASE", help="these comparisons alone")
    arguments = parser.parse_args()
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        surroundings = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        only = ["--only", *arguments.only] if arguments.only else []
        return subprocess.run([arguments.python, __file__, *only], env=surroundings).returncode
    with tempfile.TemporaryDirectory() as folder:
        return 0 if checks(arguments.only, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
