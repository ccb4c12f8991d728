"""The site builds from the pages, and the pictures of the pages are as they are drawn."""

import importlib.util
import runpy
import shutil
import subprocess
import sys

import pytest
from documents import ROOT


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="pip install -e .[docs]")
def test_the_site_builds(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "site").glob("*.html")}
    assert "mtf_hetero.UnevenMeshImpl" in pages["api"] and "laid_out_volumes" in pages["api_training"]
    assert 'class="example"' not in pages["api"] and '<span class="gp">' in pages["api"]  # examples are code, not prose
    assert [pages[page].count('class="tabbed-block"') for page in ("index", "layouts")] == [3, 5]
    assert all("unpkg.com" not in page.partition("location.protocol == 'file:'")[0] for page in pages.values())
    assert all(page.count("unpkg.com") == 1 for page in pages.values())
    assert "glossary.html" in pages["changelog"] and "how_it_works.html" in pages["contributing"]


def test_the_pictures_are_as_they_are_drawn(tmp_path):
    pictures = ROOT / "docs" / "pictures"
    draw = runpy.run_path(shutil.copy(pictures / "draw.py", tmp_path))
    draw["draw_split"]()
    draw["draw_flow"]()
    assert (pictures / "plan.png").is_file()
    for path in pictures.glob("*.svg"):
        assert path.read_text(encoding="utf-8") == (tmp_path / path.name).read_text(encoding="utf-8")
