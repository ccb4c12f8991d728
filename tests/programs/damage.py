"""Damaged files, generated field by field from the schemas by which they are read; shared by tests."""

import copy
import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

import yaml

from mtf_hetero._support import schema

DEEP: Any = None
for _ in range(40):
    DEEP = [DEEP]
HUGE = 10**400
LONG = "x" * 100_000
WRONG = {"null": None, "true": True, "number": 3, "fraction": 2.5, "text": "some text", "list": [], "object": {}}


@dataclasses.dataclass(frozen=True)
class Damage:
    """A damaged file.

    Args:
      what: is wrong.
      text: bytes of the file.
      refused: whether it must be refused; else it may be, in one line.
    """

    what: str
    text: bytes
    refused: bool = True


def damage_values(kind: schema.Kind, example: Any, name: str = "") -> Iterator[tuple[str, Any, bool]]:
    """(what is wrong, a value in place of the example, whether it must be refused), for each part of the example."""
    for what, wrong in {**WRONG, "nested deep": DEEP, "long text": LONG}.items():
        if not _may_be(kind, wrong):
            yield f"{name} is {what}", wrong, True
    of_kind = {
        schema.Number: _of_number,
        schema.Text: _of_text,
        schema.Many: _of_many,
        schema.Table: _of_table,
        schema.Record: _of_record,
        schema.Maybe: _of_maybe,
        schema.OrWords: lambda kind, *of: damage_values(kind.of, *of),
    }.get(type(kind), lambda *_: ())
    yield from of_kind(kind, example, name)


def _of_maybe(kind: schema.Maybe, example: Any, name: str) -> Iterator[tuple[str, Any, bool]]:
    found = damage_values(kind.of, example, name) if example is not None else ()
    yield from (each for each in found if each[1] is not None)


def _may_be(kind: schema.Kind, value: Any) -> bool:
    """Return whether a value of another type than an example's may be right."""
    if isinstance(kind, schema.Maybe):
        return value is None or _may_be(kind.of, value)
    types: dict[type, Any] = {
        schema.Number: (int, float),
        schema.Text: (str, int) if getattr(kind, "of_number", False) else str,
        schema.Many: (list, str) if getattr(kind, "of_text", False) else list,
        schema.Table: dict,
        schema.Record: dict,
        schema.OrWords: (dict, str),
        schema.Flag: bool,
        schema.Anything: object,
    }
    fits = isinstance(value, types[type(kind)])
    if isinstance(value, bool):
        return fits and type(kind) in (schema.Flag, schema.Anything)
    if isinstance(value, float) and isinstance(kind, schema.Number) and kind.integer:
        return False
    return fits and value is not DEEP


def _of_number(kind: schema.Number, example: float, name: str) -> Iterator[tuple[str, Any, bool]]:
    for what, wrong in {"NaN": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "huge": HUGE}.items():
        yield f"{name} is {what}", wrong, True
    yield f"{name} is huge and negative", -HUGE, True
    yield f"{name} is 1e300", 1e300, True
    yield f"{name} is text of NaN", "nan", True
    if kind.least is not None:
        yield f"{name} is too small", kind.least - 1, True
    if kind.above is not None:
        yield f"{name} is zero", 0, True
        yield f"{name} is negative", -1.0, True
    if kind.most < schema._MOST_NUMBER:
        yield f"{name} is too large", kind.most + 1, True
    if kind.integer:
        yield f"{name} is no whole number", example + 0.5, True


def _of_text(kind: schema.Text, example: str, name: str) -> Iterator[tuple[str, Any, bool]]:
    yield f"{name} has a zero", "a\0b", True
    yield f"{name} has half a letter", "\ud800", True
    if kind.least:
        yield f"{name} is empty", "", True
    if kind.choices:
        yield f"{name} is no choice", "K9", True


def _of_many(kind: schema.Many, example: list, name: str) -> Iterator[tuple[str, Any, bool]]:
    if kind.least:
        yield f"{name} is empty", [], True
    if kind.most is not None and example:
        yield f"{name} has too many", example[:1] * (kind.most + 1), True
    yield f"{name} has itself", [*example, example], True
    for what, value, refused in damage_values(kind.of, example[0], f"{name}[0]") if example else ():
        yield what, [value, *example[1:]], refused


def _of_table(kind: schema.Table, example: dict, name: str) -> Iterator[tuple[str, Any, bool]]:
    first, *_ = [*example, None]
    for what, value, refused in damage_values(kind.of, example[first], f"{name}.{first}") if example else ():
        yield what, {**example, first: value}, refused
    yield f"a name in {name} is long", {**example, LONG: 1}, True


def _of_record(kind: schema.Record, example: dict, name: str) -> Iterator[tuple[str, Any, bool]]:
    yield f"{name} has an unknown field", {**example, "no_such_field": 1}, True
    for field, inner in kind.fields.items():
        if field not in example:
            continue
        rest = {key: value for key, value in example.items() if key != field}
        yield f"{name}.{field} is missing", rest, field not in kind.optional
        for what, value, refused in damage_values(inner, example[field], f"{name}.{field}"):
            yield what, {**example, field: value}, refused


def damage_files(example: Any, *, is_yaml: bool, seed: int = 7) -> Iterator[Damage]:
    """Yield files that are damaged as a whole, or in their bytes."""
    rng, text = random.Random(seed), json.dumps(example).encode()
    for part in range(12):
        yield Damage(f"cut off, {part}", text[: len(text) * part // 12], refused=not (is_yaml and part == 0))
    for number in range(20):
        yield Damage(f"random bytes, {number}", rng.randbytes(rng.randrange(1, 2000)))
    for number in range(15):
        changed = bytearray(text)
        changed[rng.randrange(len(text))] = rng.randrange(256)
        yield Damage(f"a byte is another, {number}", bytes(changed), refused=False)
    for field in example:
        twice = b"{" + json.dumps({field: example[field]})[1:-1].encode() + b", " + text[1:]
        yield Damage(f"{field} is there twice", twice)
    for opening in (b"[", b'{"a":', b'{"devices":[', b"- ", b"? "):
        yield Damage(f"{opening!r} for ever", opening * 30_000)
    yield Damage("a number without end", b'{"a": ' + b"9" * 100_000 + b"}")
    yield Damage("zeros", bytes(1000))
    yield Damage("one line, two documents", text + b"\n" + text)
    yield Damage("too large", b"[" + b" " * 2**26 + b"]")
    if not is_yaml:
        yield Damage("YAML", yaml.safe_dump(example).encode())
        return
    bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(12)
    )
    yield Damage("anchors that grow", bomb)
    for field in example:
        yield Damage(f"{field} is an alias of anchors that grow", bomb + f"{field}: *m\n".encode())
        yield Damage(f"{field} is an alias of itself", f"{field}: &x [*x]\n".encode())
        for tag in ("!!python/object/apply:os.getcwd []", "!!bool x", "!!timestamp x", "!!set {a}", "!!binary x"):
            yield Damage(f"{field} has a tag, {tag}", f"{field}: {tag}\n".encode())
        yield Damage(f"{field} is no date", f"{field}: 2001-99-99\n".encode())


def make_damages(kind: schema.Record, example: dict[str, Any], *, is_yaml: bool = False) -> list[Damage]:
    """All damages of a file that is right as the example has it."""
    found = []
    for what, value, refused in damage_values(kind, copy.deepcopy(example)):
        found.append(Damage(what, json.dumps(value).encode(), refused))
    return [*found, *damage_files(example, is_yaml=is_yaml)]
