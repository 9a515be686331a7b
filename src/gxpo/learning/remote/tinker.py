"""Training engine over a server that speaks the Tinker protocol: SkyRL's (FSDP, Megatron, JAX), or a hosted service."""

from __future__ import annotations

import hashlib
import json
import math
import os
import urllib.error
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, ConfigError, ModelError, need
from gxpo.learning.remote.probe import EPS, Descent, heeds_eps, step_if_eps_ignored
from gxpo.parts.protocols import TokenRow

# ---------------------------------------------------------------- reduction
# Divisors of a training server's loss: the known ones, and the one that explains measured gradient norms.
TOLERANCE = 0.02  # relative, of a measured norm


@dataclass(frozen=True)
class ScaledRow:
    """Row for a server: tokens [n], and slopes [n - 1] of the log-probs of all but the first."""

    tokens: tuple[int, ...]
    slopes: list[float]


Pull = Sequence[ScaledRow]  # rows of one call


def _tokens(pulls: Sequence[Pull]) -> int:
    return sum(len(s.slopes) for pull in pulls for s in pull)


# name -> divisor of a row's terms, from the row, its call, and all calls up to the optimiser step
DIVISORS: Mapping[str, Callable[[ScaledRow, Pull, Sequence[Pull]], float]] = {
    "sum": lambda row, call, step: 1,
    "mean over a call's rows": lambda row, call, step: len(call),
    "mean over a step's rows": lambda row, call, step: sum(map(len, step)),
    "mean over a row's tokens": lambda row, call, step: len(row.slopes),
    "mean over a row's tokens and a call's rows": lambda row, call, step: len(row.slopes) * len(call),
    "mean over a row's tokens and a step's rows": lambda row, call, step: len(row.slopes) * sum(map(len, step)),
    "mean over a call's tokens": lambda row, call, step: _tokens([call]),
    "mean over a step's tokens": lambda row, call, step: _tokens(step),
}


@dataclass(frozen=True)
class Reduction:
    """One of `DIVISORS`, by name."""

    name: str

    def divisor(self, row: ScaledRow, call: Pull, step: Sequence[Pull]) -> float:
        """Divisor of a row's terms."""
        return float(DIVISORS[self.name](row, call, step))


def experiments(tokens: Sequence[int]) -> list[list[list[ScaledRow]]]:
    """Calls of several experiments, each between two optimiser steps: slopes of the second token sum to 1 or 2.

    Under a causal model all rows below have the same gradient of the token's log-prob; the norm differs by divisors.

    tokens  at least 3
    """

    def row(n: int, slope: float) -> ScaledRow:
        return ScaledRow(tuple(tokens[:n]), [slope] + [0.0] * (n - 2))

    unit, long, idle = row(2, 1.0), row(len(tokens), 1.0), row(len(tokens), 0.0)
    return [[[unit]], [[unit, unit]], [[unit], [unit]], [[long]], [[unit, idle]], [[unit], [idle]]]


def reduction_from_norms(norms: Sequence[float], experiment_calls: Sequence[Sequence[Pull]]) -> Reduction | None:
    """Reduction that explains the norms of experiments, relative to the first; None if no known one does."""
    for name in DIVISORS:
        way = Reduction(name)
        predicted = [
            abs(sum(sum(s.slopes) / way.divisor(s, c, step) for c in step for s in c)) for step in experiment_calls
        ]
        pairs = zip(norms, predicted, strict=True)
        if all(abs(n / norms[0] - e / predicted[0]) <= TOLERANCE * (e / predicted[0]) for n, e in pairs):
            return way
    return None


# ---------------------------------------------------------------- tinker
STATE = "tinker.json"
FORMAT = "gxpo.tinker/1"
REACH = 10.0  # seconds to wait for a first answer
NORMS = ("grad_norm", "gradient_norm", "global_norm")  # last part of the metric that is the norm before clipping
MOVE = 0.2  # nats by which a probe moves a token, far above the rounding of bfloat16
PROBED = tuple(range(3, 11))  # ids of the sequence on which a server is measured


@dataclass(frozen=True)
class Adapter:
    """LoRA adapters of a Tinker server, which sets their scale and the adapted modules."""

    rank: int = 32
    seed: int = 0


