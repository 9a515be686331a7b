"""Reward functions from a file (`my_rewards.py:exact`), a Python callable, a task's scorer or a group-level reward."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, object_at, root_of, split, unusable
from gxpo.base.usercode import from_file as object_of_file
from gxpo.environments.rewards.batch import BATCH, AsyncEach, Batch, takes_batch
from gxpo.environments.rewards.rubric import Rubric, is_rubric
from gxpo.environments.rewards.worker import ARGUMENTS, parameters
from gxpo.parts.protocols import Task

STEP = ("forest", "texts", "tasks")  # the first parameters of a function that sees all rollouts of a step


@dataclass(frozen=True)
class Function:
    """Reward function, before it is loaded.

    name     the component a plain number becomes; a returned mapping names its own
    label    its name in messages
    source   what a worker loads (`environments.rewards.worker.load`), None: it runs in process, without a time limit
    call     the callable, where it runs in process
    asks     parameters it is called with; None: `(text, task)`, as a task's scorer is
    trusted  gxpo's own code that can't hang
    gives    names of its components where they are known beforehand
    grouped  it is called once with all rollouts of a step: a `base.GroupReward`; it runs in process
    reports  components of a grouped one that are recorded and not counted
    verdict  where it is grouped: it gives a number for each rollout, as a function of one rollout does
    needs_answer  it can't do without a task's answer
    raw      where it is grouped: it declares `texts_raw`
    """

    name: str
    label: str
    source: dict[str, Any] | None = None
    call: Callable[..., Any] | None = None
    argument_names: tuple[str, ...] | None = None
    trusted: bool = False
    gives: tuple[str, ...] | None = None
    grouped: bool = False
    reports: tuple[str, ...] = ()
    verdict: bool = False
    needs_answer: bool = False
    raw: bool = False

    @property
    def is_scorer(self) -> bool:
        """True if it is called as `(text, task)`."""
        return self.source["is_scorer"] if self.source is not None else self.argument_names is None and not self.grouped

    @property
    def endless(self) -> bool:
        """True if it is user code without a time limit."""
        return self.source is None and not (self.trusted or self.grouped)

    @property
    def label_free(self) -> bool:
        """True if it replaces the verifier, so that tasks need no answer."""
        return self.grouped and hasattr(self.call, "bind")


def names_file(text: str) -> bool:
    """True if a reward's name refers to a function in a file."""
    return ":" in text or text.endswith(".py") or "/" in text


def source_of(text: str, prefix: str = "reward ", example: str = "my_rewards.py:exact") -> dict[str, Any]:
    """Source for `usercode.from_file`: file, content and function name of `path/to/my_rewards.py:exact`."""
    path, name = split(text)
    if path == "python":
        raise ConfigError(
            f"{prefix}{text!r} is a Python object of the script that began the run: give it again, as in "
            "gxpo.resume(RUN, reward=...), or start the run with a function of a file"
        )
    if not path or root_of(name) is None:
        example = f"{text}:FUNCTION" if text.endswith(".py") else example
        raise ConfigError(f"{prefix}{text!r}: name a function in the file, as in {example}")
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"{prefix}{text!r}: there is no file {path} (looked in {Path.cwd()})")
    # The resolved path, and the content as it is now: workers that start later load the same.
    file = file.resolve()
    return {"file": str(file), "folder": str(file.parent), "code": file.read_bytes(), "name": name}


def load(text: str) -> Callable[..., Any]:
    """Load the function `my_file.py:name` in this process."""
    source = source_of(text, "", "my_judge.py:ask")
    try:
        return object_of_file(source, type(load), f"gxpo_user_{Path(source['file']).stem}")
    except Exception as error:
        raise ConfigError(f"{text}: {unusable(error)}") from error


def grouped(call: Callable[..., Any], label: str, name: str | None = None) -> Function:
    """Wrap a group-level reward, with the facts that its attributes state."""
    component = name or getattr(call, "name", None) or getattr(call, "__name__", None) or type(call).__name__
    attributes = {"gives": getattr(call, "gives", None), "needs_answer": getattr(call, "needs_answer", False)}
    attributes["raw"] = _declares(call, "texts_raw")
    return Function(
        str(component), label, call=call, grouped=True, reports=tuple(getattr(call, "reports", ())), **attributes
    )


