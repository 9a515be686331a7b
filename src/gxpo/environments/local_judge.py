"""Local LLM judge: a causal language model in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base import media
from gxpo.base.judges import JudgeFailure, Messages, meter, reply_cut_off
from gxpo.base.usercode import described
from gxpo.models.chat import make as chat_of
from gxpo.models.chat.plain import Tokens
from gxpo.models.decoder.vision import triples_of, vision_of


@dataclass(frozen=True)
class LocalJudge:
    """Judge by a causal language model in this process; greedy, one question at a time.

    A model that reads pictures (`models.decoder.vision.READ`) is shown those of a task; any other is told their names.

    model, tokenizer  of transformers; a chat template is used where the tokenizer has one, else the messages' texts
    max_new_tokens    of an answer
    """

    model: Any
    tokenizer: Any
    max_new_tokens: int = 64
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def vision(self) -> bool:
        """True if the model reads pictures."""
        return vision_of(self.model) is not None

    def _tokens(self) -> Tokens:
        vision = vision_of(self.model)
        return Tokens(self.tokenizer, None if vision is None else vision.ids)

    def _inputs(self, row: Sequence[int]) -> dict[str, Any]:
        """Model inputs of a list of ids: input_ids [1, n] and, for m-RoPE, position_ids [3, 1, n]."""
        import torch

        inputs = {"input_ids": torch.tensor([[*row]], device=self.model.device)}
        if (vision := triples_of(self.model)) is not None:
            inputs["position_ids"] = vision.positions(row)[0][:, None].to(self.model.device)
        return inputs

    def ask(self, messages: Messages) -> str:
        """Reply to messages, greedily; JudgeFailure where the model fails, has no room or does not finish."""
        import torch

        row = self._ids(messages)
        self._check_room(len(row), self.max_new_tokens)
        has_pictures = any(map(media.is_row, row))
        inputs = self._inputs(row)
        ids = inputs.pop("input_ids")
        if inputs and media.is_row(row[-1]):  # `generate` counts on from the last row's triple
            raise JudgeFailure("raised", "the question ends with a picture: write a text behind it")
        # One question at a time: several threads ask, and the model is in this process.
        try:
            with self._turn, torch.no_grad():
                out = self.model.generate(
                    ids,
                    **inputs,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=self.max_new_tokens,
                    **({"repetition_penalty": 1.0} if has_pictures else {}),  # it looks up ids, and rows have no logits
                    do_sample=False,
                    temperature=None,
                    top_p=None,
                    top_k=None,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
        except Exception as error:
            raise JudgeFailure("raised", described(error)) from error
        reply = out[0, len(row) :]
        meter.add(len(reply))
        end = self.model.generation_config.eos_token_id
        if len(reply) == self.max_new_tokens and int(reply[-1]) not in (end if isinstance(end, list) else [end]):
            raise JudgeFailure("nonsense", reply_cut_off("the judge", self.max_new_tokens, "max_new_tokens"))
        return self.tokenizer.decode(reply, skip_special_tokens=True)

    def logprob(self, prompt: str, reply_start: str, answer: str) -> float:
        """Sum of the log-probs (nats) of an answer's tokens, after a reply to `prompt` that begins with `reply_start`.

        Without a chat template the reply follows the prompt directly. Its start and the answer are encoded together.
        """
        import torch

        tokens = self._tokens()
        has_chat_template = bool(getattr(self.tokenizer, "chat_template", None))
        opening = self._ids([{"role": "user", "content": prompt}]) if has_chat_template else [*tokens.bos]
        start_ids = tokens.encode(tokens.typed(reply_start if has_chat_template else prompt + reply_start))
        reply_ids = tokens.encode(tokens.typed((reply_start if has_chat_template else prompt + reply_start) + answer))
        # A token may span the border of start and answer: from the first id that differs on, tokens are the answer's.
        n_shared = next(
            (i for i, (a, b) in enumerate(zip(start_ids, reply_ids, strict=False)) if a != b), len(start_ids)
        )
        row = [*opening, *reply_ids]
        self._check_room(len(row), 0)
        begin = len(opening) + min(n_shared, len(reply_ids) - 1)
        if begin == 0:
            raise JudgeFailure("raised", "an answer needs a text before it")
        inputs = self._inputs(row)
        with self._turn, torch.no_grad():
            logits = self.model(**inputs, use_cache=False).logits[0, begin - 1 : -1].double()
        token_logprobs = logits.log_softmax(-1).gather(1, inputs["input_ids"][0, begin:, None])
        return float(token_logprobs.sum())

    def _ids(self, messages: Messages) -> list[int]:
        """Token ids of messages; texts in them are escaped, so that a judged text writes no control tokens."""
        tokens, vision = self._tokens(), vision_of(self.model)
        if vision is not None and getattr(self.tokenizer, "chat_template", None):
            placeholder = self.tokenizer.convert_ids_to_tokens(vision.placeholder)
            chat = chat_of(self.tokenizer, rows_of=tokens.rows_of, picture=placeholder)
            return list(chat.start(messages).context)
        typed_messages = tokens.typed([dict(m) for m in messages])
        if getattr(self.tokenizer, "chat_template", None):
            return [
                *tokens.encode(
                    self.tokenizer.apply_chat_template(typed_messages, tokenize=False, add_generation_prompt=True)
                )
            ]
        return [*tokens.bos, *tokens.encode("\n\n".join(m["content"] for m in typed_messages) + "\n")]

    def _check_room(self, n: int, more: int) -> None:
        """JudgeFailure where n tokens and `more` new ones exceed the model's positions."""
        room = getattr(_text_config(self.model.config), "max_position_embeddings", None)
        if room is not None and n + more > room:
            raise JudgeFailure("raised", f"a question of {n} tokens leaves no room for an answer in {room} positions")


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config
