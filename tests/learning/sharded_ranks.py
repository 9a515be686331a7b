"""What each rank does in the tests of sharded learners; alone and unsharded, it gives the standard."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests import strategies
from tests.learning.llamas import VOCABULARY, clean_llama, small_llama
from tests.learning.test_base import NAMES, losses
from torch import nn

from gxpo.base import runtime
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.optimiser_kinds import Rule
from gxpo.learning.sharded import ShardedLearner, whole_tensor
from gxpo.learning.torch import TorchLearner

LORA = {"lora": LoraSettings(rank=4, targets=("q_proj", "down_proj"))}
KINDS: dict[
    str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]
] = {  # name -> model, its settings, learner's
    "decoder": (clean_llama, {}, {}),
    "transformers": (clean_llama, {}, {"kernels": "transformers"}),
    "flat": (clean_llama, {}, {"kernels": "transformers", "layout": "flat"}),
    "recompute": (clean_llama, {}, {"recompute": True}),
    "recompute-transformers": (clean_llama, {}, {"recompute": True, "kernels": "transformers"}),
    "tied": (clean_llama, {"tie_word_embeddings": True}, {}),
    "lora": (clean_llama, {}, LORA),
    "value": (clean_llama, {}, {"value_heads": ("value",)}),
    "policies": (clean_llama, {}, {**LORA, "policies": {"main": "trained", "other": "trained"}}),
    "norm": (clean_llama, {}, {"optimiser": "lion", "rule": Rule("norm")}),
    "cautious": (clean_llama, {}, {"rule": Rule(caution="mean_floor")}),
    "igt": (clean_llama, {}, {"optimiser": "igt"}),
    "bfloat16": (small_llama, {}, {"dtype": "bfloat16", "products": "native"}),
    "float32": (small_llama, {}, {}),
    "float32-transformers": (small_llama, {}, {"kernels": "transformers"}),
}


def some_forest() -> Forest:
    """Three groups, whose rows make three micro-batches, of actions of two policies."""
    return strategies.random_forest(8, vocab=VOCABULARY, groups=3, max_turns=3, empty_prompts=False)


def learner(kind: str, *, sharded: bool, **more: Any) -> TorchLearner:
    make, model, settings = KINDS[kind]
    learner_class, policy = ShardedLearner if sharded else TorchLearner, make(**model)
    loaded = {p.data_ptr() for p in policy.parameters()}
    learner_object = learner_class(
        policy, **{"lr": 0.01, "tokens_per_microbatch": 12, "reference": True, **settings, **more}
    )
    if sharded and "dtype" not in settings:  # samplers have the model that was loaded, and there is no second one
        assert loaded <= {p.data_ptr() for p in learner_object.samples.parameters()}
        whole_models = [x for x in gc.get_objects() if isinstance(x, nn.Parameter) and x.data_ptr() in loaded]
        assert len(whole_models) == len(loaded)
    return learner_object


def work(folder: Path, sharded: bool, kinds: list[str]) -> None:
    out, notes = {}, {}
    forest = some_forest()
    credit = torch.linspace(-1, 1, forest.n_entries, dtype=torch.float64)
    for kind in kinds:
        own_learner = learner(kind, sharded=sharded)
        names = (*NAMES, *own_learner.value_heads)
        x = own_learner.outputs(forest, names)
        out |= {f"{kind}/outputs/{n}": v for n, v in x.items()}
        noise = torch.randn(forest.n_entries, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        several = losses(forest, x["logprob"] + 0.01 * noise, credit)
        for couples, loss in several.items():
            for name, g in own_learner.gradient(forest, loss, names=names, couples=couples).items():
                out[f"{kind}/{couples}/{name}"] = whole_tensor(g)
        for couples, loss in several.items():
            info = own_learner.step(forest, loss, names=names, couples=couples)
            notes[f"{kind}/{couples}"] = {"microbatches": info.microbatches, "loss": info.loss, "norm": info.grad_norm}
        out[f"{kind}/reference/logprob"] = own_learner.outputs(forest, policy="reference")["logprob"]
        if len(own_learner.policies) == 1:
            out[f"{kind}/hidden/states"] = own_learner.hidden(forest)
            out[f"{kind}/hidden/logits"] = own_learner.logits(own_learner.hidden(forest)[:3]).cpu()
        before = {n: whole_tensor(p).clone() for n, p in own_learner.snapshot().items()}
        out |= {f"{kind}/after/{n}": v for n, v in before.items()}
        far = torch.ones(forest.n_entries, dtype=torch.float64)
        far[-1] = torch.inf  # in one micro-batch
        skipped = own_learner.step(forest, lambda x, far=far: (far * x["logprob"]).sum()).nonfinite
        assert skipped and all(torch.equal(whole_tensor(p), before[n]) for n, p in own_learner.snapshot().items()), kind
        own_learner.publish()
        copy = dict(own_learner.samples.named_parameters())
        assert all(torch.equal(copy[n], before[n].to(copy[n])) for n in before if n in copy), kind
        if isinstance(own_learner, ShardedLearner):
            sharded_parameters = {
                n: p for n, p in own_learner.optimiser.parameter_by_name.items() if hasattr(p, "to_local")
            }
            share_of_rank = sum(p.to_local().numel() for p in sharded_parameters.values()) / sum(
                p.numel() for p in sharded_parameters.values()
            )
            notes[kind] = {"share": share_of_rank, **own_learner.checksum()}
            own_learner.save(folder / f"saved-{kind}")
            notes[kind] |= going_on(own_learner)
    save_file({k: v.contiguous() for k, v in out.items()}, folder / f"world{runtime.world()}rank{runtime.rank()}")
    (folder / f"world{runtime.world()}rank{runtime.rank()}.json").write_text(json.dumps(notes))


def going_on(own: TorchLearner) -> dict[str, Any]:
    """A step more, and where it leads."""
    forest = some_forest()
    info = own.step(forest, lambda x: x["logprob"].square().mean())
    return {"norm": info.grad_norm, "after": own.outputs(forest)["logprob"].tolist()}


def load(folder: Path, kind: str) -> None:
    """Load what `work` saved, by as many processes as there are, and say what is there; then the same step again."""
    own_learner = learner(kind, sharded=True)
    own_learner.load(folder / f"saved-{kind}", {"steps": 4})
    note = {**own_learner.checksum(), **going_on(own_learner)}
    (folder / f"loaded{runtime.world()}rank{runtime.rank()}.json").write_text(json.dumps(note))


def main() -> None:
    torch.set_num_threads(1)
    runtime.start(group_of_one=True)
    what, folder, *kinds = sys.argv[2], Path(sys.argv[1]), *sys.argv[3:]
    if what == "load":
        load(folder, kinds[0])
    else:
        work(folder, True, kinds)


if __name__ == "__main__":
    main()