def _declares(call: Callable[..., Any], name: str) -> bool:
    """True if a callable has a parameter of that name; False where its signature can't be read."""
    try:
        return name in inspect.signature(call).parameters
    except (TypeError, ValueError):
        return False


def from_file(text: str) -> Function:
    """Reward function from `path/to/my_rewards.py:exact`; the file is read here and run in the worker only.

    The parameters of a plain `def` are read without running it. Any other object (a partial, an instance, what a
    decorator or a factory `make(scale=2.0)` gives, an import) is loaded in this process, so that its signature tells
    what it scores. One of a single rollout then runs in the worker all the same; one of (forest, texts, tasks), one of
    a batch (`batch.Batch`), an async one and a rubric of verifiers stay here.
    """
    # A plain `def` is judged by its text alone, so that importing the file stays the worker's affair.
    source = source_of(text)
    name = _component_name(source["name"])
    remote = {**source, "label": text, "is_scorer": False}
    declaration = _plain_signature(source["code"], source["name"])
    if declaration is not None:
        names, keywords, needs_answer = declaration
        if names[:3] == STEP:
            return grouped(load(text), text, name)
        if not takes_batch(names, text, has_keywords=keywords):
            return Function(name, text, remote, needs_answer=needs_answer)
    # Any other object has to be loaded here to know its parameters. A name that the file can't define is left to the
    # worker, whose error says what is wrong.
    if not _may_define(source["code"], root_of(source["name"]) or ""):
        return Function(name, text, remote)  # what is wrong is reported when it is loaded
    if source["folder"] not in sys.path:  # as in the worker: what lies beside the file can be imported
        sys.path.append(source["folder"])
    try:
        reward_object = object_at(f"{source['file']}:{source['name']}", always=True)
    except Unusable as error:
        raise ConfigError(f"reward {text}: {error}") from error
    local_function = from_callable(reward_object, text)
    if local_function.grouped:
        return dataclasses.replace(
            local_function,
            name=name if local_function.verdict and not is_rubric(reward_object) else local_function.name,
        )
    return Function(name, text, remote, needs_answer=local_function.needs_answer)


def _component_name(expression: str) -> str:
    """Component name of an expression, its last name: of `make(scale=2.0)` make, of `scorer.score` score."""
    return expression.partition("(")[0].rpartition(".")[2]


def _may_define(code: bytes, name: str) -> bool:
    """True if a file can be read and may define the name."""
    try:
        names = {x for statement in ast.parse(code).body for x in _bound_names(statement)}
    except (SyntaxError, ValueError):
        return False
    return not names.isdisjoint((name, "*", "__getattr__"))


