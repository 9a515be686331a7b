"""vLLM worker program over a pipe, and the worker extension by which a vLLM server loads weights.

It runs in the interpreter that has vLLM, where gxpo may be missing, so it needs the standard library, torch,
safetensors and vllm alone. As a program it is started by path, `python -I gxpo_vllm.py LINE PARENT`; the other side is
`engines.vllm_process`. Of a server it is the extension: `PYTHONPATH=FOLDER VLLM_SERVER_DEV_MODE=1 vllm serve MODEL
--worker-extension-cls gxpo_vllm.WeightLoader`; the other side is `gxpo.sampling.engines.publish`.

A message is bytes: the length of its header (4 bytes, little endian), the header (JSON), then the raw arrays that
`header["arrays"]` names as [name, dtype, items]. Every message is answered by one, `{"error": text}` where it failed.
On the line each is preceded by `NUMBER`: the message's number, and in an answer the id of the process that gives it.
"""

from __future__ import annotations

import inspect
import json
import os
import struct
import sys
import threading
import time
import uuid
from array import array
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

NUMBER = struct.Struct("<QQ")
CODES = {"int32": "i", "int64": "q", "float32": "f", "uint8": "B"}
SLACK = 64  # ids requested beyond top_k: equal logits at its edge are all kept
NEWER = ("mm_device_do_normalize",)  # arguments that older versions neither have nor need
BOOT = uuid.uuid4().hex  # of this process
WEIGHTS_ARE_OLD = "the worker's weights are of stamp {have}, and stamp {want} was asked for"


