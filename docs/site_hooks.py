"""Add the benchmarks' reports and the examples, which are outside of docs/, to the site.

In the repository, pages link to `../benchmarks/reports/...` and `../examples/...`. In the site, the paths are
`reports/...` and `examples/...`.
"""

import pathlib
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
ADDED = {"../benchmarks/reports/": "reports/", "../examples/": "examples/"}


def on_files(files: Any, config: Any) -> Any:
    """Add the reports, their pictures and the examples to the site's files."""
    for link, place in ADDED.items():
        for path in sorted((ROOT / link.removeprefix("../")).iterdir()):
            if path.suffix in (".md", ".png", ".svg", ".py"):
                files.append(File.generated(config, f"{place}{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite the links to these files."""
    for link, place in ADDED.items():
        markdown = markdown.replace(f"]({link}", f"]({place}")
    return markdown
