"""vLLM worker program over a pipe, and the worker extension with which a vLLM server loads weights.

It runs in the interpreter that has vLLM, where gxpo may be missing, so it needs the standard library, torch,
safetensors and vllm alone. As a program it is started by path, `python -I gxpo_vllm.py CONNECTION PARENT`; the other
side is `engines.vllm_process`. As the extension of a server: `PYTHONPATH=FOLDER VLLM_SERVER_DEV_MODE=1 vllm serve MODEL
--worker-extension-cls gxpo_vllm.WeightLoader`; the other side is `gxpo.sampling.engines.weight_transfer`.

A message is bytes: the length of its header (4 bytes, little endian), the header (JSON), then the raw arrays that
`header["arrays"]` lists as [name, dtype, items]. Every message gets one reply, `{"error": text}` if it failed. On the
connection each is preceded by `NUMBER`: the message's number, and in a reply the id of the process that sends it.
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
BOOT = uuid.uuid4().hex  # names this process: a restarted server has another one
WEIGHTS_ARE_OLD = "the worker's weights are of stamp {have}, and stamp {want} was asked for"


# ---------------------------------------------------------------- messages
def encode(header: dict[str, Any], arrays: dict[str, tuple[str, bytes]] | None = None) -> bytes:
    """Encode a message; arrays maps name to (dtype, bytes)."""
    raw_arrays = arrays or {}
    sizes = {name: array(CODES[kind]).itemsize for name, (kind, _) in raw_arrays.items()}
    full_header = {**header, "arrays": [[n, kind, len(raw) // sizes[n]] for n, (kind, raw) in raw_arrays.items()]}
    text = json.dumps(full_header).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(raw for _, raw in raw_arrays.values())])


def decode(message: bytes) -> tuple[dict[str, Any], dict[str, array[Any]]]:
    """Decode a message into its header and arrays."""
    (size,) = struct.unpack_from("<I", message)
    header = json.loads(message[4 : 4 + size])
    offset, arrays = 4 + size, {}
    for name, kind, items in header["arrays"]:
        values: array[Any] = array(CODES[kind])
        values.frombytes(message[offset : offset + items * values.itemsize])
        arrays[name] = values
        offset += items * values.itemsize
    return header, arrays


def checksum(tensor: Any) -> int:
    """Checksum of a tensor: its bytes summed as 64-bit words modulo 2^64, the same on any device."""
    import torch

    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    word_bytes = raw.numel() // 8 * 8
    words = raw[:word_bytes].view(torch.int64).sum() if word_bytes else raw[:0].sum()
    return (int(words) + int(raw[word_bytes:].sum(dtype=torch.int64))) % (1 << 64)


# ---------------------------------------------------------------- weights
def reload(runner: Any, tensors: dict[str, Any]) -> None:
    """Load tensors by their checkpoint names into a model runner's model, in place."""
    reload_weights = getattr(runner, "reload_weights", None)
    if reload_weights is not None and "weights_iterator" in inspect.signature(reload_weights).parameters:
        reload_weights(weights_iterator=iter(tensors.items()), is_checkpoint_format=True)
    else:
        runner.model.load_weights(iter(tensors.items()))
    for module in runner.model.modules():
        # On CPU a linear layer multiplies with a packed copy. The reload packs anew what it loads, but not a head
        # that is tied to the embedding: nothing is loaded into it, and it would go on with the old weights.
        if hasattr(module, "cpu_linear") and getattr(module, "weight", None) is not None and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def vector_checksums(model: Any, tensors: dict[str, Any]) -> dict[str, int]:
    """Checksums of the model's one-dimensional parameters that have a sent tensor's name, shape and dtype.

    Neither tensor parallelism nor packing splits these, so they must equal what was sent.
    """
    sums = {}
    for name, p in model.named_parameters():
        x = tensors.get(name)
        if x is not None and p.dim() == 1 and p.shape == x.shape and p.dtype == x.dtype:
            sums[name] = checksum(p)
    return sums


