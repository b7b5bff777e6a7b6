"""The README and the docs: their code runs, their generated pages are current."""

import doctest
import re
from pathlib import Path

import pytest
import torch

import redfuser
from redfuser.report.options import page

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", [p for p in PAGES if "```python" in p.read_text()], ids=lambda p: p.name)
def test_code_of_page_runs(path, monkeypatch, tmp_path):
    """Each page's Python blocks run in order, as one program."""
    monkeypatch.chdir(tmp_path)
    source = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
    file = tmp_path / f"{path.stem}.py"
    file.write_text(source)
    exec(compile(source, str(file), "exec"), {"__name__": "page"})


def test_page_of_options_is_current():
    assert (ROOT / "docs" / "options.md").read_text() == page(), (
        "run: python -m redfuser.report.options > docs/options.md"
    )


def test_docstrings_of_the_api():
    from redfuser import api, settings

    names = {**vars(redfuser), "fuse": redfuser.fuse, "analyze": redfuser.analyze, "torch": torch}
    names |= {"assert_fused": redfuser.assert_fused, "Options": redfuser.Options}
    for module in (api, settings):
        for test in doctest.DocTestFinder().find(module, globs=names):
            result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
            assert result.failed == 0, test.name
