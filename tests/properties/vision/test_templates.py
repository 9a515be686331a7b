"""Chat templates of vision models: conversations turn by turn against the whole history rendered at once."""

from functools import cache
from pathlib import Path

import pytest
import tokenizers
import transformers
from tests.models.chat.families import CORPUS
from tests.properties.vision.families import picture

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.chat import TemplateChat

FOLDER = Path(__file__).parent / "templates"
IM = ("<|im_start|>", "<|im_end|>")
# eos, other special tokens, what stands for a picture, and the token that ends an answer
FAMILIES = {
    "qwen2_vl": ("<|im_end|>", (*IM, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"), "<|image_pad|>"),
    "smolvlm": ("<end_of_utterance>", (*IM, "<image>", "<fake_token_around_image>"), "<image>"),
    "llava": ("</s>", ("<image>",), "<image>"),
    "strings": ("<|im_end|>", (*IM, "<image>"), "<image>"),
}


@cache
def tokenizer_of(name):
    eos, special, _ = FAMILIES[name]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 4, trainer)
    every = list(dict.fromkeys(["<s>", eos, *special]))
    backend.add_special_tokens([tokenizers.AddedToken(s, special=True) for s in every])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token=eos,
        extra_special_tokens=[s for s in every if s not in ("<s>", eos)],
        chat_template=(FOLDER / f"{name}.jinja").read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
    )


def rows_of(ref):
    return media.ids(ref, 3)


def chat_of(name):
    return TemplateChat(tokenizer_of(name), rows_of=rows_of, picture=FAMILIES[name][2])


def parts(*given):
    """A message's content: texts, and the numbers of pictures."""
    return [
        {"type": "text", "text": x} if isinstance(x, str) else {"type": "image", "image": picture(x)} for x in given
    ]


def at_once(name, messages, answer=True):
    """Ids of the template's rendering of a whole history, made without gxpo's chat."""
    tokenizer, refs, output = tokenizer_of(name), [], []
    for message in messages:
        content = message["content"]
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        refs += [part["image"] for part in content if part["type"] == "image"]
        output.append({**message, "content": [{k: v for k, v in part.items() if k != "image"} for part in content]})
    ids = tokenizer.apply_chat_template(output, add_generation_prompt=answer, tokenize=True, return_dict=False)
    placeholder = tokenizer.convert_tokens_to_ids(FAMILIES[name][2])
    left = iter(refs)
    out = [j for i in ids for j in (rows_of(next(left)) if i == placeholder else (i,))]
    assert next(left, None) is None
    return out


TURNS = [
    {"role": "user", "content": parts("what is the ", 0, " and the other", 1)},
    {"role": "assistant", "content": "the answer is four"},
    {"role": "user", "content": "and now?"},
    {"role": "assistant", "content": "there it is"},
    {"role": "user", "content": parts(2, "tell them")},
]


@pytest.mark.parametrize("name", ["qwen2_vl", "smolvlm", "llava"])
def test_three_turns_with_pictures_in_the_first_and_third(name):
    chat = chat_of(name)
    assert chat.template.picture == FAMILIES[name][2]
    talk = chat.start(TURNS[:1])
    assert list(talk.context) == at_once(name, TURNS[:1])
    end = chat.stop_ids[0] if name != "llava" else None
    for i in (1, 3):
        text = (" " if name in ("smolvlm", "llava") else "") + TURNS[i]["content"]
        ids = chat.tokens.encode_after(text)
        reply = talk.act([*ids, *([] if end is None else [end])])
        assert reply.content.strip() == TURNS[i]["content"]
        before = talk.context
        update = talk.observe(TURNS[i + 1 : i + 2])
        assert not update.rebuilt and talk.context == before + tuple(update.ids)
        assert chat.tokens.decode_after([t for t in talk.context if not media.is_row(t)]) == chat.tokens.decode_after(
            [t for t in at_once(name, TURNS[: i + 2]) if not media.is_row(t)]
        )
    assert list(talk.context) == at_once(name, TURNS)
    assert media.refs_in(talk.context) == tuple(picture(i) for i in range(3))
    assert talk.rebuilt == talk.kept_against_template == 0


@pytest.mark.parametrize("name", ["qwen2_vl", "smolvlm", "llava"])
def test_the_placeholders_name_stays_text(name):
    chat = chat_of(name)
    text = FAMILIES[name][2]
    talk = chat.start([{"role": "user", "content": parts(f"what is {text} here ", 0, f"{text}")}])
    assert media.refs_in(talk.context) == (picture(0),)
    placeholder = tokenizer_of(name).convert_tokens_to_ids(text)
    assert placeholder not in talk.context
    assert (
        chat.tokens.decode_after([t for t in talk.context if not media.is_row(t)])
        .replace("\ufdd0\ufdd1\ufdd0", "")
        .count(text)
        == 2
    )
    # nor does an action that spells it out show a picture
    letters = [i for piece in (text[0], text[1:]) for i in chat.tokens.encode_after(piece)]
    talk.act([*letters, chat.stop_ids[0]])
    talk.observe([{"role": "user", "content": parts("and", 1)}])
    assert media.refs_in(talk.context) == (picture(0), picture(1))


def test_a_template_of_strings_has_the_mark_in_the_string():
    chat = chat_of("strings")
    assert chat.template.picture == ""
    talk = chat.start([{"role": "user", "content": parts("the cat ", 0, " sat")}])
    context_text = chat.tokens.decode_after([t for t in talk.context if not media.is_row(t)])
    assert context_text == "<|im_start|>user\nthe cat  sat<|im_end|>\n<|im_start|>assistant\n"
    assert media.refs_in(talk.context) == (picture(0),)


def test_a_template_that_leaves_a_picture_out_is_refused():
    text = (FOLDER / "qwen2_vl.jinja").read_text(encoding="utf-8")
    output = "content['type'] == 'image' or 'image' in content or 'image_url' in content"
    last = text.replace(output, "content['type'] == 'image' and message == messages[-1]")
    assert last != text
    chat = TemplateChat(tokenizer_of("qwen2_vl"), last, rows_of=rows_of, picture="<|image_pad|>")
    talk = chat.start([{"role": "user", "content": parts("the cat", 0)}])
    talk.act([*chat.tokens.encode_after("sat"), chat.stop_ids[0]])
    with pytest.raises(ModelError, match="writes 0 pictures where the messages have 1"):
        talk.observe([{"role": "user", "content": "and now?"}])


def test_a_model_that_reads_texts_alone_says_so():
    chat = TemplateChat(tokenizer_of("strings"))
    with pytest.raises(ModelError, match="the model reads texts alone"):
        chat.start([{"role": "user", "content": parts("the cat", 0)}])
