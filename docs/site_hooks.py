"""What the site takes from outside docs/: the benchmarks' reports and the examples.

In the repository the pages link to `../benchmarks/reports/...` and `../examples/...`, where a reader of the files finds
them; in the site these are `reports/...` and `examples/...`.
"""

import pathlib
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
TAKEN = {"../benchmarks/reports/": "reports/", "../examples/": "examples/"}


def on_files(files: Any, config: Any) -> Any:
    """Adds the reports, their pictures and the examples to the site's files."""
    for link, place in TAKEN.items():
        for path in sorted((ROOT / link.removeprefix("../")).iterdir()):
            if path.suffix in (".md", ".png", ".svg", ".py"):
                files.append(File.generated(config, f"{place}{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrites the links."""
    for link, place in TAKEN.items():
        markdown = markdown.replace(f"]({link}", f"]({place}")
    return markdown
