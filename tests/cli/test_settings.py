"""`gpu-hook settings check|show|set`: the checks themselves are tested in tests/install/test_settings_check.py."""

from oci_hook.config import settings
from oci_hook.install import settings_edit
from tests.cli.box import Install


def test_valid(install: Install) -> None:
    assert install.text("settings", "check") == "PREFIX/etc/settings.yaml is valid\n"
    answer = install.data("settings", "check")
    assert answer["settings"]["runtime"] == "PREFIX/runc"
    assert answer["settings"]["rules"]["dialects"] == ["t9k", "gpu-manager", "hami", "kai", "nvidia-volumes", "nvidia"]


def test_an_edit_is_in_effect_at_once(install: Install) -> None:
    yaml = (install.prefix / "etc/settings.yaml").read_text()
    install.say(yaml.replace("placement: by-class", "placement: spread"))
    assert install.data("settings", "check")["settings"]["rules"]["placement"] == "spread"
    assert settings.load(str(install.prefix)).rules.placement == "spread"


def test_wrong_settings_are_all_named(install: Install) -> None:
    install.say(f"mode: sideways\nruntime: /no/runc\nagent.interval: 0\nstate_dir: {install.state}\n")
    assert install.text("settings", "check", status=1) == (
        "GH-501: PREFIX/etc/settings.yaml:1: mode: 'sideways' is not one of standalone, on-top, below\n"
        "GH-501: PREFIX/etc/settings.yaml:3: agent.interval: '0' is not a whole number from 1 to 60\n"
        "GH-503: PREFIX/etc/settings.yaml:2: runtime: /no/runc: No such file or directory;"
        " set it to the program's absolute path\n"
    )
    codes = [e["code"] for e in install.data("settings", "check", status=1)["errors"]]
    assert codes == ["GH-501", "GH-501", "GH-503"]


def test_another_state_directory_is_not_valid_until_the_install_has_moved(install: Install) -> None:
    yaml = (install.prefix / "etc/settings.yaml").read_text()
    other = install.prefix / "other"
    install.say(yaml.replace(f"state_dir: {install.state}", f"state_dir: {other}"))
    refused = install.text("settings", "check", status=1)
    assert refused == (
        "GH-504: state_dir in settings.yaml has changed, and this install still uses PREFIX/state;"
        " move it with `gpu-hook settings set state_dir=PREFIX/other`\n"
    )
    install.text("settings", "set", f"state_dir={other}")
    assert install.text("settings", "check") == "PREFIX/etc/settings.yaml is valid\n"
    assert settings.load(str(install.prefix)).state_dir == str(other)


def test_show_prints_every_setting_as_a_line_of_the_file(install: Install) -> None:
    install.say(f"runtime: {install.prefix}/runc\nstate_dir: {install.state}\ndialects: [t9k]\n")
    shown = install.text("settings", "show").replace("PREFIX", str(install.prefix))
    assert "dialects: [t9k]\n" in shown and "agent.address: 127.0.0.1:9409  # the default\n" in shown
    before = settings.load(str(install.prefix))
    install.say(shown)
    assert settings.load(str(install.prefix)) == before
    assert install.text("settings", "show").replace("  # the default", "") == install.text("settings", "show")


def test_show_prints_what_a_profile_says(install: Install) -> None:
    install.say(f"runtime: {install.prefix}/runc\nstate_dir: {install.state}\nprofile: qgpu\n")
    before = settings.load(str(install.prefix))
    shown = install.text("settings", "show").replace("PREFIX", str(install.prefix))
    for line in ("memory_step: 1024", "memory_min: 1024", "compute_step: 5", "memory_per_share: 4096"):
        assert f"{line}  # of the profile qgpu\n" in shown
    assert "default_policy: best-effort  # the default\n" in shown
    install.say(shown)
    assert settings.load(str(install.prefix)) == before


def test_set_changes_one_line(install: Install) -> None:
    before = (install.prefix / "etc/settings.yaml").read_text()
    assert install.text("settings", "set", "compute_step=5", "linger=2ms").splitlines()[1].endswith("says linger: 2ms")
    install.text("settings", "set", "linger=adaptive")
    assert install.text("settings", "set", "compute_step=5") == "PREFIX/etc/settings.yaml says compute_step: 5\n"
    after = before.replace("compute_step: 1\n", "compute_step: 5\n")
    assert (install.prefix / "etc/settings.yaml").read_text() == after != before
    install.text("settings", "set", "agent.address=[::1]:9409")
    install.text("settings", "set", "dialects=[t9k, hami]")
    text = (install.prefix / "etc/settings.yaml").read_text()
    assert 'agent.address: "[::1]:9409"   # web page' in text and "\ndialects: [t9k, hami]\n" in text


def test_set_writes_nothing_that_is_wrong(install: Install) -> None:
    before = (install.prefix / "etc/settings.yaml").read_text()
    for key, value, why in (
        ("compute_step", "0", "compute_step: '0' is not a whole number from 1 to 100"),
        ("agent.policy", "maim", "'maim' is not one of protect, report, freeze, kill"),
        ("compute_stp", "5", "GH-501: 'compute_stp' is not a setting; did you mean compute_step?"),
        ("rules.linger", "1ms", "'rules.linger' is not a setting; write linger"),
        ("runtime", "/no/runc", "GH-503: "),
        ("dialects", "[t9k, ", "dialects: "),
        ("driver_root", "/a\nmode: below", "GH-501: driver_root: "),
    ):
        assert why in install.text("settings", "set", f"{key}={value}", status=1)
        assert (install.prefix / "etc/settings.yaml").read_text() == before
    for port in ("8_0", "+80", "\u0668\u0660", " 80", "-0", "080", "65536", ""):
        assert "agent.address" in install.text("settings", "set", f"agent.address=127.0.0.1:{port}", status=1), port
    assert "linger: 2ms" in install.text("settings", "set", "linger=1ms", "linger=2ms")
    install.say(before)
    assert (install.prefix / "etc/settings.yaml").read_text() == before
    assert "write KEY=VALUE" in install.text("settings", "set", "compute_step", status=2)


def test_show_marks_what_the_cluster_says(install: Install) -> None:
    (install.prefix / "etc/cluster.yaml").write_text("memory_step: 256\n")
    assert "memory_step: 1\n" in install.text("settings", "show")  # not in a cluster
    settings_edit.change(str(install.prefix), cluster="local")
    assert "memory_step: 256  # of the cluster\n" in install.text("settings", "show")
