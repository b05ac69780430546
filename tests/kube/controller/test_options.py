"""The controller's options and its settings file."""

from pathlib import Path

import pytest

from oci_hook.errors import ClusterError, SettingsError
from oci_hook.kube.controller import options
from oci_hook.kube.controller.controller import rules_of


@pytest.mark.parametrize("text", ["", "8443", ":8443", "h:", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ClusterError, match="GH-608"):
        options.address(text)


def test_addresses_and_names() -> None:
    assert options.address("[::1]:1") == ("::1", 1) and options.loopback("127.0.0.2:65535") == ("127.0.0.2", 65535)
    for text in ("0.0.0.0:1", "10.0.0.1:1", "localhost:1"):
        with pytest.raises(ClusterError, match="not a loopback"):
            options.loopback(text)
    assert options.server_names("ns", "https://10.9.9.9:1", "0.0.0.0")[-1] == "10.9.9.9"
    assert "gpu-hook-controller.ns.svc" in options.server_names("ns", "", "::")


def test_a_url_that_callers_cannot_use() -> None:
    for url in ("ftp://a:1", "a:1", "http://a:1"):
        with pytest.raises(ClusterError, match="GH-608: .* is not a URL"):
            options.server_names("ns", url, "127.0.0.1")


def test_a_wrong_line_is_named_with_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dialects: [qgpu]\n")
    with pytest.raises(SettingsError) as e:
        rules_of(str(tmp_path / "file"))
    assert str(e.value).startswith(f"GH-501: {tmp_path}/file:1: dialects: qgpu needs qgpu_memory_unit")
