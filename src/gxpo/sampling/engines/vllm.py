"""vLLM engine in a process of its own, with weights sent by the learner after every update."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.decoder.vision import vision_of, with_placeholders
from gxpo.parts.protocols import MISREAD, Completion, Request, Sampling
from gxpo.sampling.engines import vllm_pictures
from gxpo.sampling.engines.decode import parameter_version
from gxpo.sampling.engines.in_vllm.gxpo_vllm import SLACK
from gxpo.sampling.engines.network import Network
from gxpo.sampling.engines.remote_requests import check, seed_of
from gxpo.sampling.engines.vllm_process import PROGRAM, VllmEnded, VllmProcess, interpreter
from gxpo.sampling.engines.weight_transfer import SharedWeights

STARTING = 900.0  # seconds that vLLM may take to start
MOST_TOP_K = 256
MOST_LOGPROBS = MOST_TOP_K + SLACK  # at one position
LONGEST = 32768  # tokens of a context, where the model has more positions and no limit is set
PROBE = 24  # tokens whose log-probs are compared with the learner's at the start
DISAGREE = {torch.float32: 2e-3, torch.bfloat16: 0.08, torch.float16: 0.02}  # largest relative gap of log-probs


class VllmEngine:
    """vLLM as an `Engine`: exact log-probs, stored support, a weight version that is checked on every sample.

    model       the learner's causal language model (adapters of its one policy are added to the weights that are sent)
    tokenizer   needed for stop strings and for the end-of-sequence id; None: stop ids only
    python      interpreter that has vLLM; None: this one
    batch_rows  samples that are decoded together
    stop_ids    end-of-sequence ids; default: those of the tokenizer and of the model's generation settings
    policy      name of the one policy that samples
    arguments   for vllm.LLM, over gxpo's own, e.g. {"max_model_len": 4096, "gpu_memory_utilization": 0.4}
    starting    seconds that vLLM may take to start

    Weights are sent before sampling if `policy_version` changed or torch counted a write to them since the last time.
    Each transfer has a number, its stamp. The process has no stamp from the first byte that it loads until it has
    loaded everything and dropped its prefix cache, and it samples for no other stamp than its own. Checksums of what it
    read, and of the parameters that it holds under the same name and shape afterwards, are compared with the learner's.
    vLLM starts with random weights; after the first transfer both sides must give the same log-probs of a probe, so a
    part of the network that an update does not reach is found before the first sample. Cached prefixes are salted with
    the stamp.

    A stream's key gives vLLM's seed (`seed_of`), so a sample depends on prompt, key and weights; but the tokens are not
    those of the torch engine, and rounding that depends on the rest of vLLM's batch or cache can change them. Runs with
    this engine are not reproducible bit for bit.

    A picture is sent as one placeholder and its pixels, which vLLM's processor, built from the learner's files, turns
    into rows. If vLLM read other ids than the prompt's, the samples of that request finish as "misread" and their
    rollouts are unscored; it is an error if no prompt with pictures has been read correctly so far. Placeholders have
    no probability, as in the learner. The probe at the start shows a picture.

    A process that ends is replaced once per call, and the new one samples the requests; a second end is an error.

    `Request.keep` is not needed: vLLM finds cached prefixes by their tokens, in blocks. Counted since the engine was
    made: prefilled_tokens and reused_tokens, of the prompt of every sample (not of every distinct prompt).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        python: str | None = None,
        batch_rows: int = 256,
        stop_ids: Sequence[int] | None = None,
        policy: str = "main",
        arguments: Mapping[str, Any] | None = None,
        starting: float = STARTING,
        program: Sequence[str] = (PROGRAM,),
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.model, self.tokenizer, self.policy = model, tokenizer, policy
        self._network = Network(model, next(model.parameters()).device, kernels="transformers")
        self.stop_ids = tuple(stop_ids) if stop_ids is not None else self._network.end_ids(tokenizer)
        self._vision = vision_of(self._network.causal)
        # Refuse what vLLM can't do before a process is started, which takes minutes.
        self._check_pictures()
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = self.misread = 0
        self._has_read_pictures = False  # True once vLLM has read a prompt with pictures as the learner does
        self._shared_weights, self._stamp = SharedWeights(), 0
        self._sent_versions: tuple[int, int] | None = (
            None  # policy version and parameter version of the process's weights
        )
        self._python, self._program, self._notify = interpreter(python), program, notify
        self._batch_rows, self._user_arguments, self._start_timeout = batch_rows, dict(arguments or {}), starting
        notify(f"starting vLLM in {self._python}")
        device = self._start()
        notify(f"vLLM {self.vllm_version} samples on {device}; runs with it are not reproducible bit for bit")

    def _check_pictures(self) -> None:
        """Raise ModelError if vLLM can't prepare the model's pictures."""
        vision = self._vision
        if vision is None:
            return
        if processor_name := vllm_pictures.custom_processor(vision):
            raise ModelError(
                f"pictures of {self._network.name} are prepared by gxpo's own {processor_name}, and vLLM knows the "
                "processors of transformers alone: set sampling.engine=torch"
            )
        if self.tokenizer is None:
            raise ModelError("vLLM's processor of pictures needs the model's tokenizer: give the engine one")

    # ------------------------------------------------------------ starting
    def _start(self) -> str:
        """Start a process, load the weights, compare a probe; return the process's device."""
        with tempfile.TemporaryDirectory(prefix="gxpo-vllm-") as folder:
            self._describe(Path(folder))
            arguments = self._arguments(folder, self._batch_rows, self._user_arguments)
            self.positions: int = arguments["max_model_len"]
            self._shared_weights.unlink()
            # A process that ended may still have the old file mapped, so the new one gets a file of its own.
            self._shared_weights, self._sent_versions = SharedWeights(), None
            self.process = VllmProcess(self._python, program=self._program)
            try:
                start = {"do": "start", "arguments": arguments, "max_logprobs": MOST_LOGPROBS}
                reply, _ = self.process.ask(start, timeout=self._start_timeout)
                self.vllm_version: str = reply["vllm"]
                self._send()
                self._probe()
            except BaseException:
                self.close()
                raise
        return reply["device"]

    def _describe(self, folder: Path) -> None:
        """Write the model's configuration and tokenizer to a folder, without weights."""
        config = {**self._network.causal.config.to_dict(), "architectures": [self._network.name]}
        config["dtype"] = str(self._dtype).removeprefix("torch.")
        if self._vision is not None:  # for these models vLLM reads the tying of the head from the text part
            config["text_config"]["tie_word_embeddings"] = bool(config.get("tie_word_embeddings"))
        rotary = config.get("rope_parameters") or {}
        if "rope_theta" in rotary:  # transformers before 5 expects it at the top level
            config["rope_theta"] = rotary["rope_theta"]
        (folder / "config.json").write_text(json.dumps(config, default=str))
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        if self._vision is not None:
            vllm_pictures.describe(self._vision, self._network.causal.config, folder)

    @property
    def _dtype(self) -> torch.dtype:
        parameter_dtype = next(self._network.causal.parameters()).dtype
        if parameter_dtype not in DISAGREE:
            raise ModelError(
                f"vLLM does not run {str(parameter_dtype).removeprefix('torch.')}: set learner.dtype=float32 or "
                "bfloat16, or sampling.engine=torch"
            )
        return parameter_dtype

    def _arguments(self, folder: str, rows: int, user_arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments of vllm.LLM: gxpo's defaults under the user's; ModelError for those that gxpo must set."""
        # The engine relies on these: one local process, log-probs after temperature and top-k, dummy weights at first.
        for name in ("model", "tensor_parallel_size", "pipeline_parallel_size", "logprobs_mode", "load_format"):
            if name in user_arguments:
                raise ModelError(f"sampling.engine_options: {name} is not yours to set; leave it out")
        config = self._network.causal.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None) or LONGEST
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        return {
            "model": folder,
            "skip_tokenizer_init": self.tokenizer is None,
            "dtype": str(self._dtype).removeprefix("torch."),
            "load_format": "dummy",
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "generation_config": "vllm",
            "max_model_len": min(longest, LONGEST),
            "max_num_seqs": rows,
            **({"enforce_eager": True, "block_size": 32} if on_cpu else {}),
            **({} if self._vision is None else vllm_pictures.ARGUMENTS),
            **user_arguments,
        }

    @torch.no_grad()
    def _probe(self) -> None:
        """Compare log-probs of a probe with the learner's; `ModelError` if they differ."""
        vocabulary = self._network.causal.get_input_embeddings().weight.shape[0]
        ids = [(i * 7919 + 13) % vocabulary for i in range(PROBE)]
        header: dict[str, Any] = {"do": "score"}
        extra: dict[str, Any] = {"use_cache": False}
        vision = self._vision
        if vision is None:
            arrays = {"tokens": np.asarray(ids, dtype=np.int32)}
        else:
            ids = vllm_pictures.probe(vision, ids)
            picture_header, arrays = vllm_pictures.message([ids], vision)
            header |= picture_header
            if vision.triples:
                extra["position_ids"] = vision.positions(ids)[0][:, None].to(self._network.device)
        tokens = torch.tensor([ids], device=self._network.device)
        text = (tokens[0, 1:] < media.FIRST).cpu()  # whose ids the vocabulary has
        # vLLM's log-probs of a prompt include the placeholders' probability, so the learner's have to here.
        with with_placeholders(self._network.causal):
            logits = self.model(input_ids=tokens, **extra).logits[0, :-1].float()
        targets = tokens[0, 1:].masked_fill(tokens[0, 1:] >= media.FIRST, 0)
        learner_logprobs = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1).cpu()[text]
        reply, _ = self.process.ask(header, arrays)
        if reply.get("misread"):
            raise ModelError(
                f"vLLM {self.vllm_version} reads a picture as other ids than the learner, first at place "
                f"{reply['misread'][0][1]} of the prompt: set sampling.engine=torch"
            )
        # Relative to the log-probs: a layer that kept its random weights changes them far more than rounding does.
        gap = float(
            (learner_logprobs - torch.tensor(reply["logprobs"])[text]).abs().sum() / learner_logprobs.abs().sum()
        )
        if not gap <= DISAGREE[self._dtype]:
            raise ModelError(
                f"vLLM {self.vllm_version} computes something else from the learner's weights: log-probs of the same "
                f"tokens differ by {gap:.1%}. It does not load all of {self._network.name}: set sampling.engine=torch"
            )

    # ------------------------------------------------------------ weights
    def move_to(self, model: Any) -> None:
        """Send from now on the weights of this copy of the model, which is not being trained."""
        self.model = model
        self._network = Network(model, next(model.parameters()).device, kernels="transformers")
        self._sent_versions = None

    def _send(self) -> None:
        """Send the current weights to the process unless it has them; `ModelError` if a checksum differs afterwards."""
        state = (self.policy_version, parameter_version(self._network.model))
        if state == self._sent_versions:
            return
        # Forgotten first: after a failure the process may hold anything, and the next call sends again.
        self._sent_versions, self._stamp = None, self._stamp + 1
        header, sums = self._shared_weights.write(self.model)
        try:
            reply, _ = self.process.ask({"do": "load", "stamp": self._stamp, **header})
        finally:
            self._shared_weights.unlink()
        self._check_stamp(reply)
        worker_sums = reply["held"]
        mismatches = [name for name, x in zip(sums, reply["read"], strict=True) if x != sums[name]]
        mismatches += [name for name, x in worker_sums.items() if x != sums.get(name)]
        if mismatches:
            raise ModelError(
                f"vLLM holds other weights than the learner after an update: the checksum of {mismatches[0]} differs"
            )
        self._sent_versions = state

    def _check_stamp(self, reply: Mapping[str, Any]) -> None:
        """Raise ModelError if a reply comes from other weights than those sent last."""
        if reply.get("stamp") != self._stamp:
            raise ModelError(
                f"vLLM answered with weights of stamp {reply.get('stamp')}, the policy's are of stamp {self._stamp}: "
                "the answer is another policy's"
            )

    # ------------------------------------------------------------ sampling
    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        check(
            requests,
            sampling,
            policy=self.policy,
            positions=self.positions,
            limit="max_model_len of vLLM",
            pictures=None if self._vision is not None else "and this model reads texts alone",
        )
        if not any(request.streams for request in requests):
            return [[] for _ in requests]
        if sampling.stop and self.tokenizer is None:
            raise ModelError("stop strings need a tokenizer: give the engine one, or use sampling.stop_ids")
        if sampling.truncated_support and sampling.top_k > MOST_TOP_K:
            raise ModelError(
                f"sampling.top_k={sampling.top_k}: vLLM is asked for at most {MOST_TOP_K} possible tokens at a "
                "position; lower it, or set sampling.engine=torch"
            )
        header, arrays = self._message(requests)
        # One restart per call: a request that ends every process must not restart vLLM for ever.
        try:
            reply, reply_arrays = self._request_samples(sampling, header, arrays)
        except VllmEnded as error:
            self._notify(f"{error}: starting another, which samples the same requests")
            self._start()
            reply, reply_arrays = self._request_samples(sampling, header, arrays)
        if unknown := set(reply["finish"]) - {"stop", "length"}:
            raise ModelError(f"vLLM gave up a sample ({', '.join(sorted(unknown))}): lower sampling.batch_rows")
        # Nothing enters the counters or the rollouts before the whole reply has been validated.
        _check_reply(reply, reply_arrays, sum(len(request.streams) for request in requests), sampling)
        misread = self._misread_requests(requests, reply, reply_arrays)
        self.prefilled_tokens += reply["read"]
        self.reused_tokens += reply["reused"]
        rows = iter(self._completions(reply, reply_arrays, sampling))
        groups = [[next(rows) for _ in request.streams] for request in requests]
        return [[replace(c, finish=MISREAD) for c in g] if i in misread else g for i, g in enumerate(groups)]

    def _message(self, requests: Sequence[Request]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Build header and arrays of a message with these requests."""
        vision, arrays = self._vision, _streams(requests)
        if vision is None:
            return {}, {**_prompts(requests), **arrays}
        header: dict[str, Any] = {"banned": list(vision.banned_ids)}
        if all(max(r.prompt) < media.FIRST for r in requests):
            return header, {**_prompts(requests), **arrays}
        picture_header, prompt_arrays = vllm_pictures.message([r.prompt for r in requests], vision)
        return {**header, **picture_header}, {**prompt_arrays, **arrays}

    def _misread_requests(
        self, requests: Sequence[Request], reply: Mapping[str, Any], reply_arrays: Mapping[str, Any]
    ) -> set[int]:
        """Indices of requests whose pictures vLLM read as other ids.

        `ModelError` if it has read no prompt with pictures correctly so far, or if a placeholder was sampled.
        """
        if self._vision is None:
            return set()
        picture_requests = {i for i, r in enumerate(requests) if r.streams and max(r.prompt) >= media.FIRST}
        misread_at = {i: position for i, position in reply.get("misread", ()) if requests[i].streams}
        # One right reading shows that the processors agree in general, so a later misreading costs that rollout alone;
        # before it, the processors may differ on every picture.
        self._has_read_pictures |= bool(picture_requests - misread_at.keys())
        if misread_at:
            first = next(iter(misread_at))
            explanation = (
                f"vLLM read a request of task {requests[first].streams[0].task!r} otherwise than the learner does, "
                f"first at place {misread_at[first]} of {len(requests[first].prompt)}: its processor makes other rows "
                "of a picture"
            )
            if not self._has_read_pictures:
                raise ModelError(f"{explanation}, and it has read none right so far. Set sampling.engine=torch")
            if not self.misread:
                self._notify(f"{explanation}; such rollouts are unscored, and counted in sampler_misread")
            self.misread += sum(len(requests[i].streams) for i in misread_at)
        if set(self._vision.banned_ids) & set(reply_arrays["tokens"]):
            raise ModelError(
                "vLLM sampled a picture's placeholder, which has no probability: set sampling.engine=torch"
            )
        return set(misread_at)

    def _request_samples(
        self, sampling: Sampling, prompt_header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Send weights if needed, then the requests; return header and arrays of the reply."""
        # Within the call that a restart repeats, so that a new process gets its weights first.
        self._send()
        header = {
            "do": "sample",
            "stamp": self._stamp,
            "support": sampling.truncated_support,
            "sampling": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_new_tokens,
                "ignore_eos": True,  # the ids below end an action, and nothing else
                "stop_token_ids": [*self.stop_ids, *sampling.stop_ids],
                "stop": list(sampling.stop),
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "detokenize": bool(sampling.stop),
            },
            **prompt_header,
        }
        reply, reply_arrays = self.process.ask(header, arrays)
        self._check_stamp(reply)
        return reply, reply_arrays

    def _completions(
        self, reply: Mapping[str, Any], reply_arrays: Mapping[str, Any], sampling: Sampling
    ) -> list[Completion]:
        """Split a reply into completions, in the order of the streams."""
        tokens, logprobs = reply_arrays["tokens"].tolist(), reply_arrays["logprobs"].tolist()
        if sampling.temperature == 0:  # greedy: the token has probability 1
            logprobs = [0.0] * len(logprobs)
        supports = _supports(reply_arrays) if sampling.truncated_support else None
        return [
            Completion(
                tokens=tokens[a:b],
                logprobs=logprobs[a:b],
                finish=finish,
                support=None if supports is None else _trim(supports[a:b]),
                policy_version=self.policy_version,
            )
            for (a, b), finish in zip(
                pairwise(accumulate(reply_arrays["lengths"], initial=0)), reply["finish"], strict=True
            )
        ]

    def figures(self) -> dict[str, float]:
        """Counters since the engine was made, by the names of their metrics; none for models of text."""
        return {} if self._vision is None else {"sampler_misread": self.misread}

    def release(self, names: Sequence[str] | None = None) -> None:
        """Do nothing: vLLM evicts the least recently used prefixes itself."""

    def close(self) -> None:
        """End vLLM's process."""
        if hasattr(self, "process"):
            self.process.close()
        self._shared_weights.unlink()


