import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midrun.fs.names import INDEX, LONGEST_NAME, escape, join, split, unescape

# Every code point, lone surrogates too; pieces that are names of files, or look like escapes, come often.
PIECES = ["", ".", "..", "/", "%", "%2F", "%2f", "%2E", "%~", "\0", "\n", "\x85", "\ud800", "é", "🙂", INDEX, ".json"]
CHARACTERS = st.characters(codec=None, exclude_categories=())
NAMES = st.one_of(
    st.text(CHARACTERS),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.text(CHARACTERS, min_size=50, max_size=300),
)
HOSTILE = ["", ".", "..", INDEX, "a/../b", "/", "//", "../../etc/passwd", "%", "%%", "%2F", "%~", "\0", "nul\0", "\r\n"]
HOSTILE += [
    "\ud800",
    "\udfff\ud800",
    "tab\t",
    "\x7f",
    "\x9b1m",
    "é" * 200,
    "x" * 256,
    "/" * 86,
    "\ud800" * 30,
    "." * 255,
]


@given(NAMES)
@example("")
@example("index.json")
@example("\ud800\udc00")
def test_every_name_has_a_file_name_that_linux_takes(name: str) -> None:
    for one_value in (False, True):
        file_name = escape(name, one_value=one_value)
        data = file_name.encode("utf-8")
        assert 0 < len(data) <= LONGEST_NAME
        assert file_name not in {".", "..", INDEX}
        assert "/" not in file_name
        assert not [c for c in file_name if unicodedata.category(c) in {"Cc", "Cs"}]


@given(NAMES)
def test_a_file_name_gives_its_name_back_unless_it_ends_in_a_hash(name: str) -> None:
    for one_value in (False, True):
        file_name = escape(name, one_value=one_value)
        if "%~" in file_name:
            assert unescape(file_name, one_value=one_value) is None
        else:
            assert unescape(file_name, one_value=one_value) == name


@given(NAMES, NAMES)
def test_two_names_have_two_file_names(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(NAMES)
def test_no_name_has_a_file_name_that_only_looks_like_one(file_name: str) -> None:
    name = unescape(file_name)
    assert name is None or escape(name) == file_name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_harmless_file(name: str) -> None:
    assert split(escape(name)) == [escape(name)]
    assert len({escape(other) for other in HOSTILE}) == len(HOSTILE)


@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        ("train/loss", "train%2Floss"),
        ("50%", "50%25"),
        ("train%2Floss", "train%252Floss"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        (".hidden", ".hidden"),
        ("", "%"),
        ("index.json", "index%2Ejson"),
        ("other.json", "other.json"),
        ("a b", "a b"),
        ("Größe 🙂", "Größe 🙂"),
        ("a\nb", "a%0Ab"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_a_file_name_keeps_what_a_file_name_can_hold(name: str, file_name: str) -> None:
    assert escape(name) == file_name
    assert unescape(file_name) == name


def test_a_plain_file_is_never_named_as_a_document() -> None:
    assert escape("loss.json", one_value=True) == "loss%2Ejson"
    assert unescape("loss%2Ejson", one_value=True) == "loss.json"
    assert unescape("loss.json", one_value=True) is None
    assert escape("loss.json.gz", one_value=True) == "loss.json.gz"


@pytest.mark.parametrize(
    "file_name", ["%2f", "%zz", "a%2", "%61", "%ED%A0", "%FF", "a/b", ".", "..", "\0", INDEX, "x" * 256]
)
def test_a_file_name_that_escape_never_makes_is_nobodys(file_name: str) -> None:
    assert unescape(file_name) is None


def test_a_name_too_long_for_a_file_is_cut_and_told_apart_by_a_hash() -> None:
    longest, longer = "x" * 255, "x" * 256
    assert escape(longest) == longest
    assert escape(longer).startswith("x" * 200)
    assert escape(longer) != escape(longer + "x")
    assert len({escape("é" * 120 + "/" * count) for count in range(60)}) == 60


def test_a_path_is_split_into_file_names() -> None:
    assert split("") == []
    assert split("state") == ["state"]
    assert split("state/metrics/train%2Floss") == ["state", "metrics", "train%2Floss"]


def test_a_path_is_joined_of_file_names() -> None:
    assert join("", "state") == "state"
    assert join(join("state", "metrics"), "train%2Floss") == "state/metrics/train%2Floss"


@pytest.mark.parametrize("path", ["/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/./b", "a\0", "\0/b"])
def test_a_path_that_no_node_can_have_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        split(path)
