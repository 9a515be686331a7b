"""The rows of vLLM, its own side played by programs that answer as it does."""

import json
import os
import subprocess
import sys

import pytest

from gxpo.bench import sample_vllm, vllm_alone
from gxpo.bench.runner import BenchError
from gxpo.bench.sample import Work

WORK = vars(Work("tiny", rows=4, length=5, group=2, new=6))

COUNTS = """
import json, sys
given = json.loads(sys.stdin.readline())
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    with open(sys.argv[0] + ".seen", "a") as seen:
        seen.write(line)
    print(json.dumps({"tokens": given["new"] * len(json.loads(line))}), flush=True)
"""

AS_VLLM = """
import runpy, sys, types
def generate(prompts, params, use_tqdm):
    assert params["ignore_eos"] and params["logprobs"] == 0 and params["temperature"] == 1.0
    print("vLLM prints")
    out = types.SimpleNamespace(token_ids=[7] * params["max_tokens"])
    return [types.SimpleNamespace(outputs=[out]) for prompt in prompts if prompt["prompt_token_ids"]]
vllm = types.ModuleType("vllm")
vllm.LLM = lambda model: types.SimpleNamespace(generate=generate)
vllm.SamplingParams = dict
sys.modules["vllm"] = vllm
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.slow
def test_vllm_gets_a_prompt_per_sample_and_new_ones_every_round(folder, tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(COUNTS)
    monkeypatch.setattr(vllm_alone, "__file__", str(program))
    once = sample_vllm.bare_vllm(str(folder / "tiny"), "float32", WORK, sys.executable)
    for _ in range(2):
        actual = once()
        assert actual["tokens"] == 4 * 6 and actual["seconds"] > 0 and actual["cpu_seconds"] >= 0
    first, second = map(json.loads, (tmp_path / "program.py.seen").read_text().splitlines())
    assert first[0] == first[1] != first[2] == first[3] and all(len(ids) == 5 for ids in first + second)
    assert first[0] != second[0]


def test_vllm_that_ends_is_an_error(folder, tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text("import sys; sys.stdin.readline(); sys.exit(4)")
    monkeypatch.setattr(vllm_alone, "__file__", str(program))
    with pytest.raises(BenchError, match="exit status 4"):
        sample_vllm.bare_vllm(str(folder / "tiny"), "float32", WORK, sys.executable)


def test_the_program_draws_what_it_is_asked_for():
    program = vllm_alone.__file__
    asked_fields = [{"arguments": {"model": "m"}, "new": 3}, [[1, 2], [1, 2], [3]]]
    done = subprocess.run(
        [sys.executable, "-I", "-c", AS_VLLM, program],
        input="".join(json.dumps(x) + "\n" for x in asked_fields),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [json.loads(x) for x in done.stdout.splitlines()] == [{"ready": True}, {"tokens": 9}], done.stderr
    assert "vLLM prints" in done.stderr


def test_core_seconds_of_the_other_process_are_counted():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        timed = sample_vllm._Timed(busy.pid)
        before = busy_seconds(busy.pid)
        while busy_seconds(busy.pid) < before + 0.1:
            os.sched_yield()
        assert timed.figures(1)["cpu_seconds"] >= 0.1
    finally:
        busy.kill()
        busy.wait()


def busy_seconds(pid):
    """As ps counts them, to a hundredth."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().split()  # the name, python, has no blank
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def test_rows_name_the_interpreter_and_are_the_same_work():
    for case in sample_vllm.cases("folder", "there/python"):
        assert case.name.startswith("vllm/smollm2/") and case.candidate.arguments == case.baseline.arguments
        assert case.candidate.arguments["python"] == "there/python" and case.candidate.python is None