def _check_reply(reply: Mapping[str, Any], reply_arrays: Mapping[str, Any], n: int, sampling: Sampling) -> None:
    """Raise `ModelError` unless a reply holds `n` samples of valid lengths with valid log-probs."""
    lengths, logprobs = np.asarray(reply_arrays["lengths"]), np.asarray(reply_arrays["logprobs"])
    counts_match = (
        len(reply["finish"]) == len(lengths) == n and len(reply_arrays["tokens"]) == len(logprobs) == lengths.sum()
    )
    if not counts_match or not 1 <= lengths.min() <= lengths.max() <= sampling.max_new_tokens:
        raise ModelError("vLLM answered with other samples than it was asked for")
    if sampling.temperature > 0 and not (np.isfinite(logprobs).all() and logprobs.max() < 1e-3):
        raise ModelError("vLLM answered with log-probs that are nan, infinite or above 0")


def _prompts(requests: Sequence[Request]) -> dict[str, np.ndarray]:
    """Concatenate prompts without pictures."""
    return {
        "tokens": np.concatenate([np.asarray(r.prompt, dtype=np.int32) for r in requests]),
        "lengths": np.asarray([len(r.prompt) for r in requests], dtype=np.int32),
    }


def _streams(requests: Sequence[Request]) -> dict[str, np.ndarray]:
    """Prompt index and seed of every stream."""
    return {
        "prompt": np.asarray([i for i, r in enumerate(requests) for _ in r.streams], dtype=np.int32),
        "seeds": np.asarray([seed_of(key) for r in requests for key in r.streams], dtype=np.int64),
    }


def _supports(reply_arrays: Mapping[str, Any]) -> np.ndarray:
    """Support [all tokens, K] int64, padded with -1."""
    widths = np.asarray(reply_arrays["widths"], dtype=np.int64)
    out = np.full((len(widths), int(widths.max(initial=0))), -1, dtype=np.int64)
    out[np.arange(out.shape[1]) < widths[:, None]] = np.asarray(reply_arrays["support"], dtype=np.int64)
    return out


def _trim(support: np.ndarray) -> np.ndarray:
    """Drop columns that are padding in every row."""
    return support[:, : int((support >= 0).sum(1).max(initial=0))].copy()