class TinkerEngine:
    """A `gxpo.parts.protocols.TrainEngine` over the `tinker` SDK (`pip install 'gxpo[tinker]'`).

    address     the server's URL
    base_model  as the server calls it
    weight_decay, betas  of AdamW; the step size and `eps` come with every step
    timeout     seconds for one request; `ModelError` after that

    `forward` is the server's forward pass with cross_entropy, which gives log-probs. `pull` is importance_sampling
    over the learner's own log-probs: its ratio is exactly 1, so the gradient is that of -advantage times log-prob.
    (Weights of cross_entropy can't be slopes: servers divide by their sum.) Servers divide a loss by rows or tokens,
    each in its own way (`DIVISORS`); the divisor is measured at the start and multiplied back, for which all of a
    step's rows must be known: pulls are kept here and sent by `step`, so `discard` is exact as well.

    Log-probs are at temperature 1 and there are no entropies. The norm is the server's `grad_norm`; a server that
    reports none is refused. The key is TINKER_API_KEY; servers of one's own take any.
    """

    abilities = frozenset({"logprob", "save"})

    def __init__(
        self,
        address: str,
        base_model: str,
        *,
        adapter: Adapter | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        timeout: float = 600.0,
    ) -> None:
        self._tinker = need("tinker", "tinker")
        self.address, self.base_model, self.adapter = address, base_model, adapter or Adapter()
        self.betas, self.weight_decay, self.eps, self.timeout = betas, weight_decay, 1e-8, timeout
        # a name of this run's own: two runs may share a server
        self._name, self._save_count = f"gxpo-{uuid.uuid4().hex[:12]}", 0
        _check_reachable(address)
        key = os.environ.get("TINKER_API_KEY") or "tml-none"
        self._service = self._request("connect", lambda: self._tinker.ServiceClient(base_url=address, api_key=key))
        self._pending_pulls: list[list[ScaledRow]] = []
        self._logprobs: dict[tuple[int, ...], list[float]] = {}
        self.version, self._sampler, self._is_published = 0, None, False
        # measure the server on fresh adapters, then start from fresh ones again
        self._client = self._new_client()
        self.reduction, norm = self._measure_reduction()
        self.fixed_eps = None if heeds_eps(self._move_of_step(step_if_eps_ignored(norm, MOVE)), MOVE) else self.eps
        self.clips = self._server_clips(norm)
        self._client = self._new_client()

    # ------------------------------------------------------------ the server
    def _request(self, action: str, call: Any, timeout: float | None = None) -> Any:
        """Result of a request to the server; errors of the SDK become a `ModelError` of one line."""
        try:
            out = call()
            return out.result(timeout or self.timeout) if hasattr(out, "result") else out
        except TimeoutError as error:
            seconds = timeout or self.timeout
            raise ModelError(f"{self.address} did not {action} within {seconds:g} seconds") from error
        except Exception as error:  # the SDK's, its HTTP library's and pydantic's
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ModelError(f"{self.address} could not {action}: {reason}") from error

    def _new_client(self) -> Any:
        lora = self.adapter
        self._forget()
        return self._request(
            f"make a LoRA of rank {lora.rank} for {self.base_model}",
            lambda: self._service.create_lora_training_client(self.base_model, rank=lora.rank, seed=lora.seed),
        )

    def _forget(self) -> None:
        """Drop pulls and log-probs of the former weights."""
        self._pending_pulls, self._logprobs, self._is_published = [], {}, False

    def _datum(self, tokens: Sequence[int], **inputs: Sequence[float]) -> Any:
        """Row in the SDK's form: tokens [n]; inputs [n - 1] of the tokens after the first."""
        t = self._tinker.types
        fields = {"target_tokens": t.TensorData(data=list(tokens[1:]), dtype="int64", shape=[len(tokens) - 1])}
        for name, x in inputs.items():
            fields[name] = t.TensorData(data=list(x), dtype="float32", shape=[len(tokens) - 1])
        return t.Datum(model_input=t.ModelInput.from_ints(list(tokens[:-1])), loss_fn_inputs=fields)

    def _read(self, sequences: Sequence[tuple[int, ...]]) -> list[list[float]]:
        """Log-probs [n - 1] of the tokens after the first of each sequence, requested once between two steps."""
        # the same sequence is read for its log-probs and again for its slopes
        unread = list(dict.fromkeys(s for s in sequences if s not in self._logprobs))
        if unread:
            data = [self._datum(s, weights=[1.0] * (len(s) - 1)) for s in unread]
            out = self._request("run a forward pass", lambda: self._client.forward(data, "cross_entropy"))
            if len(out.loss_fn_outputs) != len(unread):
                raise ModelError(f"{self.address} answered {len(unread)} rows with {len(out.loss_fn_outputs)}")
            for s, output in zip(unread, out.loss_fn_outputs, strict=True):
                values = [float(x) for x in output["logprobs"].data] if "logprobs" in output else []
                if len(values) != len(s) - 1:
                    raise ModelError(f"{self.address} gave {len(values)} log-probs of a row of {len(s)} tokens")
                self._logprobs[s] = values
        return [self._logprobs[s] for s in sequences]

    # ------------------------------------------------------------ rows
    def forward(
        self, rows: Sequence[TokenRow], names: Sequence[str] = ("logprob",), policy: str = "current"
    ) -> dict[str, list[Tensor]]:
        _check_only_logprobs(rows, names, policy)
        logprobs = self._read([tuple(row.tokens.tolist()) for row in rows])
        return {
            "logprob": [torch.tensor(x, dtype=torch.float64)[r.read - 1] for r, x in zip(rows, logprobs, strict=True)]
        }

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        _check_only_logprobs(rows, tuple(slopes), "current")
        out = []
        for row, slope in zip(rows, slopes["logprob"], strict=True):
            slope_row = torch.zeros(row.tokens.numel() - 1, dtype=torch.float64)
            slope_row.index_add_(0, row.read - 1, slope.to("cpu", torch.float64))
            if bool(slope_row.any()):
                out.append(ScaledRow(tuple(row.tokens.tolist()), slope_row.tolist()))
        if out:
            self._pending_pulls.append(out)

    def _send(self, pulls: Sequence[Sequence[ScaledRow]], reduction: Reduction) -> None:
        """Send pulls, whose gradient then lies on the server."""
        logprobs_by_tokens = {
            s.tokens: x for p in pulls for s, x in zip(p, self._read([s.tokens for s in p]), strict=True)
        }
        for pull in pulls:
            data = []
            for s in pull:
                # an importance ratio of exactly 1 has the gradient -advantage; the server's divisor is multiplied back
                factor = reduction.divisor(s, pull, pulls)
                data.append(
                    self._datum(
                        s.tokens, logprobs=logprobs_by_tokens[s.tokens], advantages=[-g * factor for g in s.slopes]
                    )
                )
            self._request(
                "run a backward pass", lambda data=data: self._client.forward_backward(data, "importance_sampling")
            )

    # ------------------------------------------------------------ steps
    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        if max_grad_norm and not self.clips:
            raise ConfigError(f"{self.address} ignores the limit on the gradient norm: set optim.max_grad_norm=0")
        # a slope that is nan would break the server's weights, which nothing here can undo
        if not all(math.isfinite(g) for pull in self._pending_pulls for s in pull for g in s.slopes):
            self.discard()
            return math.nan
        if not self._pending_pulls:
            return 0.0  # nothing to follow: AdamW of torch leaves parameters without a gradient alone, too
        pulls, self._pending_pulls = self._pending_pulls, []
        self._send(pulls, self.reduction)
        norm = self._send_step(lr, max_grad_norm or 0.0, self.eps if eps is None else eps)
        if not math.isfinite(norm):
            raise ModelError(
                f"{self.address} took a step with the gradient norm {norm}, which may have broken its weights: "
                "gxpo resume goes back to the newest checkpoint"
            )
        return norm

    def _send_step(self, lr: float, limit: float, eps: float) -> float:
        params = self._tinker.types.AdamParams(
            learning_rate=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=eps,
            weight_decay=self.weight_decay,
            **({"grad_clip_norm": limit} if limit else {}),
        )
        out = self._request("take an optimiser step", lambda: self._client.optim_step(params))
        # the log-probs that are held are those of the weights before
        self._forget()
        # names differ by server and version, with prefixes and suffixes
        norms = {name: x for name, x in (out.metrics or {}).items() if name.split("/")[-1].split(":")[0] in NORMS}
        if not norms:
            metric_names = ", ".join(out.metrics or {}) or "none"
            raise ModelError(
                f"{self.address} reports no gradient norm after an optimiser step (metrics: {metric_names}), so its "
                "gradient can't be checked: use a server that does, such as SkyRL's"
            )
        return float(next(iter(norms.values())))

    def discard(self) -> None:
        self._pending_pulls = []

    # ------------------------------------------------------------ measurements of the server
    def _measure_reduction(self) -> tuple[Reduction, float]:
        """Measure the divisor of the server's loss; return it and the gradient norm of a single token.

        From the norms of a token in rows and calls of several shapes, under steps of size zero.
        """
        norms = []
        for pulls in experiments(PROBED):
            # sent as for a sum: how the norms differ from one is the server's reduction
            self._send(pulls, Reduction("sum"))
            norms.append(self._send_step(0.0, 0.0, EPS))
        if not norms[0] > 0:
            raise ModelError(f"{self.address} reports the gradient norm {norms[0]:.3g} for a token with slope 1")
        reduction = reduction_from_norms(norms, experiments(PROBED))
        if reduction is None:
            relative_norms = ", ".join(f"{n / norms[0]:.4g}" for n in norms)
            raise ModelError(
                f"how {self.address} reduces a loss over rows and tokens is not known to gxpo (relative norms "
                f"{relative_norms}): see docs/train-engines.md"
            )
        return reduction, norms[0]

    def _server_clips(self, norm: float) -> bool:
        """Return True if the server limits the gradient norm, by a step of plain gradient descent under a limit."""
        descent = Descent.by(MOVE / norm**2, norm, self.fixed_eps)
        return -self._move_of_step(descent, limit=descent.slope * norm / 4) < MOVE / 2

    def _move_of_step(self, descent: Descent, limit: float = 0.0) -> float:
        """Nats by which a step of fresh adapters moves the second probed token."""
        self._client = self._new_client()
        (before,) = self._read([PROBED[:2]])
        self._send([[ScaledRow(PROBED[:2], [descent.slope])]], self.reduction)
        self._send_step(descent.lr, limit, self.eps if descent.eps is None else descent.eps)
        (after,) = self._read([PROBED[:2]])
        return after[0] - before[0]

    # ------------------------------------------------------------ samplers
    def publish(self, version: int, timeout: float) -> None:
        if not self._is_published:
            self._sampler = self._request(
                "publish its weights", self._client.save_weights_and_get_sampling_client, timeout
            )
            self._is_published = True
        self.version = version

    @property
    def sampler(self) -> Any:
        """SDK client of the samplers that hold the published weights; None before `publish`."""
        return self._sampler

    # ------------------------------------------------------------ state
    def save(self, path: Path) -> None:
        """Let the server save weights and moments; a file below `path` notes where."""
        self._save_count += 1
        name = f"{self._name}-{self._save_count:06d}"
        out = self._request("save its state", lambda: self._client.save_state(name))
        path.mkdir(parents=True, exist_ok=True)
        record = {"format": FORMAT, "path": out.path, "base_model": self.base_model, "rank": self.adapter.rank}
        (path / STATE).write_text(json.dumps(record, indent=1))

    def load(self, path: Path) -> None:
        try:
            record = json.loads((path / STATE).read_text())
            server_path, base, rank = record["path"], record["base_model"], record["rank"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path / STATE} is no checkpoint of cluster.backend=tinker") from error
        # a server would load what fits, of another model too
        if (base, rank) != (self.base_model, self.adapter.rank):
            raise CheckpointError(
                f"{path / STATE} is of {base} with rank {rank}, and this run has {self.base_model} with rank "
                f"{self.adapter.rank}"
            )
        try:
            self._client = self._request(
                f"load {server_path}",
                lambda: self._service.create_training_client_from_state_with_optimizer(server_path),
            )
        except (
            ModelError
        ):  # the SDK from 0.25 on makes the model by loading, which servers may not know (SkyRL a956457)
            self._client = self._new_client()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                self._request(f"load {server_path}", lambda: self._client.load_state_with_optimizer(server_path))
        self._forget()

    def fingerprint(self) -> int:
        """64-bit hash of the log-probs of a fixed sequence, since the weights stay on the server.

        Equal weights give an equal number only where the server computes a row in the same way each time.
        """
        (logprobs,) = self._read([PROBED])
        bits = torch.tensor(logprobs, dtype=torch.float32).numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(bits, digest_size=8).digest(), "little")


def _check_reachable(address: str) -> None:
    """Raise ModelError unless a server answers at the address: the SDK would try for minutes."""
    try:
        urllib.request.urlopen(f"{address.rstrip('/')}/api/v1/healthz", timeout=REACH).close()
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ModelError(f"cluster.address={address} can't be reached ({reason}): start the server there") from error


def _check_only_logprobs(rows: Sequence[TokenRow], names: Sequence[str], policy: str) -> None:
    """Raise ModelError for what a Tinker server does not compute."""
    if policy != "current" or set(names) - {"logprob"}:
        raise ModelError("a Tinker server gives log-probs of the current policy, and nothing else")
    if any(bool((row.temperature != 1).any()) for row in rows):
        raise ModelError("a Tinker server gives log-probs at temperature 1 alone: set sampling.temperature=1")
