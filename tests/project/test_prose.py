"""Plain English: docstrings begin with verbs or nouns, functions are named by them, and sentences are short."""

import collections
import re

import pytest
import yaml
from documents import PAGES, ROOT, prose

CLAUSE = re.compile(r'^ *r?"""(?:As|How|If|Of|That|Those|These|W(?:hat|hen|here|hether|hich|ho\w*|hy))\b', re.MULTILINE)
MOST_CLAUSES = {}  # room -> docstrings that begin with a clause
UNCLEAR_NAME = re.compile(
    r"\bdef (\w+_of|_?(?:asked|chosen|counted|described|everyone|found|given|held|kept|known|live|made|measured|named"
    r"|needed|one|said|seen|sent|shown|taken|those|told|tried|whole|written))\("
)
MOST_UNCLEAR_NAMES = {  # room -> functions that still have such a name; these numbers may only fall
    "cli": 1,
    "cost": 2,
    "importer": 6,
    "layout": 2,
    "mesh": 1,
}
MOST_WORDS = 30
MOST_LONG_SENTENCES = 2  # of all pages; may only fall
LISTS = {"operations.md"}  # pages with long lists of names


def count_by_room(pattern):
    """Return {room: number of matches} in the library."""
    counts = collections.Counter()
    for top in ("mtf_hetero", "layouts", "models"):
        for path in (ROOT / top).rglob("*.py"):
            room = path.relative_to(ROOT / top).parts[0] if top == "mtf_hetero" else top
            counts[room] += len(pattern.findall(path.read_text(encoding="utf-8")))
    return {room: count for room, count in counts.items() if count}


@pytest.mark.parametrize(
    ("pattern", "most"), [(CLAUSE, MOST_CLAUSES), (UNCLEAR_NAME, MOST_UNCLEAR_NAMES)], ids=["docstrings", "names"]
)
def test_docstrings_and_names_are_verbs_and_nouns(pattern, most):
    counts = count_by_room(pattern)
    assert {room: count for room, count in counts.items() if count > most.get(room, 0)} == {}


def test_functions_of_tests_and_benchmarks_are_verbs_and_nouns():
    paths = [path for top in ("tests", "benchmarks", "examples") for path in (ROOT / top).rglob("*.py")]
    pattern = re.compile(r"\bdef ((?!test_)\w+_of)\(")
    assert [
        f"{path.name}: {name}" for path in paths for name in pattern.findall(path.read_text(encoding="utf-8"))
    ] == []


def sentences(page):
    """Yield the sentences of a page, with a word in place of code and links."""
    text = re.sub(r"<[^>]+>", "", prose(page))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"^ *(?:[-*+]|\d+\.|#+|>) +", "\n\n", text, flags=re.MULTILINE)  # each item is a paragraph
    for paragraph in re.split(r"\n\s*\n|\|", text):
        yield from re.split(r"(?<=[.!?:])[\"')*]*\s+(?=[A-Z\"'(*])", " ".join(paragraph.split()))


def test_sentences_of_the_pages_are_short():
    long = [
        f"{page.name}: {sentence}"
        for page in PAGES
        if page.name not in LISTS
        for sentence in sentences(page)
        if len(re.findall(r"[^\s]*\w[^\s]*", sentence)) > MOST_WORDS
    ]
    assert len(long) <= MOST_LONG_SENTENCES, "\n".join(long)


def test_a_commit_has_a_short_subject():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = (hook for hook in config["repos"][0]["hooks"] if hook["id"] == "commit-subject")
    subject = re.compile(hook["entry"])
    good = ["Refuse layout rules that match no dimension", "Merge branch 'main'", "A" + 71 * "b"]
    assert [text for text in good if not subject.search(f"{text}\n\nThe reason.\n")] == []
    assert subject.search("Refuse it\n# A comment of git\n")
    wrong = ["refuse it", "Refuse it.", "A" + 72 * "b", "Refuse it\nand more"]
    assert [text for text in wrong if subject.search(f"{text}\n\nThe reason.\n")] == []
    assert "--negate" in hook["args"] and hook["stages"] == ["commit-msg"]
