"""Rendered prompts: recognised, warned of, taken as they are; special tokens that are content."""

from types import SimpleNamespace

import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.models.chat.test_conversation import NEXT, USER, chat_of, spell

import gxpo.models.chat
from gxpo.base.errors import ConfigError, ModelError
from gxpo.models.chat.markers import turns_in
from gxpo.models.chat.messages import prompt_messages
from gxpo.models.chat.plain import PlainChat, Tokens, decoder, raw_decoder
from gxpo.models.chat.rendered import RenderedChat, markup_of, prompt_warnings
from gxpo.models.chat.template import TemplateChat
from gxpo.parts.protocols import Task

CHATML = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"


# ---------------------------------------------------------------- taking them
def test_a_rendered_prompt_gives_the_ids_of_its_messages():
    wrong = []
    for name in FAMILIES:
        tokenizer = tokenizer_of(name)
        chat = gxpo.models.chat.make(tokenizer)
        text = chat.template.render([USER])
        talk = gxpo.models.chat.make(tokenizer, template="rendered").start([{"role": "user", "content": text}])
        if talk.context != chat.start([USER]).context or set(talk.chat.stop_ids) != set(chat.stop_ids):
            wrong.append(name)
    assert not wrong


def test_the_first_token_is_there_once():
    class WithFirst:
        """A tokenizer that puts its first token before every text, as Llama's does."""

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __call__(self, text, add_special_tokens=True, **more):
            actual = self.inner(text, add_special_tokens=False, **more)
            return SimpleNamespace(input_ids=[self.bos_token_id] * add_special_tokens + actual.input_ids)

    tokenizer = WithFirst(tokenizer_of("llama3"))
    assert tokenizer.bos_token == "<s>"
    contexts = [RenderedChat(tokenizer).start([{"role": "user", "content": t}]).context for t in ("<s>hello", "hello")]
    assert contexts[0] == contexts[1] and contexts[0].count(tokenizer.bos_token_id) == 1


def test_without_a_template_well_known_ends_stop_an_answer(monkeypatch):
    tokenizer = tokenizer_of("qwen_coder")  # eos is <|endoftext|>
    monkeypatch.setattr(tokenizer, "chat_template", None)
    chat = gxpo.models.chat.make(tokenizer, template="rendered")
    assert [tokenizer.convert_ids_to_tokens(i) for i in chat.stop_ids] == ["<|endoftext|>", "<|im_end|>"]


def test_an_answer_to_a_prompt_that_opens_a_thought():
    tokenizer = tokenizer_of("qwen3")
    talk = RenderedChat(tokenizer).start([{"role": "user", "content": CHATML + "<think>\n"}])
    twin = talk.copy()
    for one in (talk, twin):
        reply = one.act([*spell("qwen3", "so\n</think>\n\nFour.", 0), one.chat.stop_ids[0]])
        assert (reply.reasoning, reply.content.strip()) == ("so", "Four.")
    with pytest.raises(ModelError, match="has one answer"):
        talk.observe([NEXT])


def test_what_a_rendered_prompt_has_no_place_for_is_refused():
    tokenizer = tokenizer_of("chatml")
    chat = gxpo.models.chat.make(tokenizer, template="rendered")
    for messages in ([USER, NEXT], [{"role": "system", "content": "a"}], [{"role": "user", "content": []}]):
        with pytest.raises(ModelError, match=r"chat\.template=rendered takes prompts that are texts"):
            chat.start(messages)
    with pytest.raises(ModelError, match="takes prompts that are texts, and this one is messages"):
        prompt_messages(chat, None, (USER,))
    with pytest.raises(ModelError, match="tools are part of a rendered prompt"):
        chat.start([USER], [{"type": "function"}])
    with pytest.raises(ConfigError, match="template is 'rendered'"):
        gxpo.models.chat.make(tokenizer, template="rendered", kwargs={"enable_thinking": False})


# ---------------------------------------------------------------- recognising them
def test_rendered_prompts_of_every_family_are_recognised():
    unrecognised = []
    for name in FAMILIES:
        chat = chat_of(name)
        text = chat.template.render([USER])
        if (actual := markup_of(text, chat)) is None or not actual.is_rendered:
            unrecognised.append(name)
        if not turns_in(text) and name != "vicuna":  # whose markers are words
            unrecognised.append(f"{name} without a model")
    assert not unrecognised


@pytest.mark.parametrize(
    "text",
    [
        "2+2=",
        "USER: why?",
        "a < b | c > d",
        "Write [INST] in reverse"[:5],
        "<b>bold</b>",
        "Assistant: hi",
        "<|",
        "",
    ],
)
def test_ordinary_texts_are_not_taken_for_rendered_ones(text):
    actual = markup_of(text, chat_of("chatml"))
    assert actual is None


