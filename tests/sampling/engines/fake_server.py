"""An OpenAI-compatible server on loopback that samples from a small Llama; settings say what it leaves out.

With `loader` it speaks vLLM 0.32's developer routes, as far as weights are published by them, and loads what it is told
to into its model by the worker extension's own code. `python -m tests.sampling.engines.fake_server MODEL TASK PORT` is
such a server in a process, with the model as a run would begin with it, until its parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import torch
from tests.sampling.engines.fake_vllm import LLM, SamplingParams
from tests.sampling.engines.letters import letters, llama

from gxpo.sampling.engines.in_vllm import gxpo_vllm


def completion(body: dict[str, Any], how: SimpleNamespace) -> dict[str, Any]:
    """What /v1/completions says to a request."""
    params = SamplingParams(
        temperature=body["temperature"], top_k=body.get("top_k", 0), top_p=body["top_p"], max_tokens=body["max_tokens"],
        seed=body["seed"], stop_token_ids=body["stop_token_ids"], stop=body.get("stop", ()), logprobs=body["logprobs"],
        ignore_eos=body["ignore_eos"], include_stop_str_in_output=body["include_stop_str_in_output"],
        detokenize=bool(body.get("stop")),
    )  # fmt: skip
    fake = LLM.__new__(LLM)
    fake.model, fake.tokenizer, fake.seen = how.model, how.tokenizer, set()
    with torch.no_grad():
        out = fake._one({"prompt_token_ids": body["prompt"]}, params).outputs[0]
        logits = how.model(input_ids=torch.tensor([body["prompt"] + out.token_ids])).logits[0].float()
    own_logprobs = [actual[t].logprob for t, actual in zip(out.token_ids, out.logprobs, strict=True)]
    if how.raw:
        raw = logits[len(body["prompt"]) - 1 : -1].log_softmax(-1)
        own_logprobs = [float(raw[i, t]) for i, t in enumerate(out.token_ids)]
        top = [row.topk(body["logprobs"]).indices.tolist() for row in raw]
        out.logprobs = [{t: SimpleNamespace(logprob=float(raw[i, t])) for t in ids} for i, ids in enumerate(top)]
    name = (lambda t: f"token_id:{t}") if how.ids == "written" or how.ids == "both" else (lambda t: f"<{t}>")
    choice = {
        "index": 0,
        "text": how.tokenizer.decode(out.token_ids),
        "finish_reason": how.finish or out.finish_reason,
        "logprobs": {
            "tokens": [name(t) for t in out.token_ids],
            "token_logprobs": own_logprobs if how.logprobs else [None] * len(own_logprobs),
            "top_logprobs": [{name(t): max(x.logprob, -9999.0) for t, x in row.items()} for row in out.logprobs],
        },
    }
    if how.ids == "both":
        choice |= {"token_ids": out.token_ids, "prompt_token_ids": [*how.before, *body["prompt"]]}
    return {"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"])}}


class Loader(gxpo_vllm.WeightLoader):
    """A worker of vLLM with the extension, whose model is a small Llama. A restart: another one."""

    def __init__(self, model: Any) -> None:
        parameters = dict(model.named_parameters())
        model.load_weights = lambda weights: [parameters[name].data.copy_(x) for name, x in weights]
        self.model_runner = SimpleNamespace(model=model)
        self.boot = uuid.uuid4().hex

    def gxpo_config(self) -> Any:
        return nullcontext()

    def gxpo_state(self) -> dict[str, Any]:
        return {**super().gxpo_state(), "boot": self.boot}


class Cut(Exception):
    """The connection ends within an answer."""


@contextmanager
def served(port: int = 0, **settings: Any) -> Iterator[tuple[str, SimpleNamespace]]:
    """The server's address and its settings, which may be changed while it runs.

    ids       "both" | "written" (as token_id:N only) | "none"
    logprobs  whether it gives any;   raw  from before temperature and top-k;   before  ids that it puts first
    finish    reason that every sample is said to have ended for
    failing   status of every answer;   drops  connections to close without an answer
    spoil     a function that changes a completion before it is sent
    before_answer  called with the request's body before a completion is answered: it may wait, or raise `Cut`
    loader    `Loader` of its model; None: it has no route to load weights
    positions tokens that a context may have
    healthy   status of /health;   rpc  called with the method before /collective_rpc carries it out
    """
    how = SimpleNamespace(
        model=llama(), tokenizer=letters(), ids="both", logprobs=True, raw=False, before=[], failing=None, drops=0,
        finish=None, models=["letters"], asked=[], connections=set(), spoil=lambda said: said,
        before_answer=lambda body: None, loader=None, healthy=200, rpc=lambda method: None, rpcs=[], resets=0,
        positions=128,
    )  # fmt: skip
    how.__dict__.update(settings)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _say(self, said: Any, status: int = 200) -> None:
            raw = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self) -> None:
            if self.path == "/health":
                return self._say({}, how.healthy)
            self._say({"data": [{"id": m, "max_model_len": how.positions} for m in how.models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path in ("/collective_rpc", "/reset_prefix_cache"):
                return self._control(body)
            with lock:
                how.asked.append((body, self.headers.get("Authorization")))
                how.connections.add(self.client_address)
                if how.drops:
                    how.drops -= 1
                    self.close_connection = True
                    return
            try:
                how.before_answer(body)
            except Cut:
                self._cut()
                return
            with lock:
                text = how.spoil(completion(body, how)) if how.failing is None else {"error": {"message": "no\nroom"}}
            self._say(text, how.failing or 200)

        def _cut(self) -> None:
            """The head of an answer and some of its body, then nothing."""
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [{')
            self.close_connection = True

        def _control(self, body: dict[str, Any]) -> None:
            if how.loader is None:
                return self._say({"detail": "Not Found"}, 404)
            if self.path == "/reset_prefix_cache":
                how.resets += 1
                return self._say({"success": True})
            how.rpcs.append(body["method"])
            try:
                how.rpc(body["method"])
                with lock:
                    text = getattr(how.loader, body["method"])(*body.get("args", []))
            except Exception as error:
                return self._say({"error": {"message": f"Call to collective_rpc method failed: {error}"}}, 500)
            self._say({"results": [text]})

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", how
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    from gxpo.training import models

    name, task, port = sys.argv[1:]
    parent = os.getppid()
    torch.set_num_threads(1)
    loaded = models.load(name, task=task, device="cpu", dtype="float32")
    longest = int(loaded.model.config.max_position_embeddings)
    with served(
        int(port), model=loaded.model, tokenizer=loaded.tokenizer, loader=Loader(loaded.model), positions=longest
    ):
        while os.getppid() == parent:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
