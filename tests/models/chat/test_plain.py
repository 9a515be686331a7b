from typing import Any

import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.models.chat.writers import TOOLS

from gxpo.base.errors import ConfigError, GxpoError, ModelError
from gxpo.models import tiny as characters
from gxpo.models.chat import PlainChat, TemplateChat, make

CHATML = FAMILIES["chatml"].template


def character_tokenizer() -> Any:
    return characters.character_tokenizer()


def test_texts_one_after_the_other():
    tokenizer = character_tokenizer()
    chat = PlainChat(tokenizer)
    assert chat.stop_ids == (tokenizer.eos_token_id,)
    talk = chat.start([{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}])
    assert list(talk.context) == tokenizer("Add.\n1+1=").input_ids  # <bos> in front
    reply = talk.act([*tokenizer("2", add_special_tokens=False).input_ids, tokenizer.eos_token_id])
    assert reply.content == "2" and reply.calls == ()
    opening = talk.observe([{"role": "user", "content": "\n2+2="}])
    assert tokenizer.decode(talk.context) == "<bos>Add.\n1+1=2<eos>\n2+2="
    assert talk.context[-len(opening.ids) :] == opening.ids and not opening.rebuilt


def test_one_prompt_is_what_the_tokenizer_makes_of_it():
    for tokenizer in (character_tokenizer(), tokenizer_of("chatml")):
        talk = PlainChat(tokenizer).start([{"role": "user", "content": "the cat"}])
        assert list(talk.context) == tokenizer("the cat").input_ids


def test_cut_actions_and_copies():
    tokenizer = character_tokenizer()
    talk = PlainChat(tokenizer).start([{"role": "user", "content": "a"}])
    twin = talk.copy()
    talk.act([5, 6])
    talk.observe([])
    assert len(twin.context) == 2 and len(talk.context) == 4 and len(twin.messages) == 1
    with pytest.raises(GxpoError, match="comes after act"):
        talk.observe([])


def test_calls_by_tags():
    tokenizer = character_tokenizer()
    talk = PlainChat(tokenizer).start([{"role": "user", "content": "a"}], TOOLS)
    assert tokenizer.decode(talk.context).startswith("<bos>Tools. Write calls as <tool>")
    assert tokenizer.decode(talk.context).endswith("): Looks.\na")
    call = '<tool>look({"key": "b"})</tool>'
    reply = talk.act(tokenizer(call, add_special_tokens=False).input_ids)
    assert [(c.name, c.arguments) for c in reply.calls] == [("look", {"key": "b"})]
    talk.observe([{"role": "tool", "content": "c"}])
    assert tokenizer.decode(talk.context).endswith(f"{call}<tool_result>\nc\n</tool_result>")


def test_make_takes_the_tokenizers_template_if_there_is_one(tmp_path):
    assert isinstance(make(tokenizer_of("chatml")), TemplateChat)
    assert isinstance(make(character_tokenizer()), PlainChat)
    assert isinstance(make(tokenizer_of("chatml"), template="none"), PlainChat)
    (tmp_path / "t.jinja").write_text(CHATML)
    for given_chatml in (CHATML, tmp_path / "t.jinja", str(tmp_path / "t.jinja")):
        chat = make(tokenizer_of("zephyr"), template=given_chatml, stop=["</s>"])
        assert isinstance(chat, TemplateChat) and chat.template.text == CHATML


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ModelError, "neither Jinja text nor a readable file", {"template": "no/such/file.jinja"}),
        (ConfigError, "rewrites is 'rebuild' or 'keep'", {"rewrites": "forget"}),
        (ConfigError, "tools_format is one of", {"tools_format": "xml"}),
        (ConfigError, "need one", {"template": "none", "kwargs": {"enable_thinking": False}}),
        (ModelError, "shows no tools: use tools_format='tags'", {"tools_format": "native"}),
        (ModelError, "is not one token", {"stop": ["END"]}),
    ],
)
def test_make_says_what_is_wrong(error, match, options):
    with pytest.raises(error, match=match):
        make(tokenizer_of("chatml"), **options)


def test_a_template_chat_needs_a_template_and_messages():
    with pytest.raises(ModelError, match="has no chat template"):
        TemplateChat(character_tokenizer())
    for chat in (PlainChat(character_tokenizer()), TemplateChat(tokenizer_of("chatml"))):
        with pytest.raises(ModelError, match="at least one message"):
            chat.start([])
