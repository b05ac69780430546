"""Text to numbers: one spelling per number, bounds, and no other exception than ValueError."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core import units


@pytest.mark.parametrize(
    ("text", "mib"),
    [("4Gi", 4096), ("512Mi", 512), ("2048", 2048), ("1Ti", 1 << 20), ("16Ti", 1 << 24), ("1", 1)],
)
def test_sizes_are_mib(text: str, mib: int) -> None:
    assert units.size(text) == mib
    assert units.memory(text) == ("mib", mib)


@pytest.mark.parametrize("text", ["30", "30%", "1", "100", "100%"])
def test_percent(text: str) -> None:
    assert units.percent(text) == int(text.rstrip("%"))


def test_memory_with_a_percent_sign_is_a_part_of_the_gpu() -> None:
    assert units.memory("30%") == ("percent", 30)


BAD = [
    *(
        "",
        " ",
        "-1",
        "+1",
        "1e3",
        "1_000",
        "0x10",
        "007",
        "1.5",
        " 1",
        "1 ",
        "1\n",
        "1\0",
        "\u0663",
        "\uff11",
        "\u00b2",
    ),
    *("NaN", "inf", "one", "9" * 400, "1" + "0" * 5000),
]


@pytest.mark.parametrize("text", [*BAD, "0", "101", "%", "30%%", "%30", "30 %"])
def test_not_a_percentage(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is not "):
        units.percent(text)


@pytest.mark.parametrize(
    "text", [*BAD, "0", "0Gi", "4G", "4GB", "4GiB", "4gi", "4 Gi", "Gi", "17Ti", "16385Gi", "16777217", "1.5Gi", "-4Gi"]
)
def test_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is not "):
        units.size(text)


@pytest.mark.parametrize("text", BAD)
def test_not_a_natural_number(text: str) -> None:
    assert units.natural(text) == (7 if text == "007" else 0)


def test_a_natural_number() -> None:
    assert [units.natural(text) for text in ("0", "570", "9" * 9, "1" + "0" * 9)] == [0, 570, 999_999_999, 0]


@given(st.text(max_size=20))
def test_only_value_errors_and_only_bounded_numbers(text: str) -> None:
    for read, most in ((units.percent, 100), (units.size, units.MAX_MEMORY_MIB)):
        try:
            assert 1 <= read(text) <= most
        except ValueError as e:
            assert str(e).startswith("is not ")


def test_out_of_bounds_says_the_bounds() -> None:
    with pytest.raises(units.OutOfBounds, match="1 to 100"):
        units.percent("1000")
    with pytest.raises(units.OutOfBounds, match="1Mi to 16Ti"):
        units.size("17Ti")


def test_lists_are_trimmed_and_have_no_repeats() -> None:
    assert units.names("b, a,b") == ("b", "a")
    for text in ("", ",", "a,", "a,,b", " "):
        with pytest.raises(ValueError, match="empty item"):
            units.names(text)


@given(st.text())
def test_a_shown_value_is_short_plain_text(text: str) -> None:
    shown = units.show(text)
    assert shown.isascii() and shown.isprintable()
    assert len(shown) <= 47


def test_a_shown_value_is_cut() -> None:
    assert units.show("x" * 45) == "'" + "x" * 45 + "'"
    assert units.show("x" * 46) == "'" + "x" * 42 + "..."
    assert units.show(None) == "of type NoneType"


@pytest.mark.parametrize(
    ("reader", "text", "meant"),
    [
        *((units.memory, text, "4Gi") for text in ("4gi", "4GiB", "4 Gi", "4G", "4gb", "4.0Gi", "4096M", "4Gi ")),
        (units.memory, "1.5Gi", "1536Mi"),
        (units.memory, "0.5Gi", "512Mi"),
        (units.memory, "0.5", "512Mi or 50%"),
        (units.memory, "0.3", "30%"),
        (units.memory, "1.5", "1536Mi"),
        *((units.percent, text, "30") for text in ("0.3", "30 %", "30.0", "0.30")),
    ],
)
def test_what_was_probably_meant(reader: Callable[[str], object], text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"did you mean {meant}\?$"):
        reader(text)


@pytest.mark.parametrize("text", ["", "x", "GB", ".5Gi", "-4Gi", "1e3Gi", "\u0663Gi", "1.0001Gi", "0.0001M", "9" * 80])
def test_nothing_is_guessed(text: str) -> None:
    with pytest.raises(ValueError) as e:
        units.memory(text)
    assert "did you mean" not in str(e.value)
