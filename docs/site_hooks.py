"""Fit the pages of the repository to the site.

* The reports, the examples, CHANGELOG.md and CONTRIBUTING.md are outside of docs/: the site has them under other paths.
* A script that search needs where pages are opened as files is loaded there alone.
* Paragraphs between `<!-- tabs -->` and `<!-- end of tabs -->` become tabs. Each begins with its name in bold type.
  In the repository, they are read one after the other.
"""

import pathlib
import re
import textwrap
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = {"benchmarks/reports/": "reports/", "examples/": "examples/"}
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "benchmarks/README.md": "benchmarks.md"}
PLACES = {f"](../{place}": f"]({path}" for place, path in (FOLDERS | PAGES).items()}
PLACES_FROM_TOP = {f"]({place}": f"]({path}" for place, path in ({"docs/": ""} | FOLDERS | PAGES).items()}
TABS = re.compile(r"<!-- tabs -->\n(.*?)<!-- end of tabs -->", re.DOTALL)
SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
ESCAPED_SHIM = SHIM.replace("</", r"<\/")
TAB = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Say the version below each page. A site that mike does not build has no menu of versions."""
    if "mike" not in config.plugins:
        config.extra.pop("version")
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "mtf_hetero" / "__init__.py").read_text(), re.MULTILINE)
    config.copyright = f"mtf_hetero {version[1] if version else ''}, Apache-2.0"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, pictures and programs from outside of docs/."""
    for folder, place in FOLDERS.items():
        for path in sorted((ROOT / folder).iterdir()):
            if path.suffix in (".md", ".png", ".svg", ".py"):
                files.append(File.generated(config, f"{place}{path.name}", abs_src_path=str(path)))
    for name, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links to these files, and make tabs."""
    places = PLACES_FROM_TOP if page.file.src_uri in PAGES.values() else PLACES
    for link, place in places.items():
        markdown = markdown.replace(link, place)
    return TABS.sub(_tabs, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Load the script of the plugin `offline` from another server only where the pages are files."""
    return output.replace(SHIM, f"<script>location.protocol == 'file:' && document.write('{ESCAPED_SHIM}')</script>")


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same in the page for addresses that do not exist."""
    return on_post_page(output_content)


def _tabs(match: re.Match[str]) -> str:
    names_and_texts = TAB.split(match[1])[1:]
    tabs = zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
    return "\n".join(f'=== "{name}"\n{textwrap.indent(text, "    ")}' for name, text in tabs)
