import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.chat.writers import TOOLS, WRITERS, action_text

from gxpo.models.chat.formats import NATIVE, TAGS
from gxpo.models.chat.reading import read, same, split_thinking

FORMS = {f.name: f for f in (*NATIVE, TAGS)}
TYPES = {t["function"]["name"]: {"key": "string", "count": "integer", "deep": "boolean"} for t in TOOLS}
BEGIN, END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
SEP = "<\uff5ctool\u2581sep\uff5c>"


@pytest.mark.parametrize(
    ("form", "text", "name", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "look", "arguments": {"key": "a"}}</tool_call>', "look", {"key": "a"}),
        (
            "hermes",
            '<tool_call>{"name": "look", "arguments": "{\\"key\\": \\"a\\"}"}</tool_call>',
            "look",
            {"key": "a"},
        ),
        ("hermes", '<tool_call>{"name": "look"}</tool_call>', "look", {}),
        ("qwen_xml", "<tool_call><function=look></function></tool_call>", "look", {}),
        (
            "qwen_xml",
            "<tool_call>\n<function=look>\n<parameter=key>\nTrue\n</parameter>\n<parameter=deep>\nTrue\n</parameter>\n"
            "<parameter=count>\n12\n</parameter>\n<parameter=free>\nfree text\n</parameter>\n</function>\n</tool_call>",
            "look",
            {"key": "True", "deep": True, "count": 12, "free": "free text"},
        ),
        (
            "glm",
            "<tool_call>look\n<arg_key>key</arg_key>\n<arg_value>7</arg_value>\n"
            "<arg_key>count</arg_key><arg_value>7</arg_value></tool_call>",
            "look",
            {"key": "7", "count": 7},
        ),
        ("llama", '<|python_tag|>{"name": "look", "parameters": {"key": "a"}}', "look", {"key": "a"}),
        ("llama", '{"type": "function", "function": "look", "parameters": {"key": "a"}}', "look", {"key": "a"}),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "look", "arguments": {"key": "[a]"}, "id": "123456789"}]',
            "look",
            {"key": "[a]"},
        ),
        ("mistral", '[TOOL_CALLS]look[ARGS]{"key": "a"}', "look", {"key": "a"}),
        ("mistral", '[TOOL_CALLS]look[CALL_ID]123456789[ARGS]{"key": "a"}', "look", {"key": "a"}),
        (
            "deepseek",
            f'{BEGIN}function{SEP}look\n```json\n{{"key": "a"}}\n```{END}',
            "look",
            {"key": "a"},
        ),
        (
            "deepseek",
            f'{BEGIN}look{SEP}{{"key": "a"}}{END}',
            "look",
            {"key": "a"},
        ),
        (
            "kimi",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
            '{"key": "a"}<|tool_call_end|><|tool_calls_section_end|>',
            "look",
            {"key": "a"},
        ),
        (
            "harmony",
            '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"key": "a"}',
            "look",
            {"key": "a"},
        ),
        (
            "harmony",
            ' to=functions.look<|channel|>commentary json<|message|>{"key": "a"}<|call|>',
            "look",
            {"key": "a"},
        ),
        (
            "command",
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look", "parameters": {}}]<|END_ACTION|>',
            "look",
            {},
        ),
        ("granite", '<|tool_call|>[{"name": "look", "arguments": {"key": "a"}}]', "look", {"key": "a"}),
        ("tags", "<tool>look()</tool>", "look", {}),
        ("tags", '<tool> look ({"key": "f(x)"}) </tool>', "look", {"key": "f(x)"}),
    ],
)
def test_documented_forms(form, text, name, arguments):
    actual = FORMS[form].find(f"{'' if form in ('llama', 'harmony') else 'So. '}{text}", TYPES)
    assert [(c.name, c.arguments, c.error) for c in actual.calls] == [(name, arguments, None)]
    assert actual.content == actual.body == ("" if form in ("llama", "harmony") else "So.")