class WeightLoader:
    """Worker extension of a vLLM server that loads published weights and reports which it holds.

    Written for vLLM 0.32 (`/collective_rpc`, strings in and dictionaries out). `stamp` is None from the first tensor
    that is loaded until all are; a file with wrong checksums is refused before that, so a worker holds one publication
    or none. `boot` changes with each restart.
    """

    def gxpo_state(self) -> dict[str, Any]:
        """Report the process, and the publication whose weights it holds."""
        return {"boot": BOOT, "stamp": getattr(self, "gxpo_stamp", None)}

    def gxpo_config(self) -> AbstractContextManager[Any]:
        """Context in which vLLM's layers find their configuration."""
        from vllm.config import set_current_vllm_config  # type: ignore[import-not-found]  # it runs there

        return set_current_vllm_config(self.vllm_config)  # type: ignore[attr-defined]  # as below

    def gxpo_load(self, message: str) -> dict[str, Any]:
        """Load a safetensors file. message: JSON of {"path", "stamp", "sums": {name: checksum}}."""
        import torch
        from safetensors.torch import load_file

        publication = json.loads(message)
        tensors = load_file(publication["path"])
        # Checked before any parameter changes: after a refusal the worker still holds the publication before.
        wrong = [name for name, x in publication["sums"].items() if name not in tensors or checksum(tensors[name]) != x]
        if wrong or len(tensors) != len(publication["sums"]):
            return {**self.gxpo_state(), "wrong": wrong[:1] or ["the number of tensors"], "held": {}}
        self.gxpo_stamp: str | None = None
        runner: Any = self.model_runner  # type: ignore[attr-defined]  # of vLLM's worker, which this class is added to
        with torch.no_grad(), self.gxpo_config():
            reload(runner, tensors)
        self.gxpo_stamp = publication["stamp"]
        return {**self.gxpo_state(), "wrong": [], "held": vector_checksums(runner.model, tensors)}


# ---------------------------------------------------------------- prompts
def prompts_of(header: dict[str, Any], arrays: dict[str, array[Any]], stamp: int | None) -> list[dict[str, Any]]:
    """Build vLLM's prompts, with their pictures, from a message.

    The stamp is part of a picture's name as well as of the salt: vLLM caches the vision tower's output under that name
    and would otherwise reuse it after an update.
    """
    salt, prompts, offset = f"gxpo-{stamp}", list[dict[str, Any]](), 0
    tokens = arrays["tokens"].tolist()
    for length in arrays["lengths"]:
        prompts.append({"prompt_token_ids": tokens[offset : offset + length], "cache_salt": salt})
        offset += length
    images = _images(header, arrays)
    for i, numbers in header.get("shown", ()):
        names = [f"{header['pictures'][k][0]}/{stamp}" for k in numbers]
        prompts[i]["multi_modal_data"] = {"image": [images[k] for k in numbers]}
        prompts[i]["multi_modal_uuids"] = {"image": names}
    return prompts


def _images(header: dict[str, Any], arrays: dict[str, array[Any]]) -> list[Any]:
    """Decode the distinct pictures of a message."""
    if "pictures" not in header:
        return []
    from PIL import Image  # type: ignore[import-not-found]  # vLLM needs it

    raw, images, offset = arrays["pixels"].tobytes(), [], 0
    for _, height, width in header["pictures"]:
        size = 3 * height * width
        images.append(Image.frombytes("RGB", (width, height), raw[offset : offset + size]))
        offset += size
    return images


def misread_prompts(
    header: dict[str, Any], arrays: dict[str, array[Any]], read: dict[int, list[int]]
) -> list[list[int]]:
    """Find prompts with pictures that vLLM read as other ids than expected: [prompt, first differing position].

    read  ids of each prompt after vLLM replaced its placeholders by rows
    """
    mismatches, offset = [], 0
    for (i, _), length in zip(header.get("shown", ()), arrays.get("expanded_lengths", ()), strict=True):
        expected_ids, read_ids = arrays["expanded"][offset : offset + length].tolist(), read.get(i)
        offset += length
        if read_ids is not None and read_ids != expected_ids:
            pairs = zip(read_ids, expected_ids, strict=False)
            mismatches.append([i, next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(read_ids), length))])
    return mismatches


