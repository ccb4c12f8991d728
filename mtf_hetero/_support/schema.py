"""Schemas of files: each states the allowed values of the fields once, and refuses any other value in one line.

    LINK = Record({"latency_seconds": Number(least=0), "bytes_per_second": Number(above=0)})
    DEVICE = Record({"name": Text(), "count": Number(integer=True, least=1)}, optional=["count"])
    FILE = Record({"devices": Many(DEVICE, least=1), "link": LINK})
    value = FILE.read(loading.load(path))

The values come from `loading.load`, which limits the size and the depth of a file. A message shows only the beginning
of a value.
"""

import dataclasses
import difflib
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

_MOST_CHARACTERS = 10_000  # of a text; a path has 4,096
_MOST_NUMBER = 1e30


class _Shown(reprlib.Repr):
    """Formats the beginning of a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxstring, self.maxlong, self.maxother = 3, 6, 6, 100, 40, 100

    def repr_int(self, x: int, level: int) -> str:
        return f"a number of {x.bit_length()} bits" if x.bit_length() > 200 else repr(x)


def shorten(value: object) -> str:
    """Return the beginning of a value's text, for a message."""
    return "null" if value is None else _Shown().repr(value)


def nearest_text(names: Sequence[str]) -> str:
    """Return the names that are near an unknown one, for a message.

    Example:
      >>> nearest_text(["A10", "A100"])
      '; the nearest are A10 and A100'
    """
    return f"; the nearest {'are' if len(names) > 1 else 'is'} {' and '.join(names)}" if names else ""


def near_text(name: str, known: Iterable[str]) -> str:
    """Return the two known names that are nearest to an unknown one, for a message; "" if none is near."""
    return nearest_text(difflib.get_close_matches(name, [*known], n=2))


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == math.floor(number) and abs(number) < 1e10 else f"{number:g}"


class Kind:
    """The allowed values of a field; `str` of it completes "it must be"."""

    def read(self, value: object, name: str = "") -> Any:
        """Check a value, and return it as the program uses it.

        Args:
          value: as a file holds it.
          name: its name in a message; "" for a whole file.

        Raises:
          ValueError: one line with the field, its value and the allowed values.
        """
        raise NotImplementedError

    def _refuse(self, value: object, name: str) -> ValueError:
        return ValueError(f"{name or 'the file'} is {shorten(value)}; it must be {self}")


@dataclasses.dataclass(frozen=True)
class Number(Kind):
    """A finite number.

    Args:
      least: it is this or more.
      above: it is greater.
      most: it is this or less.
      integer: it has no fraction, and becomes an int.
      of_text: text such as 8e11 is allowed too, because YAML 1.1 does not read it as a number.
    """

    least: float | None = None
    above: float | None = None
    most: float = _MOST_NUMBER
    integer: bool = False
    of_text: bool = False

    def __str__(self) -> str:
        text = "a whole number" if self.integer else "a number"
        if self.least is not None:
            text += f", {_plain(self.least)} or more"
        if self.above is not None:
            text += ", greater than zero" if self.above == 0 else f", greater than {_plain(self.above)}"
        return (
            text if self.most == _MOST_NUMBER else f"{text}{' and' if ',' in text else ','} at most {_plain(self.most)}"
        )

    def read(self, value: object, name: str = "") -> float:
        number = value
        if self.of_text and isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                raise self._refuse(value, name) from None
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not self._is_within(number):
            raise self._refuse(value, name)
        return int(number) if self.integer else float(number)

    def _is_within(self, number: float) -> bool:
        if not -self.most <= number <= self.most:  # true for NaN, too
            return False
        if (self.least is not None and number < self.least) or (self.above is not None and number <= self.above):
            return False
        return not self.integer or number == math.floor(number)


@dataclasses.dataclass(frozen=True)
class Text(Kind):
    """Text.

    Args:
      choices: it is one of these; none: any.
      least: number of characters.
      of_number: a whole number is allowed too, as text.
      description: completes "it must be" in a message; "": what the kind says.
    """

    choices: Collection[str] = ()
    least: int = 0
    of_number: bool = False
    description: str = ""

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return self.description or ("text that is not empty" if self.least else "text")

    def read(self, value: object, name: str = "") -> str:
        if self.of_number and isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_NUMBER:
            value = str(value)
        if not isinstance(value, str) or not self.least <= len(value) <= _MOST_CHARACTERS or "\0" in value:
            raise self._refuse(value, name)
        if (self.choices and value not in self.choices) or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self._refuse(value, name)
        return value