# ---------------------------------------------------------------- messages
def encode(header: dict[str, Any], arrays: dict[str, tuple[str, bytes]] | None = None) -> bytes:
    """Encode a message; arrays: name -> (dtype, bytes)."""
    found = arrays or {}
    sizes = {name: array(CODES[kind]).itemsize for name, (kind, _) in found.items()}
    said = {**header, "arrays": [[n, kind, len(raw) // sizes[n]] for n, (kind, raw) in found.items()]}
    text = json.dumps(said).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(raw for _, raw in found.values())])


def decode(message: bytes) -> tuple[dict[str, Any], dict[str, array[Any]]]:
    """Decode a message into its header and arrays."""
    (size,) = struct.unpack_from("<I", message)
    header = json.loads(message[4 : 4 + size])
    place, found = 4 + size, {}
    for name, kind, items in header["arrays"]:
        values: array[Any] = array(CODES[kind])
        values.frombytes(message[place : place + items * values.itemsize])
        found[name] = values
        place += items * values.itemsize
    return header, found


def checksum(tensor: Any) -> int:
    """Checksum of a tensor: its bytes summed as 64-bit words modulo 2^64, the same on any device."""
    import torch

    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    words = raw[:whole].view(torch.int64).sum() if whole else raw[:0].sum()
    return (int(words) + int(raw[whole:].sum(dtype=torch.int64))) % (1 << 64)


# ---------------------------------------------------------------- weights
def reload(runner: Any, tensors: dict[str, Any]) -> None:
    """Load tensors by their checkpoint names into a model runner's model, in place."""
    by_runner = getattr(runner, "reload_weights", None)
    if by_runner is not None and "weights_iterator" in inspect.signature(by_runner).parameters:
        by_runner(weights_iterator=iter(tensors.items()), is_checkpoint_format=True)
    else:
        runner.model.load_weights(iter(tensors.items()))
    for module in runner.model.modules():
        # On CPU a linear layer multiplies with a packed copy. The reload packs anew what it loads, but not a head
        # that is tied to the embedding: nothing is loaded into it, and it would go on with the old weights.
        if hasattr(module, "cpu_linear") and getattr(module, "weight", None) is not None and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def held(model: Any, tensors: dict[str, Any]) -> dict[str, int]:
    """Checksums of the model's one-dimensional parameters that stand under the same name, shape and type: those that
    neither tensor parallelism nor packing takes apart."""
    found = {}
    for name, p in model.named_parameters():
        x = tensors.get(name)
        if x is not None and p.dim() == 1 and p.shape == x.shape and p.dtype == x.dtype:
            found[name] = checksum(p)
    return found


class WeightLoader:
    """Worker extension of a vLLM server: loads published weights, says which it has.

    Written for vLLM 0.32 (`/collective_rpc`, strings in and dictionaries out). `stamp` is None from the first tensor
    that is loaded until all are; a file whose checksums are wrong is refused before that, so a worker has one
    publication or none. `boot` is another one after each restart.
    """

    def gxpo_state(self) -> dict[str, Any]:
        """The process, and the publication whose weights it has."""
        return {"boot": BOOT, "stamp": getattr(self, "gxpo_stamp", None)}

    def gxpo_config(self) -> AbstractContextManager[Any]:
        """The context in which vLLM's layers find their configuration."""
        from vllm.config import set_current_vllm_config  # type: ignore[import-not-found]  # it runs there

        return set_current_vllm_config(self.vllm_config)  # type: ignore[attr-defined]  # as below

    def gxpo_load(self, message: str) -> dict[str, Any]:
        """Load a safetensors file. message: JSON of {"path", "stamp", "sums": {name: checksum}}."""
        import torch
        from safetensors.torch import load_file

        asked = json.loads(message)
        tensors = load_file(asked["path"])
        wrong = [name for name, x in asked["sums"].items() if name not in tensors or checksum(tensors[name]) != x]
        if wrong or len(tensors) != len(asked["sums"]):
            return {**self.gxpo_state(), "wrong": wrong[:1] or ["the number of tensors"], "held": {}}
        self.gxpo_stamp: str | None = None
        runner: Any = self.model_runner  # type: ignore[attr-defined]  # of vLLM's worker, which this class is added to
        with torch.no_grad(), self.gxpo_config():
            reload(runner, tensors)
        self.gxpo_stamp = asked["stamp"]
        return {**self.gxpo_state(), "wrong": [], "held": held(runner.model, tensors)}


# ---------------------------------------------------------------- prompts
def prompts_of(header: dict[str, Any], given: dict[str, array[Any]], stamp: int | None) -> list[dict[str, Any]]:
    """The prompts of a message, with their pictures.

    The stamp is in the name of a picture as well as in the salt: what the tower made of it, vLLM caches by that name,
    and would give after an update, too.
    """
    salt, found, place = f"gxpo-{stamp}", list[dict[str, Any]](), 0
    tokens = given["tokens"].tolist()
    for length in given["lengths"]:
        found.append({"prompt_token_ids": tokens[place : place + length], "cache_salt": salt})
        place += length
    images = _images(header, given)
    for i, numbers in header.get("shown", ()):
        names = [f"{header['pictures'][k][0]}/{stamp}" for k in numbers]
        found[i]["multi_modal_data"] = {"image": [images[k] for k in numbers]}
        found[i]["multi_modal_uuids"] = {"image": names}
    return found


def _images(header: dict[str, Any], given: dict[str, array[Any]]) -> list[Any]:
    if "pictures" not in header:
        return []
    from PIL import Image  # type: ignore[import-not-found]  # vLLM needs it

    raw, found, place = given["pixels"].tobytes(), [], 0
    for _, height, width in header["pictures"]:
        size = 3 * height * width
        found.append(Image.frombytes("RGB", (width, height), raw[place : place + size]))
        place += size
    return found


def misread(header: dict[str, Any], given: dict[str, array[Any]], read: dict[int, list[int]]) -> list[list[int]]:
    """[prompt, first place] where a prompt with pictures was read as other ids than the other side expects.

    read  by prompt, the ids after vLLM put a picture's rows into the place of its placeholder
    """
    found, place = [], 0
    for (i, _), length in zip(header.get("shown", ()), given.get("expanded_lengths", ()), strict=True):
        wanted, own = given["expanded"][place : place + length].tolist(), read.get(i)
        place += length
        if own is not None and own != wanted:
            same = zip(own, wanted, strict=False)
            found.append([i, next((k for k, (a, b) in enumerate(same) if a != b), min(len(own), length))])
    return found


# ---------------------------------------------------------------- the engine
class Server:
    """vLLM and the version of its weights: `stamp` is None from the start of an update until all of it succeeded."""

    def __init__(self, header: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # it may be installed elsewhere only
        from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]  # as above

        self._params = SamplingParams
        self._fields = set(inspect.signature(SamplingParams).parameters)
        self.max_logprobs: int = header["max_logprobs"]
        given, known = header["arguments"], inspect.signature(EngineArgs).parameters
        given = {name: x for name, x in given.items() if name in known or name not in NEWER}
        self.llm: Any = LLM(**given, max_logprobs=self.max_logprobs)
        self.stamp: int | None = None
        self._bytes: Any = None

    # ------------------------------------------------------------ weights
    @property
    def _runner(self) -> Any:
        worker = self.llm.llm_engine.model_executor.driver_worker
        return getattr(worker, "worker", worker).model_runner

    def load(self, header: dict[str, Any]) -> dict[str, Any]:
        """Load weights from a shared file; gives checksums of the read tensors and of the model's afterwards."""
        import torch

        self.stamp = None
        if header["path"] is not None:
            self._bytes = torch.from_file(header["path"], shared=True, size=header["bytes"], dtype=torch.uint8)
        tensors = {}
        for name, dtype, shape, start, size in header["tensors"]:
            tensors[name] = self._bytes[start : start + size].view(getattr(torch, dtype)).view(shape)
        runner = self._runner
        with torch.no_grad():
            reload(runner, tensors)
        if self.llm.reset_prefix_cache() is False:  # None: a version that does not say; the salt of the stamp holds
            raise RuntimeError("vLLM did not drop its prefix cache, which holds keys and values of the old weights")
        self.stamp = header["stamp"]
        read = [checksum(x) for x in tensors.values()]
        return {"stamp": self.stamp, "read": read, "held": held(runner.model, tensors)}

    # ------------------------------------------------------------ reading and writing
    def score(self, header: dict[str, Any], given: dict[str, array[Any]]) -> bytes:
        """Log-probs of every token but the first of one prompt, at temperature 1; nothing is banned."""
        params = self._params(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=1.0, ignore_eos=True)
        if "shown" in header:
            (prompt,) = prompts_of(header, given, self.stamp)
        else:
            prompt = {"prompt_token_ids": given["tokens"].tolist()}
        (out,) = self.llm.generate([prompt], params, use_tqdm=False)
        tokens = list(out.prompt_token_ids)
        found = [at[token].logprob for token, at in zip(tokens[1:], out.prompt_logprobs[1:], strict=True)]
        return encode({"stamp": self.stamp, "logprobs": found, "misread": misread(header, given, {0: tokens})})

    def sample(self, header: dict[str, Any], given: dict[str, array[Any]]) -> bytes:
        """Sample from many prompts: `prompt` of each stream is the index of its prompt."""
        if self.stamp != header["stamp"]:
            raise RuntimeError(WEIGHTS_ARE_OLD.format(have=self.stamp, want=header["stamp"]))
        settings, cut = dict(header["sampling"]), bool(header["support"])
        wanted = self._wanted(settings) if cut else 0
        prompts = prompts_of(header, given, self.stamp)
        if "banned" in header:  # before temperature and support, so log-probs are of what remains
            settings["logit_bias"] = dict.fromkeys(header["banned"], float("-inf"))
        if "flat_logprobs" in self._fields:
            settings["flat_logprobs"] = True
        params = [self._params(**settings, logprobs=wanted, seed=seed) for seed in given["seeds"]]
        done = self.llm.generate([prompts[i] for i in given["prompt"]], params, use_tqdm=False)
        stamp = self.stamp
        outputs = [out.outputs[0] for out in done]
        drawn, logprobs, lengths = array("i"), array("f"), array("i")
        allowed, widths = array("i"), array("i")
        for out in outputs:
            ids = list(out.token_ids)
            drawn.extend(ids)
            lengths.append(len(ids))
            own, support = _read(out.logprobs, ids, cut)
            logprobs.extend(own)
            for row in support:
                if len(row) >= wanted:
                    raise RuntimeError(
                        f"top_k and top_p left {wanted} tokens or more at one position, and vLLM gives no more of "
                        "them: set sampling.top_k lower, or sampling.engine=torch"
                    )
                allowed.extend(row)
                widths.append(len(row))
        read = {i: list(out.prompt_token_ids) for i, out in zip(given["prompt"], done, strict=True)}
        cached = [getattr(out, "num_cached_tokens", 0) or 0 for out in done]
        return encode(
            {
                "stamp": stamp,
                "finish": [str(out.finish_reason) for out in outputs],
                "reused": sum(cached),
                "read": sum(len(out.prompt_token_ids) for out in done) - sum(cached),
                "misread": misread(header, given, read),
            },
            {
                "tokens": ("int32", drawn.tobytes()),
                "logprobs": ("float32", logprobs.tobytes()),
                "lengths": ("int32", lengths.tobytes()),
                "support": ("int32", allowed.tobytes()),
                "widths": ("int32", widths.tobytes()),
            },
        )

    def _wanted(self, settings: dict[str, Any]) -> int:
        """Number of ids to request at each position, so that the support is among them."""
        return min(self.max_logprobs, settings["top_k"] + SLACK) if settings["top_k"] > 0 else self.max_logprobs


def _read(logprobs: Any, ids: list[int], cut: bool) -> tuple[list[float], list[list[int]]]:
    """Log-probs of the drawn tokens and, where the distribution was cut, the ids that were possible at each place."""
    least = float("-inf")
    if hasattr(logprobs, "start_indices"):
        starts, ends = logprobs.start_indices, logprobs.end_indices
        own = [logprobs.logprobs[i] for i in starts]
        if not cut:
            return own, []
        spans = [range(a, b) for a, b in zip(starts, ends, strict=True)]
        return own, [sorted({logprobs.token_ids[i] for i in s if logprobs.logprobs[i] > least}) for s in spans]
    own = [found[token].logprob for token, found in zip(ids, logprobs, strict=True)]
    return own, [sorted(t for t, x in found.items() if x.logprob > least) for found in logprobs] if cut else []


# ---------------------------------------------------------------- the line
def answer(server: Server | None, message: bytes) -> tuple[Server | None, bytes]:
    """Handle one message."""
    header, arrays = decode(message)
    if header["do"] == "start":
        import vllm  # type: ignore[import-not-found]  # as above

        server = Server(header)
        device = str(next(server._runner.model.parameters()).device)
        return server, encode({"vllm": getattr(vllm, "__version__", "unknown"), "device": device})
    assert server is not None, "the first message is 'start'"
    if header["do"] == "load":
        return server, encode(server.load(header))
    if header["do"] == "score":
        return server, server.score(header, arrays)
    return server, server.sample(header, arrays)


def end_with(parent: int) -> None:
    """Exit when the parent is gone, even while vLLM is busy."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    line, parent = int(sys.argv[-2]), int(sys.argv[-1])
    end_with(parent)
    os.set_inheritable(line, False)  # what vLLM starts does not hold the line open
    connection, server, own = Connection(line), None, os.getpid()
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # the parent hung up: no orderly end is needed
        number, _ = NUMBER.unpack_from(message)
        try:
            server, said = answer(server, message[NUMBER.size :])
        except Exception as error:
            import traceback

            traceback.print_exc()
            text = " ".join(str(error).split())
            said = encode({"error": f"{type(error).__name__}: {text}"[:600]})
        if os.getpid() != own:
            os._exit(0)  # a forked copy
        connection.send_bytes(NUMBER.pack(number, own) + said)


if __name__ == "__main__":
    main()