# ---------------------------------------------------------------- the engine
class Server:
    """vLLM with a weight version: `stamp` is None from the start of an update until all of it succeeded."""

    def __init__(self, header: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # it may be installed elsewhere only
        from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]  # as above

        self._params = SamplingParams
        self._fields = set(inspect.signature(SamplingParams).parameters)
        self.max_logprobs: int = header["max_logprobs"]
        arguments, supported = header["arguments"], inspect.signature(EngineArgs).parameters
        arguments = {name: x for name, x in arguments.items() if name in supported or name not in NEWER}
        self.llm: Any = LLM(**arguments, max_logprobs=self.max_logprobs)
        self.stamp: int | None = None
        self._bytes: Any = None

    # ------------------------------------------------------------ weights
    @property
    def _runner(self) -> Any:
        worker = self.llm.llm_engine.model_executor.driver_worker
        return getattr(worker, "worker", worker).model_runner

    def load(self, header: dict[str, Any]) -> dict[str, Any]:
        """Load weights from a shared file; return checksums of the tensors read and of the model's afterwards."""
        import torch

        self.stamp = None
        # No path: the learner wrote into the file that is mapped already.
        if header["path"] is not None:
            self._bytes = torch.from_file(header["path"], shared=True, size=header["bytes"], dtype=torch.uint8)
        tensors = {}
        for name, dtype, shape, start, size in header["tensors"]:
            tensors[name] = self._bytes[start : start + size].view(getattr(torch, dtype)).view(shape)
        runner = self._runner
        with torch.no_grad():
            reload(runner, tensors)
        # None comes from versions that do not report success; there the stamp in the salt separates old from new.
        if self.llm.reset_prefix_cache() is False:
            raise RuntimeError("vLLM did not drop its prefix cache, which holds keys and values of the old weights")
        self.stamp = header["stamp"]
        read = [checksum(x) for x in tensors.values()]
        return {"stamp": self.stamp, "read": read, "held": vector_checksums(runner.model, tensors)}

    # ------------------------------------------------------------ scoring and sampling
    def score(self, header: dict[str, Any], arrays: dict[str, array[Any]]) -> bytes:
        """Score one prompt: log-probs of every token but the first, at temperature 1, with nothing banned."""
        params = self._params(max_tokens=1, prompt_logprobs=0, detokenize=False, temperature=1.0, ignore_eos=True)
        if "shown" in header:
            (prompt,) = prompts_of(header, arrays, self.stamp)
        else:
            prompt = {"prompt_token_ids": arrays["tokens"].tolist()}
        (out,) = self.llm.generate([prompt], params, use_tqdm=False)
        tokens = list(out.prompt_token_ids)
        logprobs = [
            candidates[token].logprob for token, candidates in zip(tokens[1:], out.prompt_logprobs[1:], strict=True)
        ]
        return encode(
            {"stamp": self.stamp, "logprobs": logprobs, "misread": misread_prompts(header, arrays, {0: tokens})}
        )

    def sample(self, header: dict[str, Any], arrays: dict[str, array[Any]]) -> bytes:
        """Sample every stream of a message: `prompt` holds the index of each stream's prompt."""
        # Checked on this side too: samples of old weights would be trained on as the current policy's.
        if self.stamp != header["stamp"]:
            raise RuntimeError(WEIGHTS_ARE_OLD.format(have=self.stamp, want=header["stamp"]))
        settings, truncated = dict(header["sampling"]), bool(header["support"])
        n_logprobs = self._logprob_count(settings) if truncated else 0
        prompts = prompts_of(header, arrays, self.stamp)
        if "banned" in header:  # before temperature and support, so log-probs are of what remains
            settings["logit_bias"] = dict.fromkeys(header["banned"], float("-inf"))
        if "flat_logprobs" in self._fields:
            settings["flat_logprobs"] = True
        # A seed per stream makes a sample independent of the other requests, up to rounding.
        params = [self._params(**settings, logprobs=n_logprobs, seed=seed) for seed in arrays["seeds"]]
        results = self.llm.generate([prompts[i] for i in arrays["prompt"]], params, use_tqdm=False)
        stamp = self.stamp
        # Tokens, log-probs and supports of all samples travel as flat arrays with lengths.
        outputs = [out.outputs[0] for out in results]
        tokens, logprobs, lengths = array("i"), array("f"), array("i")
        support_ids, widths = array("i"), array("i")
        for out in outputs:
            ids = list(out.token_ids)
            tokens.extend(ids)
            lengths.append(len(ids))
            token_logprobs, support = _read_logprobs(out.logprobs, ids, truncated)
            logprobs.extend(token_logprobs)
            # As many as were requested: the support may be larger, and ratios under a part of it would be wrong.
            for row in support:
                if len(row) >= n_logprobs:
                    raise RuntimeError(
                        f"top_k and top_p left {n_logprobs} tokens or more at one position, and vLLM gives no more of "
                        "them: set sampling.top_k lower, or sampling.engine=torch"
                    )
                support_ids.extend(row)
                widths.append(len(row))
        read = {i: list(out.prompt_token_ids) for i, out in zip(arrays["prompt"], results, strict=True)}
        cached = [getattr(out, "num_cached_tokens", 0) or 0 for out in results]
        return encode(
            {
                "stamp": stamp,
                "finish": [str(out.finish_reason) for out in outputs],
                "reused": sum(cached),
                "read": sum(len(out.prompt_token_ids) for out in results) - sum(cached),
                "misread": misread_prompts(header, arrays, read),
            },
            {
                "tokens": ("int32", tokens.tobytes()),
                "logprobs": ("float32", logprobs.tobytes()),
                "lengths": ("int32", lengths.tobytes()),
                "support": ("int32", support_ids.tobytes()),
                "widths": ("int32", widths.tobytes()),
            },
        )

    def _logprob_count(self, settings: dict[str, Any]) -> int:
        """Number of log-probs to request at each position, so that the support is among them."""
        return min(self.max_logprobs, settings["top_k"] + SLACK) if settings["top_k"] > 0 else self.max_logprobs


