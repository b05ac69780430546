"""Whole numbers in Kubernetes' spellings."""

import pytest

from oci_hook.kube.formats.quantity import plain, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            ("0", 0),
            ("7", 7),
            ("10k", 10_000),
            ("2k", 2000),
            ("4Ki", 4096),
            ("16Gi", 1 << 34),
            ("3e3", 3000),
            ("3E3", 3000),
        ),
        *(
            ("1500m", None),
            ("3000m", 3),
            ("1.5k", 1500),
            ("1.5", None),
            ("-2k", -2000),
            ("+5", 5),
            ("1E", 10**18),
            ("1e-1", None),
        ),
        *(
            ("10e-1", 1),
            ("1Ei", 1 << 60),
            ("1M", 10**6),
            ("5000000u", 5),
            ("1.50k", 1500),
            ("0.5Ki", 512),
            ("0.3Ki", None),
        ),
    ],
)
def test_whole(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError):
            whole(text)
        assert plain(text) == text
    else:
        assert (whole(text), plain(text)) == (value, str(value))


@pytest.mark.parametrize(
    "text", ["", "k", "1kk", "--1", "1 k", "0x10", "1e", "1e9999", "1" * 41, "٣", "1.2.3", "Ki", "1ki"]
)
def test_no_quantity(text: str) -> None:
    with pytest.raises(ValueError):
        whole(text)