def test_warnings_name_the_prompts_and_the_setting():
    rendered = [Task(f"r/{i}", CHATML) for i in range(5)]
    message = [
        Task("m/1", ({"role": "user", "content": CHATML},)),
        Task("m/2", ({"role": "user", "content": [{"type": "text"}]},)),
    ]
    others = [Task("p/1", "what ends with <|im_end|>?"), Task("p/2", "plain"), Task("p/3", (1, 2))]
    one, two, three = prompt_warnings([*rendered, *message, *others], chat_of("chatml"))
    assert one.startswith(
        "5 prompt(s) hold a rendered chat template already (<|im_start|>user, <|im_start|>assistant): "
    )
    assert "r/0, r/1, r/2 and 2 more" in one and "set chat.template=rendered" in one
    assert two.startswith("1 prompt(s) hold names of special tokens (<|im_end|>): p/1; they are encoded as letters")
    assert three.startswith("1 prompt(s) hold a rendered chat template already") and "m/1" in three
    assert len(prompt_warnings([*rendered, *others])) == 1  # without a model names of special tokens are not known
    assert not prompt_warnings(others[1:], chat_of("chatml"))


def test_prompts_that_are_said_to_be_rendered_and_are_not():
    chat = RenderedChat(tokenizer_of("chatml"))
    llama = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
    tasks = [Task("a", CHATML), Task("b", "2+2="), Task("c", llama)]
    bare, foreign = prompt_warnings(tasks, chat, "rendered")
    assert bare.startswith("1 prompt(s) hold no marker of a chat template: b;")
    assert foreign.startswith("1 prompt(s) hold markers that are no tokens of this model (<|start_header_id|>user): c;")
    assert prompt_warnings(tasks, None, "rendered") == [bare]
    assert not prompt_warnings(tasks[:1], chat, "rendered")


# ---------------------------------------------------------------- special tokens that are content
@pytest.fixture(scope="module")
def searching():
    """A ChatML tokenizer with special tokens for the policy to write, of both spellings."""
    tokenizer = tokenizer_of("chatml").__class__(tokenizer_object=tokenizer_of("chatml").backend_tokenizer)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    tokenizer.add_tokens(["<search>", "</search>", "<|begin_query|>", "<answer>"], special_tokens=True)
    return tokenizer


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def test_added_special_tokens_stay_in_replies_but_no_turn_markers(searching):
    message = "<|im_start|>a<search>there</search><|begin_query|>b<|endoftext|><answer>4<|im_end|>"
    ids = ids_of(searching, message)
    assert len(ids) < 25  # the markers are tokens
    for chat in (TemplateChat(searching, FAMILIES["chatml"].template), PlainChat(searching), RenderedChat(searching)):
        reply = chat.start([USER]).act(ids)
        assert reply.content == "a<search>there</search><|begin_query|>b<answer>4", chat
        assert decoder(searching, chat)(ids) == reply.content
        assert decoder(searching, chat)([*ids[:2], -1]) == "a"
    assert decoder(searching)(ids) == "athereb4"  # where no chat says what is content
    assert raw_decoder(searching)([*ids, -1]) == message


def test_a_typed_special_token_name_is_letters_in_a_prompt(searching):
    chat = TemplateChat(searching, FAMILIES["chatml"].template)
    context = chat.start([{"role": "user", "content": "use <search>x</search>"}]).context
    assert not set(searching.convert_tokens_to_ids(["<search>", "</search>"])) & set(context)
    (warning,) = prompt_warnings([Task("a", "use <search>x</search>")], chat)
    assert "names of special tokens (<search>, </search>): a" in warning


def test_check_template_tells_of_tags_that_are_special(searching):
    report = gxpo.models.chat.check_template(searching, FAMILIES["chatml"].template)
    assert report["tags"].verdict == "note" and "<search>, </search>, <answer>" in report["tags"].detail
    assert gxpo.models.chat.check_template(tokenizer_of("chatml"), FAMILIES["chatml"].template)["tags"].verdict == "ok"


def test_special_tokens_of_families_are_markers_or_content():
    tokens = {name: chat_of(name).tokens for name in FAMILIES}
    kept_contents = {name: {t.text_of(i) for i in t.content} for name, t in tokens.items() if t.content}
    assert kept_contents == {
        "llama3": {"<|python_tag|>"},
        "mistral": {"[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"},
        "command": {"<|START_ACTION|>", "<|END_ACTION|>"},
        "granite": {"<|tool_call|>"},
    }
    assert Tokens(tokenizer_of("chatml")).content == frozenset()
