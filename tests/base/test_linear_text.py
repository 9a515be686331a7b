"""Patterns and functions of gxpo over a policy's text cost time linear in its length: each is run on 32,000 characters
that are made against it, and the kernel kills what takes more than half a second of processor time."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest
from tests.attacks import SIZE, Use, attacks, over_limit, uses

from gxpo.algorithms.segments.segmenters import Pattern
from gxpo.base.answers import ANSWER, TAGGED
from gxpo.environments.rewards.built_in import HEADINGS, STEP
from gxpo.environments.rewards.conformance import EVENT

# Packages whose patterns see what a policy, an environment or a stranger's rollouts say; the rest is thorough.
POLICY = ("base/answers", "models/chat/", "doctor/rollout_", "environments/envs/", "explain/", "base/media",
          "environments/rewards/", "sampling/rollouts/", "algorithms/segments/", "sampling/serve/",
          "algorithms/signals/", "environments/tasks/", "base/verdicts", "algorithms/weighting/")  # fmt: skip
OWN = {  # patterns over what the user of this machine writes himself: scripts, settings, names of files
    "adapters/convert_script.py", "adapters/convert_verl.py", "adapters/shell/arithmetic.py",
    "adapters/script/calls.py", "adapters/script/parsers.py", "adapters/script/walk.py", "adapters/script/values.py",
    "adapters/script/branches.py", "adapters/script/expressions.py", "adapters/trl_launch.py", "adapters/trl_fields.py",
    "compare/trial.py", "compare/trial_arms.py", "compare/trial_child.py", "compare/trial_plan.py",
    "compare/trial_session.py",
    "adapters/shell/script.py",
    "adapters/shell/syntax.py", "adapters/shell/words.py", "adapters/verl_keys.py", "adapters/verl_source.py",
    "compare/arms.py", "compare/discovery.py",
    "parts/definition.py", "doctor/rollout_sample.py", "explain/outlook.py", "explain/rollout_source.py",
    "training/phase_plan.py", "training/report.py", "base/yamltext.py",
}  # fmt: skip
TERM = r"\<\|im_end\|\>"
# Patterns that are made at run time, (file, argument as written): the defaults, or an example of what they are made of.
# An empty list: a pattern of the user's, who answers for it.
MADE: dict[tuple[str, str], list[str]] = {
    ("base/answers.py", "pattern"): [ANSWER, TAGGED],
    ("models/chat/plain.py", "f'(?={self._control.pattern})(.)'"): [f"(?={TERM})(.)"],
    ("models/chat/plain.py", "'|'.join(map(re.escape, longest_first))"): [f"{TERM}|<think>"],
    # over the text of a template, which no policy writes
    ("models/chat/variables.py", "f'\\\\b{re.escape(name)}\\\\b'"): [],
    ("models/chat/template.py", 'f"\\\\s*({\'|\'.join(map(re.escape, words))})"'): [],
    ("doctor/checks/scored.py", "f'<{tag}>\\\\s*$'"): [r"<think>\s*$"],
    # of keys of metrics, which are not looked up from `readers.keys.LONGEST` characters on
    ("doctor/readers/keys.py", "pattern"): [],
    ("doctor/readers/keys.py", "table.get('own_keys', '(?!)')"): [],
    ("doctor/readers/keys.py", "p.pattern.replace('/', '_')"): [],
    ("sampling/rollouts/critique.py", "cue + number"): [
        r"(?:[=:]|\b(?:is|equals|to))\s*(?<![\w.])77(?!\w|\.\d)",
        r"(?<![\w.])777(?!\w|\.\d)",
    ],
    ("sampling/rollouts/cut_and_regenerate.py", "phrase"): [],
    ("doctor/html.py", "f'(?<![\\\\w/]){re.escape(series.key)}(?![\\\\w/])'"): [r"(?<![\w/])loss(?![\w/])"],
    ("doctor/rollout_answers.py", "f'(?<!\\\\w){re.escape(answer)}(?!\\\\w)'"): [r"(?<!\w)aaa(?!\w)"],
    ("environments/envs/actions.py", "f'<{name}>((?:(?!<{name}>).)*?)</{name}>'"): [
        "<action>((?:(?!<action>).)*?)</action>",
    ],
    ("sampling/rollouts/critique.py", "pattern"): [r"VERDICT:\s*right", r"VERDICT:\s*wrong"],
    ("sampling/rollouts/critique.py", "getattr(self, name)"): [],
    ("environments/rewards/conformance.py", "pattern"): [EVENT],
    ("environments/rewards/conformance.py", "self.pattern"): [],
    ("environments/rewards/feature.py", "pattern"): [r"<aux>.*</aux>"],
    ("environments/rewards/judged.py", "self.steps"): [r"\n\n"],
    ("environments/rewards/built_in.py", "f'(?:{parts[-1]})\\\\s*\\\\Z'"): [r"(?:### The final answer is:)\s*\Z"],
    ("environments/rewards/built_in.py", "part"): list(HEADINGS),
    ("environments/rewards/built_in.py", "parts[-1]"): [HEADINGS[-1]],
    ("environments/rewards/built_in.py", "step"): [STEP],
    ("environments/rewards/listener.py", "self.answer_pattern"): [],
    ("environments/rewards/tool_calls.py", "f'(?<![\\\\w.-]){re.escape(answer)}(?!\\\\w|\\\\.\\\\d)'"): [
        r"(?<![\w.-])777(?!\w|\.\d)",
    ],
    ("sampling/rollouts/graph.py", "self.accepts"): [],
    ("sampling/rollouts/graph.py", "call.pattern"): [],
    ("algorithms/segments/segmenters.py", "pattern"): [],
    ("algorithms/segments/segmenters.py", "self.regex"): [Pattern().regex],
    ("algorithms/signals/self_teacher.py", "self.hidden_pattern"): [],
    ("algorithms/signals/texts.py", "pattern"): [],
    ("algorithms/signals/texts.py", "f'(?<![\\\\w.]){re.escape(answer)}(?!\\\\w|\\\\.\\\\d)'"): [
        r"(?<![\w.])777(?!\w|\.\d)",
    ],
    ("base/verdicts.py", "f'{words}\\\\s*[:=\\\\uff1a]\\\\s*(.*)'"): [r"verdicts?\s*[:=]\s*(.*)"],
}  # fmt: skip


def jobs(found: list[Use], most: int | None):
    """Jobs of these uses, with at most so many texts each, spread over all that there are."""
    for use in found:
        patterns = [use.pattern] if use.pattern is not None else MADE[use.file, use.argument]
        for pattern in patterns:
            if isinstance(pattern, bytes):
                pattern = pattern.decode("latin-1")
            texts = attacks(pattern, use.flags)
            texts = texts if most is None or len(texts) <= most else texts[:: -(-len(texts) // most)]
            for function in use.functions(pattern):
                yield f"{use.file} {pattern[:80]!r}", function, texts


@pytest.mark.slow
def test_every_pattern_is_known():
    actual = list(uses())
    unknown = {(u.file, u.argument) for u in actual if u.pattern is None and u.file not in OWN} - set(MADE)
    assert unknown == set()  # say above what they are made of
    assert len(actual) > 150


@pytest.mark.slow
def test_patterns_over_a_policys_text_are_linear():
    actual = [use for use in uses() if use.file.startswith(POLICY) and use.file not in OWN]
    assert len(actual) > 60 and over_limit(list(jobs(actual, 6))) == []


@pytest.mark.thorough
def test_all_patterns_are_linear_on_all_attacks():
    assert over_limit(list(jobs([use for use in uses() if use.file not in OWN], None))) == []


def test_what_is_slow_is_found():
    slow = [r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", "<answer>(.*?)</answer>"]
    for pattern in slow:
        use = Use("", "", pattern, re.DOTALL, frozenset({"search"}))
        assert len(over_limit([(pattern, use.functions(pattern)[0], attacks(pattern, re.DOTALL))])) == 1


# ---------------------------------------------------------------- functions
FIRST = ("text", "completion", "answer", "reply", "said", "body", "content", "block")
ARGUMENTS = {  # of functions that take more than a text
    "gxpo.environments.envs.actions.find_action": (["left", "right"],),
    "gxpo.environments.rewards.agreement.cosine": ("x",),
    "gxpo.environments.rewards.agreement.recall": ("x",),
    "gxpo.environments.rewards.built_in.contained": (["a", ["b", "c"]],),
    "gxpo.environments.rewards.built_in.in_order": (["Step", "answer"],),
    "gxpo.environments.rewards.matched_calls.word_f1": ("x",),
    "gxpo.environments.rewards.metrics.measure.answer_of": (ANSWER,),
    "gxpo.environments.rewards.metrics.text.choice": ("B",),
    "gxpo.environments.rewards.metrics.text.exact": ("x",),
    "gxpo.environments.rewards.metrics.text.f1": ("x",),
    "gxpo.environments.rewards.metrics.text.wer": ("x y z" * 20,),
    "gxpo.environments.rewards.metrics.text.cer": ("x y z" * 20,),
    "gxpo.environments.rewards.metrics.text.bleu": ("x y z" * 20,),
    "gxpo.environments.rewards.metrics.text.chrf": ("x y z" * 20,),
    "gxpo.environments.rewards.metrics.regions.interval_iou": ([1, 2],),
    "gxpo.environments.rewards.metrics.regions.box_iou": ([1, 2, 3, 4],),
    "gxpo.environments.rewards.metrics.regions.point_in_box": ([1, 2, 3, 4],),
    "gxpo.environments.rewards.metrics.regions.point_distance": ([1, 2],),
    "gxpo.environments.rewards.metrics.regions.count_distance": (1,),
    "gxpo.environments.rewards.metrics.structure.json_schema": ({"a": 1},),
    "gxpo.models.chat.formats.blocks": ("<tool_call>", "</tool_call>", lambda text: []),
    "gxpo.models.chat.reading.read": (None, {}, True),
    "gxpo.environments.rewards.built_in.mentioned": (["aa", "b c"],),
    "gxpo.environments.rewards.judged.read_score": (0.0, 10.0),
    "gxpo.environments.rewards.metrics.regions.numbers_of": ((2,), "an interval"),
    "gxpo.algorithms.signals.step_judge.read_scores": (3, 0.0, 1.0),
    "gxpo.algorithms.signals.step_judge.read_wrong": (3,),
    "gxpo.base.verdicts.ending": ("verdict",),
    "gxpo.base.verdicts.fenced": ("x",),
    "gxpo.base.answers.extract": (re.compile(ANSWER, re.DOTALL),),
}
FORMATS = "gxpo.models.chat.formats"
# not over a policy's text, or with a limit of their own: a process that the kernel ends (math, teds), a size
LIMITED = {"gxpo.environments.rewards.math.correct", "gxpo.environments.rewards.math.parsable",
           "gxpo.environments.rewards.metrics.tables.teds",
           "gxpo.environments.rewards.metrics.embedding.embedding", "gxpo.base.answers.compiled"}  # fmt: skip
PIECES = (
    "```json\n", "```", "<tool_call>", "<answer>", "</answer>", "\\boxed{", "{", "}", "[", '{"a":', '"', "\\",
    "\n", " ", "7", "a", "<think>", "</think>", "<function=f>", "<parameter=p>", "<arg_key>k</arg_key>", "<arg_value>",
    "#", ",", "[TOOL_CALLS]", "<|channel|>", "<|message|>", "<|python_tag|>", "\\\\[", "\\begin{tabular}",
    "<table><tr><td>", "a\uff5ctool\u2581sep\uff5c", "Step 1:", "1e", ".", "-", "\x00", "\ud800", "\u0663", "&", "<!",
    "(", "\\multicolumn{1}{",
)  # fmt: skip
PREFIXES = ("", "```json\n", "<tool_call>", "\\boxed{", "<answer>", "[TOOL_CALLS]a", "<tool>a(", '{"a": ')


def functions():
    """(name, function of a text) of all public functions over texts."""
    for package in (
        "environments.rewards", "models.chat", "environments.envs", "algorithms.segments", "algorithms.signals",
        "algorithms.weighting",
    ):  # fmt: skip
        root = importlib.import_module(f"gxpo.{package}")
        for info in pkgutil.walk_packages(root.__path__, f"gxpo.{package}."):
            if ".adapters" in info.name or info.name.endswith("launcher"):
                continue
            yield from _of(importlib.import_module(info.name))
    for name in (
        "base.answers",
        "base.verdicts",
        "explain.overlap",
        "doctor.rollout_texts",
        "doctor.rollout_answers",
    ):
        yield from _of(importlib.import_module(f"gxpo.{name}"))


def _of(module):
    for name, function in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        parameters = list(inspect.signature(function).parameters.values())
        if parameters and parameters[0].name in FIRST and parameters[0].annotation == "str":
            full = f"{module.__name__}.{name}"
            needed = [p for p in parameters[1:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            yield full, function, needed


@pytest.mark.slow
def test_functions_over_texts_are_linear():
    actual, unknown = [], []
    texts = [piece * (SIZE // len(piece)) for piece in PIECES]
    texts += [prefix + piece * (SIZE // len(piece)) + "\x01" for prefix in PREFIXES[1:] for piece in PIECES[12:16]]
    for name, function, needed in functions():
        if name in LIMITED:
            continue
        arguments = ARGUMENTS.get(
            name, ({},) if name.startswith(FORMATS) and [p.name for p in needed] == ["types"] else ()
        )
        if len(arguments) != len(needed) and not (name in ARGUMENTS and len(arguments) >= len(needed)):
            unknown.append((name, [p.name for p in needed]))
            continue
        tried = texts[::8] if name.endswith(("bleu", "chrf")) else texts  # 0.1 s each
        actual.append((name, lambda text, function=function, arguments=arguments: function(text, *arguments), tried))
    assert unknown == []  # say in ARGUMENTS how they are called
    assert len(actual) > 40 and over_limit(actual) == []
