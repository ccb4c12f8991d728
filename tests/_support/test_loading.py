"""JSON and YAML of anyone's, and what a message shows of a value."""

import time

import pytest

from mtf_hetero._support import loading
from mtf_hetero._support.schema import Many, Number, Record, Table, Text, shorten

DEEP = [1]
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x", "anchors and aliases are not supported"),
        ("a: &x [*x]", "anchors and aliases are not supported"),
        ("a: {<<: {b: 1}}", "the tag 'tag:yaml.org,2002:merge' is not supported"),
        ("!!python/object:os.system {}", "the tag 'tag:yaml.org,2002:python/object:os.system' is not supported"),
        ("a: !!set {b}", "is not supported; remove it"),
        ("!!bool x", "it cannot be read: KeyError"),
        ("!!timestamp 3", "it cannot be read: AttributeError"),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("[" * 100_000, "it is nested more than 20 deep"),
        ("- " * 100_000, "it is nested more than 20 deep"),
        ("a: 1\nb: 2\na: 3", "'a' appears twice; keep one of the two lines"),
        ("1" * 5000, "Exceeds the limit"),
        ("a: b: c", "mapping values are not allowed here"),
        ("--- a\n--- b", "expected a single document"),
        ("x: y\n" * 100_000, "it has more than 262,144 characters of YAML; write JSON"),
    ],
)
def test_yaml_that_is_refused(text, message):
    begin = time.process_time()
    with pytest.raises(ValueError, match=f"^{message}" if message.startswith("it") else message) as raised:
        loading.parse_yaml(text, extra="plan")
    assert "\n" not in str(raised.value) and time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": NaN}', "it has NaN; give a finite number"),
        ("[-Infinity]", "it has -Infinity; give a finite number"),
        ("[" * 200_000, "it is nested more than 20 deep"),
        ("[" * 500 + "]" * 500, "it is nested more than 20 deep"),
        ('{"a": 1, "b": 2, "a": 1}', "'a' appears twice; keep one of them"),
        ("1" * 5000, "Exceeds the limit"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        loading.parse_json(text)


def test_a_file_of_either_kind(tmp_path):
    path, value = tmp_path / "file", {"a": [1, 2.5, None, True, "text"], "b": {"c": {}}}
    path.write_text('{"a": [1, 2.5, null, true, "text"], "b": {"c": {}}}')
    assert loading.load(path) == loading.load(path, yaml_for="plan") == value
    path.write_text("{a: [1, 2.5, null, true, text], b: {c: {}}}")
    assert loading.load(path, yaml_for="plan") == value
    path.write_text("a:\n- 1\n- 2.5\n- null\n- true\n- text\nb:\n  c: {}\n")
    assert loading.load(path, yaml_for="plan") == value
    path.write_text("")
    assert loading.load(path, yaml_for="plan") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("abc", "'abc'"),
        (10**30, "1" + "0" * 30),
        (10**1000, "a number of 3322 bits"),
        ([0] * 9, "[0, 0, 0, 0, 0, 0, ...]"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_what_is_shown(value, text):
    assert shorten(value) == text


@pytest.mark.parametrize(
    "value", ["x" * 10**7, DEEP, [["x" * 10**6] * 1000] * 1000, {str(n): DEEP for n in range(1000)}]
)
def test_what_is_shown_is_short(value):
    assert len(shorten(value)) < 5000


SCHEMA = Record(
    {
        "size": Number(integer=True, least=1, most=10),
        "names": Many(Text(least=1), least=1),
        "rates": Table(Number(above=0)),
    },
    optional=["rates"],
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "the file is 3; it must be an object with the fields size, names, rates"),
        ({"names": ["a"]}, "'size' is missing; it must be a whole number, 1 or more and at most 10"),
        ({"size": 1.5, "names": ["a"]}, "size is 1.5; it must be a whole number, 1 or more and at most 10"),
        ({"size": True, "names": ["a"]}, "size is True; it must be a whole number, 1 or more and at most 10"),
        ({"size": 11, "names": ["a"]}, "size is 11; it must be a whole number, 1 or more and at most 10"),
        ({"size": 1, "names": []}, r"names is \[\]; it must be a list of 1 or more"),
        ({"size": 1, "names": ["a", ""]}, r"names\[1\] is ''; it must be text that is not empty"),
        ({"size": 1, "names": ["a"], "rates": {"b": 0}}, "rates 'b' is 0; it must be a number, greater than zero"),
        ({"size": 1, "names": ["a"], "rates": {3: 1}}, "a name in rates is 3; it must be text"),
        ({"size": 1, "names": ["a"], "other": 1}, "'other' is not a field; the fields are size, names, rates"),
    ],
)
def test_what_a_schema_refuses(value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        SCHEMA.read(value)


def test_what_a_schema_takes():
    assert SCHEMA.read({"size": 2.0, "names": ["a", "b"]}) == {"size": 2, "names": ("a", "b")}
    assert SCHEMA.read({"size": 3, "names": ["a"], "rates": {"b": 1}}) == {
        "size": 3,
        "names": ("a",),
        "rates": {"b": 1.0},
    }
