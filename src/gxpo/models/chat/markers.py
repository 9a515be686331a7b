"""Turn markers of well-known chat template families, to recognise texts whose template is not at hand."""

from __future__ import annotations

import re
from collections.abc import Iterable

ENDS = (  # of a turn
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "[|endofturn|]",
)
_OTHERS = (
    *("<|im_start|>", "<|im_sep|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|header_start|>", "<|header_end|>", "<|begin_of_text|>"),
    *("<|end_of_text|>", "<|endoftext|>", "<|startoftext|>", "<|start_of_role|>", "<|end_of_role|>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|tool|>", "<|developer|>"),
    *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<start_of_turn>", "<|turn>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "[gMASK]", "<sop>"),
    *("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    *("[|system|]", "[|user|]", "[|assistant|]", "<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>"),
    *("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
MARKERS = frozenset((*ENDS, *_OTHERS))

_TURN = re.compile(  # the beginning of a turn
    r"<\|im_start\|>\s*\w+|<\|(?:start_header_id|header_start|start_of_role)\|>\s*\w+|<\|im_(?:user|assistant|system)\|>"
    r"|<start_of_turn>\s*\w+|<\|turn>\s*\w+|<\|start\|>\s*(?:system|developer|user|assistant)\b|\[INST\]"
    r"|<\|(?:system|user|assistant)\|>|\[\|(?:system|user|assistant)\|\]|<\uff5c(?:User|Assistant)\uff5c>"
    r"|<\|START_OF_TURN_TOKEN\|>"
)


_TAG = re.compile(r"</?[A-Za-z][\w -]*>|\[/?[A-Z][A-Z_ ]*\]")
_SPARE = re.compile(r"unused|reserved|special|extra_id|placeholder", re.IGNORECASE)


def tags_in(names: Iterable[str]) -> tuple[str, ...]:
    """Filter names of tokens that are tags for a policy to write, as <search>; spare tokens are left out.

    >>> tags_in(["<search>", "</search>", "<|fim_prefix|>", "<unused7>"])
    ('<search>', '</search>')
    """
    return tuple(name for name in names if _TAG.fullmatch(name) and not _SPARE.search(name))


def turns_in(text: str) -> tuple[str, ...]:
    """Find the turn markers of well-known templates in a text, each once.

    >>> turns_in("<|im_start|>user\\nhi<|im_end|>"), turns_in("what does [INST ] mean?")
    (('<|im_start|>user',), ())
    """
    return tuple(dict.fromkeys(" ".join(turn.split()) for turn in _TURN.findall(text)))
