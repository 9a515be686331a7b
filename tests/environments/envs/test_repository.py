"""A repository to mend: its tools, its verdict by hidden tests, and attacks on both."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from gxpo.environments.envs import check, source
from gxpo.environments.envs.repository import Repo, Repository
from gxpo.environments.rewards.sandbox import Local
from gxpo.parts.protocols import ToolCall

FILE = Path(__file__).parents[3] / "examples" / "repository.py"
SPEC = importlib.util.spec_from_file_location("repository_example", FILE)
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)

WRONG = "def f(x):\n    return x - 7\n"
RIGHT = "def f(x):\n    return x + 7\n"
TEST = "from f import f\n\ndef test_f():\n    assert f(1) == 8\n"


class Plus(Repository):
    def repository(self, seed: int) -> Repo:
        hidden = ("assert f(2) == 9", "assert f(-7) == 0")
        return Repo({"f.py": WRONG, "test_f.py": TEST}, "f.py", ("test_f.py",), hidden, "f does not add 7.")


@pytest.fixture
def repo():
    env = Plus(wall=2.0)
    env.reset(0)
    return env


def edit(path, text, **where):
    return ToolCall("edit", {"path": path, "text": text, **where})


def said(env, *calls):
    """Results of the calls of one reply."""
    return [message["content"] for message in env.call("", calls).observation]


def final(env):
    step = env.call("done", ())
    assert step.done and step.reward == float(step.success)
    return step


def test_a_mended_repository_is_paid_and_shows_its_patch(repo):
    assert said(repo, ToolCall("read", {"path": "f.py"})) == ["1 def f(x):\n2     return x - 7\n3 "]
    (failed,) = said(repo, ToolCall("run"))
    assert "test_f failed: AssertionError" in failed and "assert f(1) == 8" in failed
    assert said(repo, edit("f.py", "    return x + 7", line=2), ToolCall("run")) == ["done", "all tests passed"]
    step = final(repo)
    assert step.success and step.info["hidden_passed"] == 1.0
    changed = [line for line in step.info["patch"].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-    return x - 7", "+    return x + 7"]


def test_what_passes_the_visible_test_alone_is_not_paid(repo):
    said(repo, edit("f.py", "return 8", old="return x - 7"))
    assert said(repo, ToolCall("run")) == ["all tests passed"]
    step = final(repo)
    assert not step.success and step.info["hidden_passed"] == 0.0


def test_after_the_last_turn_it_is_judged_as_it_is():
    env = Plus(max_turns=1, wall=2.0)
    env.reset(0)
    step = env.call("", (edit("f.py", "    return x + 7", line=2),))
    assert step.done and step.truncated and step.success and step.reward == 1.0


def test_bare_replies_are_the_same_calls():
    env = Plus(style="bare", wall=2.0)
    assert env.tools == () and env.reset(0).observation == "f does not add 7.\nFiles: f.py, test_f.py\n>"
    assert env.step("read f.py").observation == "\n1 def f(x):\n2     return x - 7\n3 \n>"
    assert env.step("fix it").action_error == "malformed" and env.step("read g.py").action_error == "illegal"
    assert env.step("edit f.py 2     return x + 7").observation == "\ndone\n>"
    assert env.step("run").observation == "\nall tests passed\n>"
    assert env.step("done").success


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (ToolCall("read", {"path": "../f.py"}), "there is no file '../f.py'; there are f.py, test_f.py"),
        (ToolCall("read", {"path": "/etc/passwd"}), "there is no file '/etc/passwd'"),
        (edit("test_f.py", "", line=1), "test_f.py is a test, which can't be edited"),
        (edit("../out.py", "x", line=1), "'../out.py' is no name of a file"),
        (edit(".git", "x", line=1), "'.git' is no name of a file"),
        (edit("main.py", "x", line=1), "'main.py' is no name of a file"),
        (edit("f.py", "x", line=9), "f.py has lines 1 to 3, not 9"),
        (edit("f.py", "x", old="q"), "old stands 0 times in f.py"),
        (edit("f.py", "x", old="x"), "old stands 2 times in f.py"),
        (edit("f.py", "x"), "edit needs either line or old"),
        (edit("f.py", "x" * 70_000, line=1), "more than 65536 characters"),
        (edit("f.py", 3, line=1), "text is a text, not 3"),
        (ToolCall("delete", {}), "there is no tool 'delete'"),
    ],
)
def test_calls_that_are_refused_change_nothing(repo, call, message):
    step = repo.call("", (call,))
    assert step.observation[0]["content"].startswith("Error: ") and message in step.observation[0]["content"]
    assert step.action_error == "illegal" and repo._files == {"f.py": WRONG, "test_f.py": TEST}


ATTACKS = {
    "exit": "import sys\nsys.exit(0)\n",
    "exit within": "import os\ndef f(x):\n    os._exit(0)\n",
    "loop": "def f(x):\n    while True: pass\n",
    "equal to all": "class E(int):\n    __eq__ = lambda s, o: True\ndef f(x): return E(0)\n",
    "conftest": "open('conftest.py', 'w').write('def pytest_runtest_call(): pass')\ndef f(x): return 0\n",
    "other tests": "open('test_f.py', 'w').write('def test_f(): pass')\ndef f(x): return 0\n",
    "symlink": "import os\nos.symlink('/etc/passwd', 'link')\ndef f(x): return open('link').read(1)\n",
    "harness": "import sys\nsys.modules['harness'] = None\nsys.stdout.write('1 1 1')\ndef f(x): return 0\n",
    "reads": "import glob\ndef f(x): return next(int(s.split('==')[1]) for p in glob.glob('*') for s in open(p))\n",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_not_paid(repo, name):
    repo._files["f.py"] = ATTACKS[name]
    assert not final(repo).success


@pytest.mark.parametrize("name", ["other tests", "symlink"])
def test_what_a_run_leaves_behind_does_not_come_back(repo, name):
    repo._files["f.py"] = ATTACKS[name]
    said(repo, ToolCall("run"))
    repo._files["f.py"] = WRONG
    (output,) = said(repo, ToolCall("run"))
    assert "test_f failed" in output and set(repo._files) == {"f.py", "test_f.py"}


def test_a_fork_bomb_and_a_loop_end_with_their_run(repo):
    repo._files["f.py"] = "import os\nwhile True: os.fork()\n"
    (bomb,) = said(repo, ToolCall("run"))
    assert "all tests passed" not in bomb
    repo._files["f.py"] = "while True: pass\n"
    (loop,) = said(repo, ToolCall("run"))
    assert loop.endswith("[timeout]")


def test_a_run_writes_nothing_outside(repo, tmp_path):
    if not Local().isolation().files:
        pytest.skip("this kernel grants the local sandbox no isolation of files (docs/code-and-judges.md)")
    outside = tmp_path / "outside"
    tmp_path.chmod(0o777)
    repo._files["f.py"] = f"open({str(outside)!r}, 'w').write('x')\ndef f(x): return 8\n"
    (output,) = said(repo, ToolCall("run"))
    assert "Error" in output and not outside.exists()


def test_each_example_has_a_fault_that_its_tests_find():
    bugs = example.Bugs()
    for seed in range(300):
        repo = bugs.repository(seed)
        visible = repo.files["test_f.py"].splitlines()[-1].strip()
        *head, _ = repo.files["f.py"].splitlines()
        mended = "\n".join([*head, f"    return {bugs._right}"])
        assert [passes(text, mended) for text in (visible, *repo.hidden)] == [True] * (1 + len(repo.hidden)), seed
        assert not passes(visible, repo.files["f.py"]), (seed, repo.files)
        assert not all(passes(text, repo.files["f.py"]) for text in repo.hidden), (seed, repo.files)


def passes(statement: str, module: str) -> bool:
    scope: dict = {}
    exec(module, scope)
    try:
        exec(statement, scope)
    except Exception:
        return False
    return True


def test_the_example_is_an_environment_whose_expert_mends_it():
    report = check(source(f"{FILE}:Bugs"), seeds=range(2))
    assert not report.problems, report.problems
    env = example.Bugs()
    env.reset(5)
    contents = {env.content(seed) for seed in range(200)}
    assert len(contents) > 60 and all("return" not in content for content in contents)