def _read_logprobs(logprobs: Any, ids: list[int], truncated: bool) -> tuple[list[float], list[list[int]]]:
    """Log-probs of the drawn tokens and, if the distribution was truncated, the possible ids at each position."""
    impossible = float("-inf")
    # Newer vLLM gives flat columns, older versions a dictionary for each position.
    if hasattr(logprobs, "start_indices"):
        starts, ends = logprobs.start_indices, logprobs.end_indices
        token_logprobs = [logprobs.logprobs[i] for i in starts]
        if not truncated:
            return token_logprobs, []
        spans = [range(a, b) for a, b in zip(starts, ends, strict=True)]
        return token_logprobs, [
            sorted({logprobs.token_ids[i] for i in s if logprobs.logprobs[i] > impossible}) for s in spans
        ]
    token_logprobs = [candidates[token].logprob for token, candidates in zip(ids, logprobs, strict=True)]
    return token_logprobs, [
        sorted(t for t, x in candidates.items() if x.logprob > impossible) for candidates in logprobs
    ] if truncated else []


# ---------------------------------------------------------------- the connection
def answer(server: Server | None, message: bytes) -> tuple[Server | None, bytes]:
    """Handle one message; return the server, made by the first, and the encoded reply."""
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
    """Answer messages until the parent closes the connection."""
    descriptor, parent = int(sys.argv[-2]), int(sys.argv[-1])
    end_with(parent)
    os.set_inheritable(descriptor, False)  # or processes that vLLM starts would keep the connection open
    connection, server, pid = Connection(descriptor), None, os.getpid()
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # the parent hung up: no orderly end is needed
        number, _ = NUMBER.unpack_from(message)
        try:
            server, reply = answer(server, message[NUMBER.size :])
        except Exception as error:
            import traceback

            traceback.print_exc()
            text = " ".join(str(error).split())
            reply = encode({"error": f"{type(error).__name__}: {text}"[:600]})
        if os.getpid() != pid:
            os._exit(0)  # a forked copy must not answer in this process's place
        connection.send_bytes(NUMBER.pack(number, pid) + reply)


if __name__ == "__main__":
    main()
