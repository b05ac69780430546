"""`gpu-hook bundle`: hooks in a config.json and out of it. (With runc: tests/test_bundle_hooks.py.)"""

import json
from pathlib import Path
from typing import Any

import pytest

from oci_hook.engines import hooked_bundle
from oci_hook.errors import GhError
from tests.cli.box import Install

OTHER = {"path": "/usr/bin/other", "args": ["other"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    return tmp_path / "b"


def written(folder: Path, doc: Any, indent: int | str | None = "\t") -> str:
    text = json.dumps(doc, indent=indent)
    (folder / "config.json").write_text(text)
    return text


def hooks(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text()).get("hooks")


@pytest.mark.parametrize("indent", ("\t", 2, None))
@pytest.mark.parametrize(
    "there",
    [
        {},
        {"hooks": {}},
        {"hooks": None},
        {"hooks": {"prestart": [], "poststop": []}},
        {"hooks": {"poststop": [OTHER], "createRuntime": [OTHER]}},
        {"hooks": {"startContainer": [OTHER]}},
    ],
)
def test_in_and_out(install: Install, folder: Path, there: dict[str, Any], indent: int | str | None) -> None:
    before = written(folder, {"ociVersion": "1.0.2", **there, "annotations": {"gpu-hook.io/memory": "1Gi"}}, indent)
    said = install.text("bundle", str(folder))
    assert said.startswith("changed ") and "no environment variables" in said and "asks for no share" not in said
    found = hooks(folder)
    program = f"{install.prefix}/bin/oci-gpu-hook"
    for stage in ("createRuntime", "poststop"):
        former = (there.get("hooks") or {}).get(stage, [])
        assert found[stage][:-1] == former
        assert found[stage][-1]["path"] == program and found[stage][-1]["args"] == ["oci-gpu-hook", stage]
    after = (folder / "config.json").read_bytes()
    assert install.data("bundle", str(folder))["changed"] is False
    assert (folder / "config.json").read_bytes() == after
    assert install.data("bundle", "--remove", str(folder))["changed"] is True
    text = (folder / "config.json").read_text()
    assert json.loads(text) == json.loads(before)
    if indent is not None:
        assert text == before


def test_null_is_an_empty_object(install: Install, folder: Path) -> None:
    written(folder, {"hooks": None})
    install.text("bundle", str(folder))
    assert set(hooks(folder)) == {"prestart", "createRuntime", "poststop"}
    written(folder, {"hooks": {"poststop": None}})
    install.text("bundle", str(folder))
    assert len(hooks(folder)["poststop"]) == 1


def test_a_dry_run_and_a_bundle_that_asks_for_nothing(install: Install, folder: Path) -> None:
    before = written(folder, {"ociVersion": "1.0.2"})
    said = install.text("bundle", "--dry-run", str(folder))
    assert said.startswith("would change ") and "it asks for no share yet" in said and "createRuntime" in said
    assert (folder / "config.json").read_text() == before
    assert install.text("bundle", "--remove", str(folder)) == "unchanged PREFIX/b/config.json\n"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"hooks": []}', '{"hooks": {"poststop": {}}}', '{"a": 1, "a": 2}'])
def test_what_is_no_config(install: Install, folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    said = install.text("bundle", str(folder), status=1)
    assert said.startswith(("GH-401: ", "GH-506: ")) and said.count("\n") == 1
    assert (folder / "config.json").read_text() == text


def test_a_bundle_that_is_none(install: Install, folder: Path) -> None:
    assert "GH-401" in install.text("bundle", str(folder), status=1)
    (folder / "elsewhere").write_text("{}")
    (folder / "config.json").symlink_to(folder / "elsewhere")
    assert "a symbolic link" in install.text("bundle", str(folder), status=1)


def test_another_install_is_another_program() -> None:
    text = hooked_bundle.with_hooks("{}", Path("c"), "/a/bin/oci-gpu-hook")
    both = hooked_bundle.with_hooks(text, Path("c"), "/b/bin/oci-gpu-hook")
    assert [e["path"] for e in json.loads(both)["hooks"]["poststop"]] == ["/a/bin/oci-gpu-hook", "/b/bin/oci-gpu-hook"]
    assert json.loads(hooked_bundle.without_hooks(both, Path("c"), "/b/bin/oci-gpu-hook")) == json.loads(text)
    with pytest.raises(GhError):
        hooked_bundle.with_hooks('{"hooks": 3}', Path("c"), "/a")
