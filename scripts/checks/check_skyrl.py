"""gxpo's Tinker engine against SkyRL's server on CPUs: `python scripts/checks/check_skyrl.py --python SKYRL_PYTHON`.

SKYRL_PYTHON has SkyRL with its extras jax and tinker, and what gxpo needs (torch). A server is started on a model of
two layers; five methods' gradients, read off what one step does to the adapters, are compared with gxpo's learner on
the same adapters. Exit status 1 where one differs by more than 1e-5.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
RANK, ALPHA, VOCABULARY = 4, 32.0, 64  # the server sets alpha
CLOSE = 1e-5
EPS, LR = 1e3, 1e3


def save_tiny_model(folder: Path) -> None:
    """Save a Qwen3 of two layers with a tokenizer of words, as transformers does."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.2, eos_token_id=1,
        bos_token_id=0, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    config_json = json.loads((folder / "config.json").read_text())
    config_json["dtype"] = config_json["torch_dtype"] = "float32"
    config_json.setdefault("rope_theta", 10000.0)  # where SkyRL reads it
    (folder / "config.json").write_text(json.dumps(config_json))
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0").save_pretrained(folder)


def serve(model: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = Path(__file__).with_name("skyrl_server.py")
    command = [sys.executable, str(server), "--base-model", str(model), "--port", str(port), "--folder", str(folder)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    for _ in range(240):
        time.sleep(0.5)
        try:
            urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5)
            return server, url
        except OSError:
            if server.poll() is not None:
                break
    raise SystemExit(f"SkyRL's server did not start:\n{(folder / 'server.log').read_text()[-2000:]}")


def checks() -> bool:
    from transformers import AutoModelForCausalLM

    from gxpo.conformance.engines import forest, losses
    from gxpo.learning.lora import LoraSettings
    from gxpo.learning.remote import RemoteLearner
    from gxpo.learning.remote.probe import probe
    from gxpo.learning.remote.rows import Rows
    from gxpo.learning.remote.tinker import Adapter, TinkerEngine
    from gxpo.learning.torch import TorchLearner

    good = True

    def say(name: str, right: bool, figures: str) -> None:
        nonlocal good
        good &= right
        print(f"{'ok  ' if right else 'FAIL'} {name}: {figures}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder, model = Path(scratch), Path(scratch) / "model"
        save_tiny_model(model)
        server, url = serve(model, folder)
        try:
            start_time = time.perf_counter()
            engine = TinkerEngine(url, str(model), adapter=Adapter(rank=RANK, seed=7))
            seconds = time.perf_counter() - start_time
            print(f"     the server: {engine.reduction.name}; heeds grad_clip_norm: {engine.clips}; {seconds:.0f} s")
            probe_forest = forest(VOCABULARY)
            rows = Rows.of(probe_forest, torch.arange(probe_forest.n_entries)).rows
            result = probe(engine, rows[0])
            say("start-up probe", result.trouble(0.02) is None, str(result))
            remote = RemoteLearner(engine, lr=0.01, max_grad_norm=None)
            remote.step(probe_forest, lambda x: -x["logprob"].mean())  # B is no longer 0, so A has a gradient
            warm_path = engine._client.save_state("warm").result().path

            def restart() -> None:  # with the same adapters, without moments: AdamW's first step
                new = engine._service.create_training_client_from_state(warm_path)
                engine._client = new.result() if hasattr(new, "result") else new
                engine._forget()

            restart()
            adapters_before = read_adapters(engine, folder)
            standard = TorchLearner(
                AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"),
                lr=0.0,
                lora=LoraSettings(
                    rank=RANK, alpha=ALPHA, targets=tuple(sorted({n.split(".")[-3] for n in adapters_before}))
                ),
            )
            names = {n.replace(".default.", "."): n for n in standard.optimiser.parameter_by_name}
            assert names.keys() == adapters_before.keys(), sorted(names.keys() ^ adapters_before.keys())[:4]
            standard.restore({names[n]: x.float() for n, x in adapters_before.items()})
            local_logprob, remote_logprob = (learner.outputs(probe_forest)["logprob"] for learner in (standard, remote))
            gap = float((local_logprob - remote_logprob).abs().max())
            say("log-probs", gap < CLOSE, f"largest difference {gap:.1e} nats")
            for name, loss in losses(probe_forest, local_logprob).items():
                local_gradient = standard.gradient(probe_forest, loss)
                expected = {n: shared_gradient(n, adapters_before, local_gradient, names) for n in names}
                restart()
                remote.accumulate(probe_forest, loss)
                norm = engine.step(LR, None, eps=EPS)
                adapters_after = read_adapters(engine, folder)
                gradient = {n: gradient_of_step(adapters_before[n], adapters_after[n]) for n in names}
                error = norm_of(gradient[n] - expected[n] for n in names) / norm_of(expected.values())
                say(f"gradient of {name}", error < CLOSE, f"{error:.1e} relative; norm {norm:.6g}")
        finally:
            server.terminate()
            server.wait(30)
    return good


def read_adapters(engine: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Read the adapters as the server holds them, from a checkpoint for samplers."""
    from safetensors.torch import load

    engine._save_count += 1
    engine._client.save_weights_for_sampler(f"look-{engine._save_count}").result()
    (path,) = (folder / "checkpoints").rglob(f"look-{engine._save_count}.tar.gz")
    with tarfile.open(path) as tar:
        name = next(n for n in tar.getnames() if n.endswith(".safetensors"))
        file = tar.extractfile(name)
        assert file is not None
        return {n: x.double() for n, x in load(file.read()).items()}


def gradient_of_step(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Compute the gradient from AdamW's first step, which is -lr g / (|g| + eps)."""
    d = (before - after) / LR
    return EPS * d / (1 - d.abs())


def shared_gradient(name: str, adapters: Any, gradient: Any, names: Any) -> torch.Tensor:
    """Sum the gradients of projections that SkyRL fuses, which share one A."""
    if "lora_A" not in name:
        return gradient[names[name]].double()
    layer = name[: name.index(".layers.") + len(".layers.0")]
    peers = [k for k in adapters if k.startswith(layer) and "lora_A" in k and torch.equal(adapters[k], adapters[name])]
    return torch.stack([gradient[names[k]].double() for k in peers]).sum(0)


def norm_of(tensors: Any) -> float:
    return float(torch.stack([x.double().square().sum() for x in tensors]).sum().sqrt())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has SkyRL (default: this one)")
    arguments = parser.parse_args()
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        return subprocess.run([arguments.python, __file__], env={**os.environ, "PYTHONPATH": paths}).returncode
    return 0 if checks() else 1


if __name__ == "__main__":
    sys.exit(main())
