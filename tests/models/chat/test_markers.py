"""Markers of well-known chat templates in texts, and tags among special tokens."""

import pytest

from gxpo.models.chat.markers import ENDS, MARKERS, tags_in, turns_in


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", ("<|im_start|>user", "<|im_start|>assistant")),
        ("<|start_header_id|>user<|end_header_id|>", ("<|start_header_id|>user",)),
        ("[INST] hi [/INST]", ("[INST]",)),
        ("<start_of_turn>  model", ("<start_of_turn> model",)),
        ("<|start|>developer<|message|>", ("<|start|>developer",)),
        ("<|start|>anyone", ()),
        ("an ordinary text with <b>tags</b> and [brackets]", ()),
    ],
)
def test_beginnings_of_turns_are_found_once_each(text, turns):
    assert turns_in(text) == turns == turns_in(text + text)[: len(turns)]


def test_tags_are_told_from_control_and_spare_tokens():
    names = ["<search>", "</search>", "[TOOL]", "<|im_end|>", "<unused12>", "<extra_id_0>", "word", "<reserved>"]
    assert tags_in(names) == ("<search>", "</search>", "[TOOL]")


def test_ends_of_turns_are_markers():
    assert set(ENDS) <= MARKERS and "<search>" not in MARKERS
