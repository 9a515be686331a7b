"""Compare preference losses with TRL's trainers: `check_trl_preferences.py --python TRL_PYTHON`.

A file of pairs is read by rollout `logged` and by TRL's DPOTrainer (sigmoid, hinge, IPO), CPOTrainer (SimPO),
KTOTrainer and ORPOTrainer, each with its own tokenization; the policy is one small model, the reference another.
Compared are the loss of the whole file and its gradient; of ORPO the odds-ratio part, since TRL's likelihood is over
the prompt too; of KTO `apo_zero_unpaired`, whose reference point is 0, since TRL measures it on answers of other
prompts. Exit status 1 where a check fails.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
CLOSE = 1e-5  # relative, of losses and of gradients
PAIRS = [("12+34=", "#46", "#4"), ("7+8=", "5+8=13#15", "#16"), ("90+9=", "#99", "9+9=18#1"), ("5+50=", "#55", "#5")]
# name -> (TRL's trainer, its settings, our method, its keys)
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "dpo": ("trl:DPO", {"beta": 0.3}, "dpo", {"objective.beta": 0.3}),
    "hinge": (
        "trl:DPO",
        {"beta": 0.3, "loss_type": ["hinge"]},
        "dpo",
        {"objective.beta": 0.3, "objective.form": "hinge"},
    ),
    "ipo": (
        "trl:DPO",
        {"beta": 0.3, "loss_type": ["ipo"]},
        "ipo",
        {"objective.beta": 0.3, "objective.length_mean": True},
    ),
    "simpo": (
        "trl.experimental.cpo:CPO",
        {"beta": 2.0, "loss_type": "simpo", "simpo_gamma": 0.5, "cpo_alpha": 0.0},
        "simpo",
        {},
    ),
    "kto, reference point 0": (
        "trl:KTO",
        {"beta": 0.3, "loss_type": "apo_zero_unpaired"},
        "kto",
        {"objective.beta": 0.3, "objective.unpaired_against": "zero"},
    ),
    "orpo, odds ratio": (
        "trl.experimental.orpo:ORPO",
        {"beta": 1.0},
        "orpo",
        {"objective.nll": 0.0, "objective.pair_weight": 1.0},
    ),
}


def save_models(folder: Path) -> list[str]:
    """Save a policy and a reference, small and unlike."""
    from gxpo.models.tiny import tiny_model
    from gxpo.training import models

    tokenizer = models.load("tiny:cold", task="arithmetic", dtype="float32").tokenizer
    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    for seed in (1, 2):
        tiny_model(seed=seed, num_key_value_heads=2, **small).save_pretrained(folder / str(seed))
        tokenizer.save_pretrained(folder / str(seed))
    return [str(folder / str(seed)) for seed in (1, 2)]


def load(path: str) -> tuple[Any, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model, transformers.AutoTokenizer.from_pretrained(path)


def our_loss(paths: list[str], method: str, keys: dict[str, Any], folder: Path) -> tuple[float, torch.Tensor]:
    """Return the loss of the file under our method, and its gradient, parameters in the order of their names."""
    import gxpo
    from gxpo.environments.tasks.file import read_tasks
    from gxpo.learning.torch import TorchLearner
    from gxpo.parts.protocols import PolicyTokens, Sampling
    from gxpo.sampling.rollouts.logged import Logged
    from gxpo.training.session import Session

    file = folder / "pairs.jsonl"
    rows = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in PAIRS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (policy, tokenizer), (reference, _) = map(load, paths)
    tasks: Any = read_tasks(file)
    unused: Any = {"source": None, "engine": None, "rewards": None}
    session = Session(**unused, tokenizer=tokenizer, sampling=Sampling(), seed=0, step=1)
    forest = Logged().grow(tasks, session)
    reference_logprob = TorchLearner(reference, lr=0.0).outputs(forest)["logprob"]
    m, learner, zeros = gxpo.method(method, keys), TorchLearner(policy, lr=0.0), torch.zeros(forest.n_entries)
    weight, values = torch.ones(forest.n_entries, dtype=torch.float64), []

    def loss(x: Any) -> torch.Tensor:
        policy_tokens = PolicyTokens(x["logprob"], forest.path_behaviour_logprob, reference_logprob)
        values.append(m.objective(forest, policy_tokens, zeros, weight, {}))
        return values[-1]

    cut = [torch.arange(forest.n_entries)]
    gradient = learner.gradient(
        forest, loss, names=("logprob",), couples="step", active=weight > 0, cuts=cut, two_pass=False
    )
    return float(values[0].detach()), torch.cat([gradient[name].reshape(-1) for name in sorted(gradient)])


def their_loss(
    paths: list[str], name: str, settings: dict[str, Any], folder: Path
) -> tuple[float, torch.Tensor | None]:
    """Return loss and gradient of TRL's trainer on all rows at once; of ORPO the odds ratio's loss alone."""
    import importlib

    import datasets

    module, _, kind = name.partition(":")
    library = importlib.import_module(module)
    (policy, tokenizer), (reference, _) = map(load, paths)
    rows: list[dict[str, Any]] = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in PAIRS]
    if kind == "KTO":
        labelled = ((q, answer, good) for q, a, b in PAIRS for answer, good in ((a, True), (b, False)))
        rows = [{"prompt": q, "completion": answer, "label": good} for q, answer, good in labelled]
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": len(rows), "max_steps": 1,
        "learning_rate": 0.0,
        "optim": "sgd", "lr_scheduler_type": "constant", "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "max_grad_norm": 0.0, "logging_steps": 1,
        **settings,
    }  # fmt: skip
    with_reference = {"ref_model": reference} if kind in ("DPO", "KTO") else {}
    records: list[tuple[float, torch.Tensor]] = []
    base: Any = getattr(library, f"{kind}Trainer")

    class RecordingTrainer(base):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            named_grads = sorted((n, p.grad) for n, p in policy.named_parameters() if p.grad is not None)
            records.append((float(loss), torch.cat([copy.copy(g).reshape(-1) for _, g in named_grads])))
            return loss

    trainer = RecordingTrainer(
        model=policy, args=getattr(library, f"{kind}Config")(**arguments), processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(rows), **with_reference,
    )  # fmt: skip
    trainer.train()
    if kind == "ORPO":
        return -next(row["log_odds_ratio"] for row in trainer.state.log_history if "log_odds_ratio" in row), None
    return records[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has TRL (default: this one)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    arguments = parser.parse_args()
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        surroundings = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return subprocess.run([arguments.python, __file__, "--only", *arguments.only], env=surroundings).returncode
    import trl

    print(f"TRL {trl.__version__}, torch {torch.__version__}")
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model_paths = save_models(folder)
        for case in arguments.only:
            kind, settings, method, keys = CASES[case]
            expected, slope = their_loss(model_paths, kind, settings, folder)
            loss, gradient = our_loss(model_paths, method, keys, folder)
            loss_gap = abs(loss - expected) / max(abs(expected), 0.1)
            gradient_gap = 0.0 if slope is None else float((gradient - slope).norm() / slope.norm())
            right = max(loss_gap, gradient_gap) < CLOSE
            good &= right
            gap_text = "not compared" if slope is None else f"{gradient_gap:.1e}"
            print(
                f"{'ok  ' if right else 'FAIL'} {case}: loss {loss:.6f}, apart {loss_gap:.1e}, gradient {gap_text}",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
