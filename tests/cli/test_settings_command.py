"""`gpu-hook settings check|compile`: the checks themselves are tested with node/settings_compile."""

from tests.cli.box import Install


def test_valid_and_in_use(install: Install) -> None:
    assert install.text("settings", "check") == "PREFIX/etc/settings.yaml is valid and in use\n"
    answer = install.data("settings", "check")
    assert answer["in_use"] is True
    assert answer["settings"]["runtime"] == "PREFIX/runc"
    assert answer["settings"]["rules"]["dialects"] == ["t9k", "gpu-manager", "hami", "nvidia-volumes"]


def test_valid_and_not_in_use(install: Install) -> None:
    yaml = (install.prefix / "etc/settings.yaml").read_text()
    install.say(yaml.replace("placement: by-class", "placement: spread"))
    result = install.run("settings", "check")
    assert result.exit_code == 0
    assert result.stdout == f"{install.prefix}/etc/settings.yaml is valid\n"
    assert result.stderr.startswith("warning: GH-502: ") and "gpu-hook settings compile --prefix" in result.stderr
    assert install.data("settings", "check")["in_use"] is False
    assert install.text("settings", "compile") == "PREFIX/etc/settings.yaml is valid and now in use\n"
    assert install.data("settings", "check")["in_use"] is True


def test_a_new_comment_changes_nothing_in_use(install: Install) -> None:
    install.say((install.prefix / "etc/settings.yaml").read_text() + "# a comment\n")
    assert install.data("settings", "check")["in_use"] is True


def test_never_compiled(install: Install) -> None:
    (install.prefix / "etc/settings.json").unlink()
    answer = install.data("settings", "check")
    assert answer["in_use"] is False and answer["warnings"][0]["code"] == "GH-501"


def test_wrong_settings_change_nothing(install: Install) -> None:
    before = (install.prefix / "etc/settings.json").read_bytes()
    install.say("mode: sideways\nruntime: /no/runc\n")
    for command in ("check", "compile"):
        assert install.text("settings", command, status=1) == (
            "GH-501: PREFIX/etc/settings.yaml:1: mode: 'sideways' is not one of standalone, on-top, below\n"
            "GH-503: PREFIX/etc/settings.yaml:2: runtime: /no/runc: No such file or directory;"
            " set it to the program's absolute path\n"
        )
        assert [e["code"] for e in install.data("settings", command, status=1)["errors"]] == ["GH-501", "GH-503"]
    assert (install.prefix / "etc/settings.json").read_bytes() == before
