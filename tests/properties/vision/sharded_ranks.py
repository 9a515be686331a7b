"""What each rank does in the test of sharded models that see; alone and unsharded, it gives the standard."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from tests.properties.vision.families import MODELS, exact, exact_rotary
from tests.properties.vision.test_learner import episodes, forest_of, weight

from gxpo.base import runtime
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.sharded import ShardedLearner, whole_tensor
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.vision import vision_of

# trajectories of each micro-batch, which go to the two ranks in turn: 0 shows two pictures, 1, 2 three, 3 one, others
# none. "mixed": the second rank has a picture, then both, then none; "odd": the last micro-batch has no counterpart
CASES = {"mixed": ([4], [0], [1, 2], [3], [5], [6]), "odd": ([4], [3], [0, 1, 2]), "none": ([4], [5])}
KINDS: dict[str, dict[str, Any]] = {
    "llava": {},
    "llava/transformers": {"kernels": "transformers"},
    "llava/frozen": {},
    "llava/lora": {"lora": LoraSettings(rank=2)},
    "llava/recompute": {"recompute": True, "kernels": "transformers"},
    "idefics3": {},
    "qwen2.5-vl": {},
    "qwen3-vl": {},
    "qwen3-vl/transformers": {"kernels": "transformers"},
}


def model(kind: str) -> Any:
    exact_model = exact(MODELS[kind.partition("/")[0]]())
    vision = vision_of(exact_model)
    assert vision is not None
    vision.at_once = 2  # three pictures are two runs of the tower, one picture is one
    if kind.endswith("frozen"):
        vision.freeze()
    return exact_model


def forest_for(case: str, made: Any) -> tuple[Forest, list[torch.Tensor]]:
    """The forest of a case, and the action tokens of its micro-batches."""
    plain = [[([1, 7, 8, 30, 31 + n], False), ([25, 26], True)] for n in range(2)]
    actual, cuts = [*episodes(made), *plain], CASES[case]
    kept_cuts = sorted(t for cut in cuts for t in cut)
    forest = forest_of([actual[t] for t in kept_cuts])
    rows = [torch.tensor([kept_cuts.index(t) for t in cut]) for cut in cuts]
    return forest, [torch.isin(forest.path_trajectory, r).nonzero().squeeze(1) for r in rows]


def work(folder: Path, sharded: bool, kinds: list[str], cases: list[str]) -> None:
    out = {}
    for kind in kinds:
        vision_model = model(kind)
        learner = (ShardedLearner if sharded else TorchLearner)(vision_model, lr=0.01, reference=True, **KINDS[kind])
        for case in cases:
            forest, cuts = forest_for(case, vision_model)
            w = weight(forest.n_entries)
            loss = lambda x, w=w: (x["logprob"] * w).sum()  # noqa: E731
            out[f"{kind}/{case}/logprob"] = learner.outputs(forest)["logprob"]
            for name, g in learner.gradient(forest, loss, cuts=cuts).items():
                out[f"{kind}/{case}/gradient/{name}"] = whole_tensor(g)
            info = learner.step(forest, loss, cuts=cuts)
            out[f"{kind}/{case}/info"] = torch.tensor([info.microbatches, info.loss, info.grad_norm]).double()
        out[f"{kind}/reference"] = learner.outputs(forest, policy="reference")["logprob"]
        learner.publish()
        samples = vision_of(learner.samples)
        assert samples is not None and samples.runs is None
        out |= {f"{kind}/sampled/{n}": p.detach() for n, p in learner.samples.named_parameters()}
    file = f"world{runtime.world()}rank{runtime.rank()}"
    save_file({k: v.contiguous() for k, v in out.items()}, folder / file)


def main() -> None:
    torch.set_num_threads(1)
    runtime.start(group_of_one=True)
    exact_rotary(SimpleNamespace(setattr=setattr))
    kinds, cases = (x.split(",") for x in sys.argv[2:])
    work(Path(sys.argv[1]), True, kinds, cases)


if __name__ == "__main__":
    main()