@pytest.mark.parametrize(
    ("form", "text", "error"),
    [
        ("hermes", '<tool_call>{"name": "look", "argu', "not closed"),
        ("hermes", "<tool_call>look(a)</tool_call>", "not JSON"),
        ("hermes", "<tool_call>[]</tool_call>", "empty"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "names no tool"),
        ("hermes", '<tool_call>{"name": "look", "arguments": [1]}</tool_call>', "not a JSON object"),
        ("hermes", "<tool_call>3</tool_call>", "a call is a JSON object"),
        ("hermes", f"<tool_call>{'[' * 100_000}</tool_call>", "not JSON"),
        ("qwen_xml", "<tool_call>look</tool_call>", "<function=name>"),
        ("qwen_xml", "<tool_call><function=look><parameter=key>a</function></tool_call>", "<parameter=key>"),
        ("glm", "<tool_call>look<arg_key>key</arg_key></tool_call>", "pairs of"),
        ("llama", '{"name": "look", "parameters": {', "not JSON"),
        ("llama", "<|python_tag|>", "empty"),
        ("mistral", "[TOOL_CALLS] [{", "not JSON"),
        ("mistral", "[TOOL_CALLS] look", "[ARGS]"),
        (
            "deepseek",
            f"{BEGIN}look{END}",
            "between its name",
        ),
        ("harmony", "<|channel|>commentary to=functions.look<|message|>{", "not a JSON object"),
        ("granite", "<|tool_call|>[{", "not JSON"),
        ("tags", "<tool>look</tool>", "name("),
        ("tags", "<tool>look(key=1)</tool>", "not a JSON object"),
    ],
)
def test_what_cannot_be_read_says_why_and_is_kept(form, text, error):
    actual = FORMS[form].find(text, TYPES)
    assert len(actual.calls) == 1 and error in (actual.calls[0].error or "")
    assert actual.content == "" and actual.body in (text, "{")  # of a channel, its body


def test_good_calls_beside_a_bad_one_are_read():
    good = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    actual = FORMS["hermes"].find(f"a {good} b <tool_call>?</tool_call> c", TYPES)
    assert [c.error is None for c in actual.calls] == [True, False]
    assert actual.content == "a  b  c" and actual.body == "a  b <tool_call>?</tool_call> c"


text = st.text(st.sampled_from('ab é\n{}"<>[]()\\,:'), max_size=12)
calls = st.lists(
    st.tuples(
        st.sampled_from(["look", "find.all"]),
        st.fixed_dictionaries(
            {"key": text.map(lambda s: f"k{s}k")}, optional={"count": st.integers(), "deep": st.booleans()}
        ),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("form", sorted(WRITERS))
@given(wanted=calls)
def test_what_a_policy_writes_is_read(form, wanted):
    wanted = wanted[:1] if form == "harmony" else wanted
    actual = read(action_text(form, "So.", "hm", wanted), FORMS[form], TYPES, True)
    assert [(c.name, c.arguments, c.error) for c in actual.calls] == [(n, a, None) for n, a in wanted]
    assert actual.reasoning == "hm"


@pytest.mark.parametrize("form", sorted(FORMS))
@given(noise=st.text(st.sampled_from('ab{}"<>/[]():=|\n'), max_size=30), cut=st.integers(0, 200))
def test_no_text_breaks_a_reader(form, noise, cut):
    action = action_text(form if form in WRITERS else "hermes", "So.", None, [("look", {"key": noise})])
    for broken in (action[:cut] + noise, FORMS[form].opens + noise, noise):
        actual = read(broken, FORMS[form], TYPES, True)
        assert same(actual, read(broken, FORMS[form], TYPES, True))
        assert all(c.error or isinstance(c.arguments, dict) for c in actual.calls)


def test_without_tools_nothing_is_a_call():
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    actual = read(call, FORMS["hermes"], {}, False)
    assert actual.calls == () and actual.content == call


@pytest.mark.parametrize(
    ("written", "opened", "reasoning", "rest", "close"),
    [
        ("<think>\na\n</think>\n\nb", None, "a", "\n\nb", None),
        ("a\n</think>\n\nb", "</think>", "a", "\n\nb", None),
        ("a", "</think>", "a", "", "</think>"),
        ("\n<think>a", None, "a", "", "</think>"),
        ("b <think>a</think>", None, None, "b <think>a</think>", None),
        ("<think>a</think><think>b</think>", None, "a", "<think>b</think>", None),
        ("[THINK]a[/THINK]b", None, "a", "b", None),
        ("<think>a[/THINK]", None, "a[/THINK]", "", "</think>"),
    ],
)
def test_thinking(written, opened, reasoning, rest, close):
    thought = split_thinking(written, opened)
    assert (thought.reasoning, thought.rest, thought.close) == (reasoning, rest, close)
    assert thought.lead + thought.rest == written