def _plain_signature(code: bytes, name: str) -> tuple[tuple[str, ...], bool, bool] | None:
    """Signature of a plain function from its file: parameters, whether it takes others, whether it needs an answer.

    None for anything else, whose signature only the loaded object shows.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return None
    # The last definition of the name, as Python has it.
    definition = next((x for x in reversed(body) if name in _bound_names(x)), None)
    # A decorator may change the parameters, which only the loaded object shows.
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    positional = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args)]
    keyword_names = [a.arg for a in definition.args.kwonlyargs]
    optional = positional[len(positional) - len(definition.args.defaults) :]
    optional += [
        a for a, default in zip(keyword_names, definition.args.kw_defaults, strict=True) if default is not None
    ]
    if not {*positional, *keyword_names} & {*ARGUMENTS, *BATCH}:
        return None
    return (
        (*positional, *keyword_names),
        definition.args.kwarg is not None,
        "answer" in {*positional, *keyword_names} - set(optional),
    )


def _bound_names(statement: ast.stmt) -> set[str]:
    """Names that a statement of a module binds, also in its branches."""
    bound_names = {x.id for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    bound_names |= {a.asname or a.name.split(".")[0] for a in ast.walk(statement) if isinstance(a, ast.alias)}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return (
        {statement.name}
        if isinstance(statement, kinds)
        else bound_names | {x.name for x in ast.walk(statement) if isinstance(x, kinds)}
    )


def from_callable(function: Any, text: str = "") -> Function:
    """Reward function from a Python callable: of one rollout, a batch (`batch.Batch`) or (forest, texts, tasks); or
    from a verifiers rubric.

    One of one rollout that a fresh interpreter can import goes to the worker. A lambda, a closure, or a function of the
    script or notebook itself can't be sent: it runs in process, where exceptions and nonsense are caught but nothing
    ends a hang.

    text  its name in the configuration, for messages

    Raises ConfigError where its parameters do not show what it scores, for a class, and for what is not callable.
    """
    # Kinds from the most specific on: a rubric, (forest, texts, tasks), a batch, then a function of one rollout.
    if is_rubric(function):
        rubric = Rubric(function)
        facts = {"verdict": len(rubric.reports) == 1, "reports": rubric.reports}
        return Function("rubric", text or f"verifiers.{type(function).__name__}", call=rubric, grouped=True, **facts)
    if isinstance(function, type) or not callable(function):
        description = "a class" if isinstance(function, type) else f"a {type(function).__name__}, not a function"
        instance = f": name what it makes, as {text or function.__name__}()" if isinstance(function, type) else ""
        raise ConfigError(f"reward {text or function!r} is {description}{instance}")
    # An instance with `__call__` has no name of its own: its class names it.
    named_object: Any = function if hasattr(function, "__qualname__") else type(function)
    label = text or f"{getattr(named_object, '__module__', '?')}.{named_object.__qualname__}"
    name = getattr(function, "__name__", type(function).__name__)
    # A lambda has no name that a component could have.
    name = name if name.isidentifier() else "reward"
    try:
        declared_parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        declared_parameters = {}  # what can't be read is reported below
    if tuple(declared_parameters)[:3] == STEP:
        return grouped(function, label, getattr(function, "name", None))
    keywords = any(p.kind is p.VAR_KEYWORD for p in declared_parameters.values())
    parameter_names = [n for n, p in declared_parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if takes_batch(parameter_names, label, has_keywords=keywords):
        return Function(name, label, call=Batch(function, label), grouped=True, verdict=True)
    label = text or f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', name)}"
    try:
        argument_names = parameters(function)
    except Unusable as error:
        raise ConfigError(f"reward {label}: {error}{_factory_hint(text, parameter_names)}") from error
    if not argument_names and declared_parameters:
        raise ConfigError(
            f"reward {label}: its parameters ({', '.join(map(str, declared_parameters.values()))}) do not say what it "
            "scores: name completions (a batch, it returns a list) or completion (one rollout, it returns a number)"
            f"{_factory_hint(text, parameter_names)}"
        )
    # A parameter `answer` without a default means that tasks need one.
    needs_answer = "answer" in declared_parameters and declared_parameters["answer"].default is inspect.Parameter.empty
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        async_reward = AsyncEach(function, label, name, argument_names)
        return Function(name, label, call=async_reward, grouped=True, verdict=True, needs_answer=needs_answer)
    # What a fresh interpreter can import goes to the workers; the rest runs here, where nothing ends a hang.
    pickle_text = importable(function)
    if pickle_text is None:
        return Function(name, label, call=function, argument_names=argument_names, needs_answer=needs_answer)
    source = {"pickle": pickle_text, "label": label, "is_scorer": False}
    return Function(name, label, source, argument_names=argument_names, needs_answer=needs_answer)


def _factory_hint(text: str, parameter_names: Sequence[str]) -> str:
    """Hint for a function that may be a factory: name its call."""
    if {*parameter_names} & {*ARGUMENTS, *BATCH}:
        return ""
    return (
        f"; if it makes a reward, name the call, as {text or 'make'}({', '.join(f'{n}=...' for n in parameter_names)})"
    )


def from_scorer(
    scorer: Callable[..., Any], *, trusted: bool, computes: bool = False, example: Task | None = None
) -> Function:
    """Reward function from a task's own scorer. A trusted one (gxpo's own code, which can't hang) runs in process. One
    that `computes`, and waits for nothing, has a limit of processor time, beyond which the answer is wrong.

    In a worker it first scores an empty text for `example`, so that what it imports is there.
    """
    label = "the task's scorer"
    pickled = None if trusted else importable(scorer)
    if pickled is None:
        return Function("correct", label, call=scorer, trusted=trusted)
    rehearsal = None if example is None else importable((("", example), {}))
    source = {"pickle": pickled, "label": label, "is_scorer": True, "rehearsal": rehearsal, "computes": computes}
    return Function("correct", label, source)


def importable(value: Any) -> bytes | None:
    """Pickle of `value`, or None where another interpreter could not load it."""
    try:
        pickled = pickle.dumps(value)
    except Exception:
        return None
    return None if b"__main__" in pickled else pickled
