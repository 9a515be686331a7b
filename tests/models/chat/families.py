"""Chat templates of distinct families, and a small BPE tokenizer for each.

The templates (in templates/, a line on top says why each is there) were written for these tests from the formats'
documentation; each keeps what makes its family hard.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import transformers

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Family:
    """stops: expected stop tokens. form: expected form of calls. drops: thinking goes when a user speaks next."""

    name: str
    eos: str
    stops: tuple[str, ...]
    markers: tuple[str, ...] = ()
    form: str | None = None
    drops: bool = False
    system: bool = True
    exact: bool = True  # a plain answer stands in the history letter by letter, its end included
    double: bool = True  # two calls in one action can be written
    words: tuple[str, ...] = ()  # added tokens that are not special

    @property
    def template(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")


IM = ("<|im_start|>", "<|im_end|>")
CALLS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
FAMILIES = {
    f.name: f
    for f in (
        Family("chatml", "<|im_end|>", ("<|im_end|>",), IM),
        Family("qwen25", "<|im_end|>", ("<|im_end|>",), IM, "hermes", words=CALLS[:2]),
        Family("qwen3", "<|im_end|>", ("<|im_end|>",), IM, "hermes", drops=True, words=CALLS),
        Family("qwen_coder", "<|endoftext|>", ("<|endoftext|>", "<|im_end|>"), IM, "qwen_xml", words=CALLS),
        Family(
            "llama3",
            "<|eot_id|>",
            ("<|eot_id|>",),
            ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
            "llama",
            double=False,
        ),
        Family(
            "mistral",
            "</s>",
            ("</s>",),
            (
                "[INST]",
                "[/INST]",
                "[TOOL_CALLS]",
                "[AVAILABLE_TOOLS]",
                "[/AVAILABLE_TOOLS]",
                "[TOOL_RESULTS]",
                "[/TOOL_RESULTS]",
            ),
            "mistral",
            system=False,
            exact=False,
        ),
        Family("gemma", "<eos>", ("<eos>", "<end_of_turn>"), ("<start_of_turn>", "<end_of_turn>"), system=False),
        Family(
            "phi",
            "<|endoftext|>",
            ("<|endoftext|>", "<|end|>"),
            ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
        ),
        Family("zephyr", "</s>", ("</s>",)),
        Family(
            "deepseek_r1",
            "<\uff5cend\uff5c>",
            ("<\uff5cend\uff5c>",),
            ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
            drops=True,
            words=CALLS[2:],
        ),
        Family(
            "deepseek_v3",
            "<\uff5cend\uff5c>",
            ("<\uff5cend\uff5c>",),
            ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
            "deepseek",
            words=(
                "<\uff5ctool\u2581calls\u2581begin\uff5c>",
                "<\uff5ctool\u2581calls\u2581end\uff5c>",
                "<\uff5ctool\u2581call\u2581begin\uff5c>",
                "<\uff5ctool\u2581call\u2581end\uff5c>",
                "<\uff5ctool\u2581sep\uff5c>",
            ),
        ),
        Family(
            "glm",
            "<|endoftext|>",
            ("<|endoftext|>", "<|user|>", "<|observation|>"),
            ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            "glm",
            drops=True,
            exact=False,
            words=(*CALLS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        Family(
            "command",
            "<|END_OF_TURN_TOKEN|>",
            ("<|END_OF_TURN_TOKEN|>",),
            (
                "<|START_OF_TURN_TOKEN|>",
                "<|USER_TOKEN|>",
                "<|CHATBOT_TOKEN|>",
                "<|SYSTEM_TOKEN|>",
                "<|START_ACTION|>",
                "<|END_ACTION|>",
            ),
            "command",
        ),
        Family(
            "harmony",
            "<|return|>",
            ("<|return|>", "<|call|>"),
            ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"),
            "harmony",
            drops=True,
            exact=False,
            double=False,
        ),
        Family(
            "granite",
            "<|end_of_text|>",
            ("<|end_of_text|>",),
            ("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"),
            "granite",
        ),
        Family("olmo", "<|endoftext|>", ("<|endoftext|>",)),
        Family("last_eos", "<|endoftext|>", ("<|endoftext|>",), exact=False),
        Family("vicuna", "</s>", ("</s>",), exact=False),
        Family("parts", "<|im_end|>", ("<|im_end|>",), IM),
    )
}

CORPUS = [
    "the cat sat on the mat and then the other cat sat there too",
    "hello there, what is the answer? the answer is four. and now? there it is",
    'assistant user system\n\n{"name": "look", "arguments": {"key": "there"}}\n\n  \n',
    "\n<|user|>\n<|assistant|>\nUSER: ASSISTANT:",
    "tell them that the others are there; another answer, then more of the same\n\n\n    indented\n        twice",
]


def tokenizer_of(name: str, swallows: str = "") -> Any:
    """Byte-level BPE with some hundred merges, and the family's special tokens; equal at every call, a copy to change.

    swallows  a special token that takes the white space behind it, as those of Phi-3 do
    """
    return copy.deepcopy(_trained_tokenizer(name, swallows))


@cache
def _trained_tokenizer(name: str, swallows: str) -> Any:
    family = FAMILIES[name]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    special = list(dict.fromkeys(["<s>", family.eos, *family.markers]))
    backend.add_special_tokens([tokenizers.AddedToken(s, special=True, rstrip=s == swallows) for s in special])
    backend.add_tokens(list(family.words))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token=family.eos,
        extra_special_tokens=[s for s in special if s not in ("<s>", family.eos)],
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )
