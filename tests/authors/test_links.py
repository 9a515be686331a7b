"""`Definition.code`: where the authors' code was read."""

import dataclasses

import pytest

from gxpo.methods import METHODS


@pytest.mark.parametrize("code", ["verl", "a/b", "a/b@main x.py", "a/b@0123456 x@y", "https://github.com/a/b@0123456"])
def test_code_names_repository_commit_and_paths(code):
    with pytest.raises(ValueError, match="OWNER/NAME@COMMIT PATH"):
        dataclasses.replace(METHODS["grpo"], code=code)


def test_links_of_files_and_of_a_whole_repository():
    files = dataclasses.replace(METHODS["grpo"], code="a-b/c.d@0123456 x/y.py z.sh").code_links
    assert files == (
        "https://github.com/a-b/c.d/blob/0123456/x/y.py",
        "https://github.com/a-b/c.d/blob/0123456/z.sh",
    )
    assert dataclasses.replace(METHODS["grpo"], code="a/b@0123456").code_links == (
        "https://github.com/a/b/tree/0123456",
    )


def test_every_label_of_authors_code_says_where_it_was_read():
    linked = {name for name, d in METHODS.items() if d.code}
    assert linked == {name for name, d in METHODS.items() if d.evidence == "reference-code"}
