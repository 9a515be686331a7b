"""A small configuration and the command line, run in this process."""

from tests import command_line

SMALL = """model: tiny:cold
task: arithmetic
tasks: {per_step: 2}
rollout: {group_size: 2}
sampling: {max_new_tokens: 4}
eval: {tasks: 4}
trainer: {steps: 2, checkpoint_every: 1}
"""


def run(*arguments):
    """(exit code, stdout, stderr) of the command line."""
    return command_line.run(arguments)


def config(tmp_path, text=SMALL):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def refused(tmp_path, arguments, message):
    """Exit code 2, one line that holds `message`, and no run directory."""
    out = tmp_path / "out"
    code, _, err = run(*arguments, "--out", out)
    assert code == 2, err
    assert message in err and err.count("\n") == 1 and "Traceback" not in err, err
    assert not out.exists()
