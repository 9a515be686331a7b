"""The worker's program with a package `vllm` that is a small loop over transformers: `fake_vllm.py WORKER LINE PARENT`.

What it lacks of vLLM is speed, and the cache. It shows what it was given where vLLM would not: `num_cached_tokens` of a
request is 1 if its cache salt was seen before. Pictures are read as vLLM 0.32 was seen to: a placeholder becomes the
rows of its picture and what the processor writes around, weights have the names of checkpoints, and what the tower made
of a picture is found again by the picture's name, so a name that outlives an update is an error.
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any


class SamplingParams:
    def __init__(
        self, *, temperature=1.0, top_k=0, top_p=1.0, max_tokens=16, seed=None, stop_token_ids=(), stop=(),
        ignore_eos=False, logprobs=None, prompt_logprobs=None, include_stop_str_in_output=False,
        skip_special_tokens=True, detokenize=True, logit_bias=None,
    ) -> None:  # fmt: skip
        assert ignore_eos and (include_stop_str_in_output or prompt_logprobs is not None)
        assert detokenize == bool(stop)
        self.__dict__.update({k: v for k, v in locals().items() if k != "self"})


class EngineArgs:
    """What the program asks which arguments there are."""

    def __init__(self, *, mm_device_do_normalize: bool | None = None) -> None: ...


FORMS = {  # of names: those of checkpoints, as vLLM takes them, and those of modules
    "llava": (
        ("language_model.lm_head.", "lm_head."), ("language_model.model.", "model.language_model."),
        ("vision_tower.vision_model.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    ),
    "qwen2_5_vl": (("visual.", "model.visual."), ("model.", "model.language_model.")),
    "smolvlm": (("model.", "model."),),
}  # fmt: skip


class Eyes:
    """What vLLM makes of a prompt's pictures: rows in the place of placeholders, and arguments of the model."""

    def __init__(self, folder: str, config: Any, tokenizer: Any, given: dict[str, Any]) -> None:
        import json
        from pathlib import Path

        from transformers import AutoImageProcessor

        assert given["mm_processor_kwargs"] == {"use_fast": False} and given["mm_device_do_normalize"] is False
        assert given["limit_mm_per_prompt"]["video"] == 0
        messages = json.loads((Path(folder) / "processor_config.json").read_text())
        self.config, self.kind = config, config.model_type
        self.processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.id, self.loads, self.named = config.image_token_id, 0, dict[str, int]()
        self.fixed = (
            messages.get("image_seq_len")
            or (getattr(config.vision_config, "image_size", 0) // messages.get("patch_size", 1)) ** 2
        )
        around = ["<fake_token_around_image>", "<global-img>"] if self.kind == "smolvlm" else []
        self.before = tokenizer.convert_tokens_to_ids(around)

    def read(self, prompt: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        import numpy as np
        import torch

        ids, images = prompt["prompt_token_ids"], prompt.get("multi_modal_data", {}).get("image", [])
        if not images:
            return list(ids), {}
        if ids.count(self.id) != len(images):
            raise ValueError(f"found {ids.count(self.id)} placeholders for {len(images)} images")
        for name in prompt["multi_modal_uuids"]["image"]:
            if self.named.setdefault(name, self.loads) != self.loads:
                raise RuntimeError(f"rows of {name} are of old weights")
        processors = [
            dict(self.processor(images=[np.asarray(i)], return_tensors="pt", input_data_format="channels_last"))
            for i in images
        ]
        out, left = [], list(processors)
        for token in ids:
            out += self._rows(left.pop(0)) if token == self.id else [token]
        several = self.kind == "smolvlm"  # the pictures of one text
        extra = {name: torch.cat([x[name] for x in processors], int(several)) for name in processors[0]}
        return out, extra

    def _rows(self, given: dict[str, Any]) -> list[int]:
        merged = getattr(self.config.vision_config, "spatial_merge_size", 1) ** 2
        n = int(given["image_grid_thw"].prod()) // merged if "image_grid_thw" in given else self.fixed
        return [*self.before, *[self.id] * n, *self.before[:1]]


class LLM:
    def __init__(self, *, model: str, dtype: str, max_logprobs: int, logprobs_mode: str, load_format: str, **_: Any):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

        assert (logprobs_mode, load_format) == ("processed_logprobs", "dummy")
        torch.set_num_threads(1)
        torch.manual_seed(123)
        config = AutoConfig.from_pretrained(model)
        sees = hasattr(config, "vision_config")
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        self.model = kind.from_config(config).to(getattr(torch, dtype)).eval()
        self.tokenizer = None if _["skip_tokenizer_init"] else AutoTokenizer.from_pretrained(model)
        self.eyes = Eyes(model, config, self.tokenizer, _) if sees else None
        self.most, self.seen = max_logprobs, set()
        self.model.load_weights = self._load
        runner = SimpleNamespace(model=self.model)
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        )

    def _load(self, weights: Any) -> None:
        parameters = dict(self.model.named_parameters())
        forms = () if self.eyes is None else FORMS[self.eyes.kind]
        if self.eyes is not None:
            self.eyes.loads += 1
        for name, x in weights:
            form = next(((a, b) for a, b in forms if name.startswith(a)), ("", ""))
            parameters[form[1] + name.removeprefix(form[0])].copy_(x)

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(self, prompts: list[dict[str, Any]], params: Any, *, use_tqdm: bool) -> list[Any]:
        import torch

        each = params if isinstance(params, list) else [params] * len(prompts)
        with torch.no_grad():
            return [self._one(prompt, p) for prompt, p in zip(prompts, each, strict=True)]

    def _one(self, prompt: dict[str, Any], p: SamplingParams) -> Any:
        import torch

        eyes = getattr(self, "eyes", None)
        ids, extra = (list(prompt["prompt_token_ids"]), {}) if eyes is None else eyes.read(prompt)
        salt = prompt.get("cache_salt")
        cached = int(salt in self.seen)
        self.seen.add(salt)
        logits = self._forward(ids, extra)
        read = logits.log_softmax(-1)
        before = [None, *({ids[i]: SimpleNamespace(logprob=float(read[i - 1, ids[i]]))} for i in range(1, len(ids)))]
        drawn_tokens, actual, finish = [], [], "length"
        seed = torch.Generator().manual_seed(p.seed if p.seed is not None else 0)
        while len(drawn_tokens) < p.max_tokens and finish == "length":
            logits = self._forward(ids + drawn_tokens, extra)[-1]
            for token, bias in (p.logit_bias or {}).items():
                logits[token] += bias
            logprob = self._processed(logits, p)
            token = (
                int(logits.argmax()) if p.temperature == 0 else int(torch.multinomial(logprob.exp(), 1, generator=seed))
            )
            drawn_tokens.append(token)
            top = logprob.topk(min(p.logprobs or 0, logprob.numel())).indices.tolist()
            actual.append({t: SimpleNamespace(logprob=float(logprob[t])) for t in (token, *top)})
            text = self.tokenizer.decode(drawn_tokens) if p.stop else ""
            finish = "stop" if token in p.stop_token_ids or any(s in text for s in p.stop) else "length"
        out = SimpleNamespace(token_ids=drawn_tokens, logprobs=actual, finish_reason=finish)
        return SimpleNamespace(outputs=[out], num_cached_tokens=cached, prompt_token_ids=ids, prompt_logprobs=before)

    def _forward(self, ids: list[int], extra: dict[str, Any]) -> Any:
        """Logits [n, V]; `extra`: of pictures."""
        import torch

        if hasattr(self.model.base_model, "rope_deltas"):
            self.model.base_model.rope_deltas = None  # of the prompt before
        if "image_grid_thw" in extra:
            kinds = torch.tensor([[int(i == self.eyes.id) for i in ids]], dtype=torch.int32)
            extra = {**extra, "mm_token_type_ids": kinds}
        return self.model(input_ids=torch.tensor([ids]), use_cache=False, **extra).logits[0].float()

    def _processed(self, logits: Any, p: SamplingParams) -> Any:
        """By sorting, with loops: not as the source or vLLM does it."""
        import torch

        x = (logits / p.temperature if p.temperature else logits).tolist()
        order = sorted(range(len(x)), key=lambda i: -x[i])
        allowed = order[: p.top_k] if p.top_k else order
        total = torch.tensor([x[i] for i in allowed]).softmax(0).tolist()
        kept_values, reached = [], 0.0
        for i, mass in zip(allowed, total, strict=True):
            if reached >= p.top_p:
                break
            kept_values.append(i)
            reached += mass
        mask = torch.full_like(logits, -torch.inf)
        mask[kept_values] = torch.tensor([x[i] for i in kept_values])
        return mask.log_softmax(-1)


if __name__ == "__main__":
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__version__ = LLM, SamplingParams, "fake"
    arguments = ModuleType("vllm.engine.arg_utils")
    arguments.EngineArgs = EngineArgs
    sys.modules.update({"vllm": module, "vllm.engine": ModuleType("vllm.engine"), arguments.__name__: arguments})
    runpy.run_path(sys.argv[1], run_name="__main__")
