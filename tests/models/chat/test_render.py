"""Rendering of chat templates: sources, limits, pictures as parts, errors in one line."""

from types import SimpleNamespace

import pytest

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.chat.render import Template, has_template, in_parts, shared_prefix, source, unused

REF = "sha256:" + "1" * 64 + ".png"
PICTURE = media.MARK[0] + REF + media.MARK[1]


class Tokenizer:
    """A tokenizer whose `apply_chat_template` joins contents, a picture as <image>."""

    chat_template: object = None

    def apply_chat_template(self, messages, *, tools, chat_template, add_generation_prompt, tokenize, **kwargs):
        if kwargs.get("fails"):
            raise ValueError("roles must\nalternate")
        texts = []
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [part.get("text", "<image>") for part in parts if not (kwargs.get("drops") and "text" not in part)]
        return "|".join(texts) + (">" if add_generation_prompt else "")


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_the_source_is_the_text_a_file_or_the_tokenizers_own(tmp_path):
    own_simple_namespace = SimpleNamespace(chat_template={"default": "{{ a }}", "tool_use": "{{ b }}"})
    assert source(own_simple_namespace, None) == "{{ a }}" and source(own_simple_namespace, "{% x %}") == "{% x %}"
    (tmp_path / "chat.jinja").write_text("{{ c }}")
    assert source(own_simple_namespace, tmp_path / "chat.jinja") == "{{ c }}"
    with pytest.raises(ModelError, match="neither Jinja text nor a readable file"):
        source(own_simple_namespace, tmp_path)
    with pytest.raises(ModelError, match="has no chat template"):
        source(SimpleNamespace(chat_template=None), None)


def test_a_template_is_a_text_or_a_default_among_several():
    assert has_template(SimpleNamespace(chat_template="{{ a }}"))
    assert not has_template(SimpleNamespace(chat_template={"tool_use": "{{ a }}"}))
    assert not has_template(SimpleNamespace())


def test_the_generation_prompt_is_written_only_for_an_answer():
    template = Template(Tokenizer(), "{{ x }}", {})
    assert template.render([user("a"), user("b")]) == "a|b>"
    assert template.render([user("a"), user("b")], answer=False) == "a|b"


def test_pictures_become_marks_in_place_of_placeholders():
    template = Template(Tokenizer(), "{{ x }}", {})
    template.picture = "<image>"
    assert template.render([user(f"look {PICTURE} here")], answer=False) == f"look |{PICTURE}| here"


def test_a_template_that_drops_a_picture_is_refused():
    template = Template(Tokenizer(), "{{ x }}", {"drops": True})
    template.picture = "<image>"
    with pytest.raises(ModelError, match="writes 0 pictures where the messages have 1"):
        template.render([user(f"look {PICTURE}")])


def test_errors_of_a_template_are_one_line_with_the_roles():
    with pytest.raises(ModelError, match=r"refuses the messages \(user, user\): roles must alternate"):
        Template(Tokenizer(), "{{ x }}", {"fails": True}).render([user("a"), user("b")])


def test_contents_become_parts():
    assert in_parts(user("a"))["content"] == [{"type": "text", "text": "a"}]
    assert in_parts(user(f"a{PICTURE}"), True)["content"] == [{"type": "text", "text": "a"}, {"type": "image"}]


def test_words_and_prefixes():
    assert unused("Q", "a Q", "Qx") == "Qxx" and unused("Q") == "Q"
    assert [shared_prefix(*pair) for pair in (("abc", "abd"), ("", "a"), ("ab", "abc"), ("ab", "ab"))] == [2, 0, 2, 2]