@dataclasses.dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    def __str__(self) -> str:
        return "true or false"

    def read(self, value: object, name: str = "") -> bool:
        if not isinstance(value, bool):
            raise self._refuse(value, name)
        return value


@dataclasses.dataclass(frozen=True)
class Many(Kind):
    """A list; it becomes a tuple.

    Args:
      of: the kind of each value.
      least: number of values.
      most: the same, None: any number.
      of_text: text with commas between the values is allowed too.
      description: as of Text.
    """

    of: Kind
    least: int = 0
    most: int | None = None
    of_text: bool = False
    description: str = ""

    def __str__(self) -> str:
        if self.description:
            return self.description
        if self.least == self.most:
            return f"a list of {self.least}"
        text = f"a list of {self.least} or more" if self.least else "a list"
        return text if self.most is None else f"{text} and at most {self.most}"

    def read(self, value: object, name: str = "") -> tuple[Any, ...]:
        if self.of_text and isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        if not isinstance(value, (list, tuple)) or not self.least <= len(value) <= (self.most or math.inf):
            raise self._refuse(value, name)
        try:
            return tuple(self.of.read(part) for part in value)  # names would take longer than the values
        except ValueError:
            return tuple(self.of.read(part, f"{name}[{number}]") for number, part in enumerate(value))


@dataclasses.dataclass(frozen=True)
class Table(Kind):
    """A value for each of any names.

    Args:
      of: the kind of each value.
      description: as of Text.
    """

    of: Kind
    description: str = ""

    def __str__(self) -> str:
        return self.description or "an object, {name: value}"

    def read(self, value: object, name: str = "") -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self._refuse(value, name)
        label = f"{name} " if name else ""
        keys = [_NAME.read(key, f"a name in {name or 'the file'}") for key in value]
        return {key: self.of.read(value[key], f"{label}{shorten(key)}") for key in keys}


@dataclasses.dataclass(frozen=True)
class Record(Kind):
    """A value for each of some names.

    Args:
      fields: {name: kind}.
      optional: names that may be absent; then the result of `read` lacks them too.
      noun: the word for a name in messages: "'speed' is not a known field".
    """

    fields: Mapping[str, Kind]
    optional: Collection[str] = ()
    noun: str = "field"

    def __str__(self) -> str:
        return f"an object with the {self.noun}s {', '.join(self.fields)}"

    def read(self, value: object, name: str = "") -> dict[str, Any]:
        prefix, where = (f"{name}.", f" of {name}") if name else ("", "")
        if not isinstance(value, Mapping):
            raise self._refuse(value, name)
        for key in value:
            if key not in self.fields:
                raise ValueError(
                    f"{shorten(key)} is not a {self.noun}{where}; the {self.noun}s are {', '.join(self.fields)}"
                )
        for key in self.fields:
            if key not in value and key not in self.optional:
                raise ValueError(f"{prefix + key!r} is missing; it must be {self.fields[key]}")
        return {key: kind.read(value[key], prefix + key) for key, kind in self.fields.items() if key in value}


@dataclasses.dataclass(frozen=True)
class Maybe(Kind):
    """A value, or null."""

    of: Kind

    def __str__(self) -> str:
        return f"{self.of}, or null"

    def read(self, value: object, name: str = "") -> Any:
        return None if value is None else self.of.read(value, name)


@dataclasses.dataclass(frozen=True)
class OrWords(Kind):
    """A value, or words for it.

    Args:
      of: the kind of the value.
      convert: returns the value that text means; its ValueError is shown with the field's name.
      examples: of such words, for a message.
    """

    of: Kind
    convert: Callable[[str], object]
    examples: str

    def __str__(self) -> str:
        return f"{self.of}, or words such as {self.examples}"

    def read(self, value: object, name: str = "") -> Any:
        if not isinstance(value, (str, Mapping)):
            raise self._refuse(value, name)
        if isinstance(value, str):
            try:
                value = self.convert(value)
            except ValueError as error:
                raise ValueError(f"{name or 'the file'}: {error}") from None
        return self.of.read(value, name)


@dataclasses.dataclass(frozen=True)
class Anything(Kind):
    """Any value of JSON."""

    def __str__(self) -> str:
        return "any value"

    def read(self, value: object, name: str = "") -> Any:
        return value


_NAME = Text()
