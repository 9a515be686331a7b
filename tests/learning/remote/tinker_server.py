"""A Tinker server for tests, on the loopback interface: full parameters of a small model, one model and its copies."""

from __future__ import annotations

import copy
import itertools
import json
import math
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as pb

from gxpo.learning.remote.tinker import Reduction, ScaledRow

PROTO = "application/x-protobuf"
DTYPES = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}


class Trained:
    """A model on the server, its AdamW, and the calls since its last step."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model)
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=0.0, weight_decay=0.0)
        self.calls: list[list[tuple[ScaledRow, list[float], list[float]]]] = []

    def logprobs(self, tokens: tuple[int, ...]) -> torch.Tensor:
        """[n - 1] live log-probs of the tokens after the first."""
        z = self.model(input_ids=torch.tensor([tokens[:-1]]), use_cache=False).logits[0].log_softmax(-1)
        return z.gather(1, torch.tensor(tokens[1:])[:, None]).squeeze(1)


class Fake:
    """The server's state and its answers by path.

    reduction  by what it divides a loss (`gxpo.learning.remote.tinker.DIVISORS`)
    clips      whether it heeds grad_clip_norm;   norm  whether it reports the gradient norm
    eps        of its AdamW, whatever is asked for, as SkyRL's FSDP and Megatron backends; None: what is asked for
    """

    def __init__(self, model: Any, *, reduction: str = "sum", clips: bool = True, norm: bool = True,
                 eps: float | None = None) -> None:  # fmt: skip
        self.base, self.reduction, self.clips, self.norm, self.eps = model, Reduction(reduction), clips, norm, eps
        self.models: dict[str, Trained] = {}
        self.saved: dict[str, Trained] = {}
        self.samplers: dict[str, Any] = {}
        self.results: dict[str, tuple[str, Any]] = {}
        self.lock, self.number = threading.RLock(), itertools.count(1)
        self.asked: list[dict[str, Any]] = []  # sampling parameters

    @property
    def newest(self) -> Trained:
        return list(self.models.values())[-1]

    # ------------------------------------------------------------ requests
    def answer(self, path: str, body: Any) -> dict[str, Any]:
        name = path.removeprefix("/api/v1/")
        if name.startswith("samplers/"):
            return {"sampler_id": name.split("/")[1], "base_model": "fake"}
        with self.lock:
            return getattr(self, "on_" + name.replace("/", "_"))(body)

    def later(self, kind: str, work: Callable[[], Any]) -> dict[str, Any]:
        key = str(next(self.number))
        try:
            self.results[key] = (kind, work())
        except Exception as error:
            self.results[key] = ("error", {"error": repr(error), "category": "server"})
        return {"request_id": key, "future_id": key, "status": "pending"}

    def on_client_config(self, _: Any) -> dict[str, Any]:
        return {"pjwt_auth_enabled": False}

    def on_client_dynamic_config(self, _: Any) -> dict[str, Any]:
        return {}

    def on_create_session(self, _: Any) -> dict[str, Any]:
        return {"session_id": f"s{next(self.number)}"}

    def on_session_heartbeat(self, _: Any) -> dict[str, Any]:
        return {"type": "session_heartbeat"}

    def on_telemetry(self, _: Any) -> dict[str, Any]:
        return {"status": "accepted"}

    def on_create_model(self, body: Any) -> dict[str, Any]:
        name = f"{body['session_id']}:train:{body['model_seq_id']}"
        return {**self.later("json", lambda: self._new(name, Trained(self.base))), "model_id": name}

    def _new(self, name: str, trained: Trained) -> dict[str, Any]:
        self.models.pop(name, None)  # the newest is last
        self.models[name] = trained
        return {"model_id": name}

    def on_get_info(self, body: Any) -> dict[str, Any]:
        return {"model_id": body["model_id"], "status": "created", "model_data": {"model_name": "fake"}}

    def on_weights_info(self, _: Any) -> dict[str, Any]:
        return {"base_model": "fake", "is_lora": True, "lora_rank": 32}

    def on_forward(self, body: Any) -> dict[str, Any]:
        return self._passes(body["model_id"], body["forward_input"]["loss_fn"], _rows(body["forward_input"]), True)

    def on_forward_backward(self, body: Any) -> dict[str, Any]:
        if isinstance(body, bytes):
            text = pb.ForwardBackwardRequest()
            text.ParseFromString(body)
            return self._passes(text.model_id, text.loss_fn, _rows_of_proto(text), text.forward_only)
        given_body = body["forward_backward_input"]
        return self._passes(body["model_id"], given_body["loss_fn"], _rows(given_body), False)

    def _passes(self, model: str, loss: str, rows: list[dict[str, Any]], only: bool) -> dict[str, Any]:
        return self.later("rows", lambda: self._ran(self.models[model], loss, rows, only))

    def _ran(self, trained: Trained, loss: str, rows: list[dict[str, Any]], only: bool) -> list[list[float]]:
        with torch.no_grad():
            actual = [trained.logprobs(row["tokens"]).tolist() for row in rows]
        if not only:
            assert loss == "importance_sampling" and all({"logprobs", "advantages"} <= row.keys() for row in rows)
            trained.calls.append(
                [(ScaledRow(r["tokens"], [0.0] * (len(r["tokens"]) - 1)), r["logprobs"], r["advantages"]) for r in rows]
            )
        return actual

    def gradient(self, trained: Trained) -> None:
        """Leave the gradient of the calls so far in the parameters."""
        trained.adamw.zero_grad(set_to_none=False)
        step = [[row for row, _, _ in call] for call in trained.calls]
        for call, shapes in zip(trained.calls, step, strict=True):
            for row, old, advantage in call:
                ratio = (trained.logprobs(row.tokens) - torch.tensor(old)).exp()
                loss = -(ratio * torch.tensor(advantage)).sum() / self.reduction.divisor(row, shapes, step)
                loss.backward()

    def on_optim_step(self, body: Any) -> dict[str, Any]:
        return self.later("json", lambda: self._stepped(self.models[body["model_id"]], body["adam_params"]))

    def _stepped(self, trained: Trained, given: dict[str, Any]) -> dict[str, Any]:
        self.gradient(trained)
        trained.calls = []
        limit = given.get("grad_clip_norm") or math.inf
        norm = torch.nn.utils.clip_grad_norm_(trained.model.parameters(), limit if self.clips else math.inf)
        for group in trained.adamw.param_groups:
            group |= {"lr": given["learning_rate"], "betas": (given["beta1"], given["beta2"]),
                      "eps": self.eps or given["eps"], "weight_decay": given["weight_decay"]}  # fmt: skip
        trained.adamw.step()
        return {"metrics": {"fake/grad_norm": float(norm)} if self.norm else {"loss": 0.0}}

    # ------------------------------------------------------------ states and samplers
    def on_save_weights(self, body: Any) -> dict[str, Any]:
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        assert path not in self.saved
        self.saved[path] = copy.deepcopy(self.models[body["model_id"]])
        return self.later("json", lambda: {"path": path, "type": "save_weights"})

    def on_load_weights(self, body: Any) -> dict[str, Any]:
        name = body.get("model_id") or f"{body['session_id']}:train:{body['model_seq_id']}"
        return self.later("json", lambda: self._new(name, copy.deepcopy(self.saved[body["path"]])))

    def on_save_weights_for_sampler(self, body: Any) -> dict[str, Any]:
        name = f"sampler{next(self.number)}"
        self.samplers[name] = copy.deepcopy(self.models[body["model_id"]].model)
        return self.later("json", lambda: {"path": None, "sampling_session_id": name})

    def on_asample(self, body: Any) -> dict[str, Any]:
        self.asked.append(body["sampling_params"])
        prompt = [t for chunk in body["prompt"]["chunks"] for t in chunk["tokens"]]
        model = self.samplers[body["sampling_session_id"]]
        text = self.later("sample", lambda: _sampled(model, prompt, body["sampling_params"]))
        return {**text, "sample_sequence_ids": [f"sequence{text['request_id']}"]}

    def on_retrieve_future(self, body: Any) -> Any:
        kind, actual = self.results[str(body["request_id"])]
        return actual if kind in ("json", "error") else _encoded(kind, actual)


def _rows(given: Any) -> list[dict[str, Any]]:
    return [_row([t for c in d["model_input"]["chunks"] for t in c["tokens"]],
                 {name: x["data"] for name, x in d["loss_fn_inputs"].items()}) for d in given["data"]]  # fmt: skip


def _rows_of_proto(said: Any) -> list[dict[str, Any]]:
    out = []
    for d in said.data:
        tokens = [int(t) for c in d.model_input for t in np.frombuffer(c.encoded_text.tokens, dtype=np.int32)]
        out.append(
            _row(
                tokens, {n: np.frombuffer(x.dense, dtype=DTYPES[x.dtype]).tolist() for n, x in d.loss_fn_inputs.items()}
            )
        )
    return out


def _row(tokens: list[int], inputs: dict[str, list[Any]]) -> dict[str, Any]:
    target = [int(t) for t in inputs["target_tokens"]]
    assert target[:-1] == tokens[1:] and len(target) == len(tokens)
    return {**inputs, "tokens": (*tokens, target[-1])}


def _sampled(model: Any, prompt: list[int], given: dict[str, Any]) -> tuple[list[int], list[float], str]:
    draw, tokens, logprobs = torch.Generator().manual_seed(given["seed"]), [], []
    for _ in range(given["max_tokens"]):
        with torch.no_grad():
            z = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1]
        heat = given["temperature"]
        own_log_softmax = (z / heat if heat else z).log_softmax(-1)
        t = int(torch.multinomial(own_log_softmax.exp(), 1, generator=draw)) if heat else int(own_log_softmax.argmax())
        tokens, logprobs = [*tokens, t], [*logprobs, float(own_log_softmax[t])]
        if t in (given.get("stop") or ()):
            return tokens, logprobs, "stop"
    return tokens, logprobs, "length"


def _encoded(kind: str, found: Any) -> bytes:
    if kind == "sample":
        tokens, logprobs, why = found
        out = pb.SampleResponse()
        out.sequences.append(
            pb.SampledSequence(
                stop_reason=pb.STOP_REASON_STOP if why == "stop" else pb.STOP_REASON_LENGTH,
                tokens=np.asarray(tokens, dtype=np.int32).tobytes(),
                logprobs=np.asarray(logprobs, dtype=np.float32).tobytes(),
            )
        )
        return out.SerializeToString()
    out = pb.ForwardBackwardOutput()
    out.loss_fn_output_type = "fake"
    record = out.loss_fn_outputs.add()
    record.num_datums = len(found)
    arrays = [np.asarray(x, dtype=np.float32) for x in found]
    record.fields["logprobs"].CopyFrom(
        pb.BatchedTensor(
            data=b"".join(a.tobytes() for a in arrays),
            offsets=np.cumsum([0, *(a.nbytes for a in arrays)], dtype=np.int64).tobytes(),
            dtype=pb.DTYPE_FLOAT32,
        )
    )
    return out.SerializeToString()


class Server:
    """`Fake` behind HTTP, as a context manager; `url`."""

    def __init__(self, fake: Fake) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                binary = PROTO in (self.headers.get("Content-Type") or "")
                self.reply(lambda: fake.answer(self.path, raw if binary else json.loads(raw or b"{}")))

            def do_GET(self) -> None:
                self.reply(lambda: fake.answer(self.path, None))

            def reply(self, work: Callable[[], Any]) -> None:
                try:
                    actual, status = work(), 200
                except (AttributeError, KeyError) as error:
                    actual, status = {"detail": repr(error)}, 404
                data = actual if isinstance(actual, bytes) else json.dumps(actual).encode()
                self.send_response(status)
                self.send_header("Content-Type", PROTO if isinstance(actual, bytes) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()
