"""Show the examples of docstrings as code in the API reference."""

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n((?: +.*\n?|\n)+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Turn the section Example of each docstring into a block of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_block, obj.docstring.value)


def _block(match: re.Match[str]) -> str:
    code = textwrap.dedent(match[1]).strip()
    language = "pycon" if code.startswith(">>>") else "python"
    return f"**Example:**\n\n```{language}\n{code}\n```\n\n"
