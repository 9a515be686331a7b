"""Scripts of bash are read as bash would run them, and what can't be known is said to be unknown."""

from pathlib import Path

import pytest

from gxpo.adapters.shell.values import Unknown
from gxpo.adapters.verl_source import read_source
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError

SCRIPTS = yamltext.plain(
    yamltext.load((Path(__file__).parent / "convert" / "scripts.yaml").read_text(), "scripts.yaml"), "scripts.yaml"
)


def values(source):
    return {key: value for key, (value, _) in read_source(source).settings.items()}


def test_scripts_give_the_arguments_that_bash_gives(here):
    wrong = []
    for entry in SCRIPTS:
        for name, text in {"run.sh": entry["script"], **entry.get("files", {})}.items():
            (here / name).parent.mkdir(exist_ok=True)
            (here / name).write_text(text)
        read, true = read_source(["run.sh"]), values(entry["arguments"])
        message = {key: value for key, (value, _) in read.settings.items()}
        unknown = sorted(key for key, value in message.items() if isinstance(value, Unknown))
        if unknown != sorted(entry.get("open", [])):
            wrong.append(f"{entry['name']}: unknown are {unknown}")
        wrong += [
            f"{entry['name']}: {key}: {message.get(key, '-')} for {true.get(key, '-')}"
            for key in {**message, **true}
            if key not in unknown and message.get(key, "-") != true.get(key, "-")
        ]
        if not any(entry.get("said", "") in note for _, note in [*read.notes, ("", "")]):
            wrong.append(f"{entry['name']}: {entry['said']!r} is not said")
        for name in entry.get("files", {}):
            (here / name).unlink()
    assert not wrong, "\n".join(wrong)


def test_there_are_fifty_scripts():
    assert len({entry["name"] for entry in SCRIPTS}) == len(SCRIPTS) >= 50


def test_a_script_that_ends_at_its_defaults_names_what_to_give_it(here):
    Path("run.sh").write_text(
        "M=${M:-none}\nif [ $M = none ]; then exit 1; fi\npython3 -m verl.trainer.main_ppo data.train_batch_size=4\n"
    )
    with pytest.raises(ConfigError, match=r"it ends in line 2; put NAME=VALUE for \$M before run\.sh"):
        read_source(["run.sh"])
    assert read_source(["M=a", "run.sh"]).get("data.train_batch_size") == 4
