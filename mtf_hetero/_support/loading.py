"""Read JSON and YAML files from untrusted sources: size and depth are limited."""

import collections
import json
import os
import types
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from mtf_hetero._support import extras, files
from mtf_hetero._support.schema import shorten

MOST_DEPTH = 20  # more than any file of the programs has; PyYAML calls itself for each level
MOST_YAML_CHARACTERS = 2**18  # PyYAML reads about 100 kB a second
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")}


def load(path: str | os.PathLike, *, yaml_for: str | None = None) -> Any:
    """Return the content of a JSON file; with `yaml_for`, of a YAML file too.

    Args:
      path: of the file.
      yaml_for: the extra of mtf_hetero that installs PyYAML; None: JSON alone.

    Raises:
      ValueError: in a few words, why it cannot be read.
    """
    text = files.read_text(path)
    if yaml_for is None:
        return parse_json(text)
    if text.lstrip()[:1] == "{":  # reading JSON is 100 times as fast
        try:
            return parse_json(text)
        except ValueError:
            if len(text) > MOST_YAML_CHARACTERS:
                raise
    return parse_yaml(text, extra=yaml_for)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, whose numbers are finite and whose names are unique.

    Raises:
      ValueError: in a few words, what is wrong with it.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep") from None
    _check_depth(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}; give a finite number")


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = _first_twice(name for name, _ in pairs)
        raise ValueError(f"{shorten(twice)} appears twice; keep one of them")
    return value


def _first_twice(names: Iterable[str]) -> str | None:
    return next((name for name, count in collections.Counter(names).items() if count > 1), None)


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_DEPTH} deep")


def parse_yaml(text: str, *, extra: str) -> Any:
    """Return the value of a YAML text without anchors, tags and repeated names.

    Args:
      text: the text.
      extra: of mtf_hetero, which installs PyYAML.

    Raises:
      ValueError: in a few words, what is wrong with it.
    """
    yaml = extras.import_package("yaml", extra=extra, user="a YAML file")
    if len(text) > MOST_YAML_CHARACTERS:
        raise ValueError(f"it has more than {MOST_YAML_CHARACTERS:,} characters of YAML; write JSON")
    try:
        loader = yaml.SafeLoader(text)
        loader.compose_node = _Composer(loader, yaml).compose
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:  # of a constructor
        raise ValueError(f"it cannot be read: {type(error).__name__}") from error


class _Composer:
    """Composes the nodes of a YAML document without aliases, so that a short text cannot become a huge value."""

    def __init__(self, loader: Any, yaml: types.ModuleType) -> None:
        self._loader, self._yaml, self._compose, self._depth = loader, yaml, loader.compose_node, 0

    def compose(self, parent: object, index: object) -> Any:
        """Return a node, like yaml.SafeLoader.compose_node.

        Raises:
          yaml.YAMLError: the node is an alias, has a tag of its own, or is nested too deep.
        """
        if self._loader.check_event(self._yaml.AliasEvent):
            self._refuse("anchors and aliases are not supported; write out the value")
        self._depth += 1
        if self._depth > MOST_DEPTH:
            self._refuse(f"it is nested more than {MOST_DEPTH} deep")
        node = self._compose(parent, index)
        self._depth -= 1
        if node.tag not in _TAGS:
            self._refuse(f"the tag {shorten(node.tag)} is not supported; remove it")
        if isinstance(node, self._yaml.MappingNode):
            names = (key.value for key, _ in node.value if isinstance(key, self._yaml.ScalarNode))
            if (twice := _first_twice(names)) is not None:
                self._refuse(f"{shorten(twice)} appears twice; keep one of the two lines")
        return node

    def _refuse(self, text: str) -> NoReturn:
        raise self._yaml.YAMLError(text)
