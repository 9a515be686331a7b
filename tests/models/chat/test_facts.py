import pytest
from tests.models.chat.families import FAMILIES, tokenizer_of

from gxpo.base.errors import ModelError
from gxpo.models.chat.facts import facts_of_template
from gxpo.models.chat.plain import Tokens
from gxpo.models.chat.render import Template

CHATML = FAMILIES["chatml"].template


def facts_of(name: str):
    tokenizer = tokenizer_of(name)
    return facts_of_template(Template(tokenizer, tokenizer.chat_template, {}), Tokens(tokenizer))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_are_told_apart_without_their_names(name):
    family, facts = FAMILIES[name], facts_of(name)
    assert facts.stops == family.stops
    assert (facts.form.name if facts.form else None) == family.form
    assert facts.system == family.system
    assert facts.shows_tools == (family.form is not None)


def test_details():
    assert facts_of("chatml").generation_prompt == "<|im_start|>assistant\n"
    assert facts_of("mistral").generation_prompt == ""
    assert (facts_of("mistral").lead, facts_of("vicuna").lead, facts_of("glm").lead) == (" ", " ", "")
    assert facts_of("harmony").ends == ("<|return|>", "<|end|>", "<|call|>")
    assert facts_of("phi").last_end == facts_of("phi").next_end == "<|end|>"
    assert (facts_of("last_eos").last_end, facts_of("last_eos").next_end) == ("<|endoftext|>", None)
    assert facts_of("deepseek_r1").opens_reasoning and not facts_of("qwen3").opens_reasoning
    assert facts_of("qwen3").reasoning_key == "reasoning_content"
    assert facts_of("deepseek_r1").reasoning_key is None
    assert facts_of("deepseek_v3").arguments_as_json and not facts_of("qwen25").arguments_as_json
    assert facts_of("qwen25").bare_answers and not facts_of("mistral").bare_answers
    assert facts_of("qwen25").call_end == '"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not write the text"),
        ("{{ raise_exception('closed on Sundays') }}", "closed on Sundays"),
        ("{{ nobody.knows }}", "nobody"),
        (CHATML.replace("m.content", "(m.content if m.role == 'user' else '')"), "does not write the text"),
    ],
)
def test_templates_that_carry_no_conversation(text, why):
    tokenizer = tokenizer_of("chatml")
    with pytest.raises(ModelError, match=why):
        facts_of_template(Template(tokenizer, text, {}), Tokens(tokenizer))
