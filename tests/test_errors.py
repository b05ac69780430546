import pytest

from oci_hook import errors


def test_one_printable_bounded_line() -> None:
    problem = errors.Problem("GH-101", "memory\n'\x1b[31m\0' " + "x" * 1000)
    assert str(problem).startswith("GH-101: memory?'?[31m?' xxx")
    assert len(str(problem)) == errors.MAX_LINE
    assert str(problem).isprintable()


@pytest.mark.parametrize("code", errors.CODES)
def test_refuse_gives_the_class_of_the_code(code: str) -> None:
    kinds = [
        *(errors.RequestError, errors.NoRoomError, errors.NodeError, errors.ApplyError),
        *(errors.SettingsError, errors.ClusterError),
    ]
    assert type(errors.refuse(code, "x")) is kinds[int(code[3]) - 1]


def test_an_unlisted_code_is_a_bug() -> None:
    with pytest.raises(KeyError):
        errors.refuse("GH-999", "x")


def test_all_problems_are_told() -> None:
    e = errors.RequestError(errors.Problem("GH-101", "a"), errors.Problem("GH-103", "b"))
    assert str(e) == "GH-101: a\nGH-103: b"
