"""Containers by their engine's names, and by beginnings of ids."""

import json
import os
from pathlib import Path

import pytest

from oci_hook.core.grant import Grant, Identity, Share
from oci_hook.core.request import GpuRequest, Request
from oci_hook.errors import NoRoomError, Problem, SettingsError
from oci_hook.install import prefix
from oci_hook.ledger import admit, events
from oci_hook.oci import engine_name
from tests.cli.box import Install, this_process
from tests.cli.test_release import dead, held

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of others than root are not believed")
ID = "abcdef" + "0" * 58
REFUSED = "beef" * 16


@pytest.fixture
def web(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Grant:
    """The grant of docker's container `web`; docker also knows `big`, which does not run."""
    monkeypatch.setattr(engine_name, "DOCKER", str(tmp_path / "docker"))
    for id, name in ((ID, "web"), (REFUSED, "big")):
        file = tmp_path / "docker/containers" / id / "config.v2.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"ID": id, "Name": f"/{name}"}))
    install.grant("other", Share("GPU-1", 1024, slot=1))
    return install.grant(ID, Share("GPU-0", 4096, 30, slot=1))


def test_every_command_takes_the_name(install: Install, web: Grant) -> None:
    (shown,) = [c for c in install.data("ps")["containers"] if c["id"] == ID]
    assert shown["name"] == "web" and "web" in install.text("ps")
    assert install.text("set", "web", "--memory", "8Gi").startswith("container web (abcdef000000): memory 8Gi")
    assert install.text("freeze", "web") == "container web (abcdef000000) frozen\n"
    assert install.text("resume", "web") == "container web (abcdef000000) resumed\n"
    assert install.text("why", "web").startswith("web (abcdef000000) ")
    told = install.text("events", "-c", "web", "--json").splitlines()  # recorded without a name
    assert [json.loads(line)["name"] for line in told] == ["web"] * 3
    assert "no event is about other" in install.text("events", "-c", "other", status=1)
    assert "GH-407" in install.text("release", "web", status=1)
    assert install.data("release", "web", "--force") == {"released": [web.key]}
    assert "GH-410" in install.text("set", "web", "--memory", "8Gi", status=1)


def test_messages_have_the_name_first(install: Install, web: Grant, tmp_path: Path) -> None:
    """And no id that is cut without a sign of it."""
    title = "web (abcdef000000)"
    with pytest.raises(SettingsError, match=r"GH-504: 2 container\(s\) hold shares \(other, web \(abcdef000000\)\)"):
        prefix.refuse_while_held(str(install.state), force=False)
    assert f"container {title} is alive and holds grant " in install.text("release", "web", status=1)
    assert f"container {title} holds this grant and lives" in install.text("release", "--key", web.key, status=1)
    (tmp_path / "docker/containers/other").mkdir()
    (tmp_path / "docker/containers/other/config.v2.json").write_text(json.dumps({"ID": "other", "Name": "/web"}))
    assert f": {title}, web (other); name one by its id" in install.text("why", "web", status=1)


def test_a_title_is_one_line_whatever_it_says() -> None:
    assert events.title(Identity("/r", "i" * 100, "/b")) == "i" * 64 + "…"
    assert events.title(Identity("/r", "i", "/b", container="\x1b[31mred\n")) == "?[31mred? (i)"


def test_why_of_a_refused_one(install: Install, web: Grant) -> None:
    """Its event has the id alone."""
    events.refused(str(install.state), REFUSED, [Problem("GH-201", "no room")])
    assert "was refused" in install.text("why", "big")
    assert "GH-410" in install.text("why", "small", status=1)


def test_why_of_a_refused_one_that_its_engine_forgets_at_once(install: Install, web: Grant, tmp_path: Path) -> None:
    """As docker does with --rm, also where it had another container of this name before."""
    events.record(str(install.state), "ended", id="cafe" * 16, name="job")
    file = tmp_path / "docker/containers" / REFUSED / "config.v2.json"
    file.write_text(json.dumps({"ID": REFUSED, "Name": "/job"}))
    who = Identity("/run/runc", REFUSED, "/bundles/job")
    with pytest.raises(NoRoomError):
        admit.admit(Request((GpuRequest("0", ("mib", 24000), 0),)), who, this_process(), install.settings)
    file.unlink()
    assert "was refused at" in install.text("why", "job")
    assert install.text("events", "-c", "job").splitlines()[1].split()[2:4] == ["refused", "job"]


def test_why_of_one_whose_name_nobody_knew(install: Install, web: Grant) -> None:
    """As with `ctr run`: then a refusal that is newer than what is known of the name is pointed at."""
    events.record(str(install.state), "ended", id="cafe" * 16, name="job")
    assert "whose name" not in install.text("why", "job")
    events.refused(str(install.state), "d00d" * 16, [Problem("GH-201", "no room")])
    said = "a container whose name is not known was refused at "
    for text in (install.text("why", "job"), install.text("why", "task", status=1)):
        assert said in text and "(GH-201): `gpu-hook why d00dd00dd00d` says more" in text
    assert said not in install.text("why", "cafecafe") and said not in install.text("why", "d00dd00dd00d")
    events.refused(str(install.state), "f00d" * 16, [Problem("GH-201", "no room")], "ns/pod")
    assert said not in install.text("why", "job")


def test_who_is_to_be_waited_for(install: Install, web: Grant) -> None:
    install.grant("pod", Share("GPU-1", 22000, slot=2), who={"namespace": "ns", "pod": "shop", "container": "cart"})
    said = install.text("why", "-a", "gpu-hook.io/memory=23Gi")
    assert "wait until web ends" in said or "wait until shop/cart ends" in said, said
    assert ID[:12] not in said


def test_the_id_and_its_beginnings(install: Install, web: Grant) -> None:
    for size in (6, 12, 63, 64):
        assert "frozen" in install.text("freeze", ID[:size])
    for word in (ID + "0", "abcdex", "x" * 5000):
        assert "no living container goes by" in install.text("freeze", word, status=1)
    for size in range(1, 6):
        for command in (("freeze",), ("resume",), ("set", "--memory", "1Gi"), ("release",), ("why",)):
            said = install.text(*command, ID[:size], status=1)
            assert (
                said
                == f"GH-410: {ID[:size]} begins a container's id, but has fewer than six characters: give six or more, or a name\n"
            )


def test_a_short_id_of_its_own(install: Install, web: Grant) -> None:
    install.grant("ab", Share("GPU-1", 1024, slot=2))
    assert install.text("freeze", "ab") == "container ab frozen\n"


def test_two_of_one_name(install: Install, web: Grant, tmp_path: Path) -> None:
    """Two engines may have the same name: neither container is changed."""
    (tmp_path / "docker/containers/other").mkdir()
    (tmp_path / "docker/containers/other/config.v2.json").write_text(json.dumps({"ID": "other", "Name": "/web"}))
    assert "2 containers go by web (web/other, web/abcdef000000); name one by its id" in install.text(
        "freeze", "web", status=1
    )
    assert "2 living containers" in install.text("release", "--force", "web", status=1)


def test_the_name_of_one_that_begins_the_id_of_another(install: Install, web: Grant, tmp_path: Path) -> None:
    """No command guesses. A whole id always means its container."""
    named = "c0ffee" + "1" * 58
    file = tmp_path / "docker/containers" / named / "config.v2.json"
    file.parent.mkdir()
    grant = install.grant(named, Share("GPU-1", 1024, slot=2))
    for word in (ID[:6], ID[:12], ID):
        file.write_text(json.dumps({"ID": named, "Name": f"/{word}"}))
        before = install.ledger()
        for command in (("freeze",), ("resume",), ("set", "--memory", "2Gi"), ("release", "--force"), ("why",)):
            if word == ID:
                continue
            said = install.text(*command, word, status=1)
            assert said.startswith(("GH-410: 2 ", "GH-407: 2 ")), said
        assert install.ledger() == before
    assert install.data("freeze", ID)["id"] == ID and install.data("why", ID)["id"] == ID
    assert install.data("freeze", named)["id"] == named
    assert install.data("release", "--force", ID) == {"released": [web.key]}
    assert grant.key in held(install)


def test_the_name_of_an_exited_one_that_begins_the_id_of_a_living_one(
    install: Install, web: Grant, tmp_path: Path
) -> None:
    named = "c0ffee" + "1" * 58
    file = tmp_path / "docker/containers" / named / "config.v2.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"ID": named, "Name": f"/{ID[:12]}"}))
    dead(install, named)
    said = install.text("release", "--force", ID[:12], status=1)
    assert said.startswith("GH-407: 2 (living: 1) containers match"), said
    assert web.key in held(install)


def test_an_empty_name(install: Install, web: Grant) -> None:
    for command in (("freeze",), ("resume",), ("set", "--memory", "2Gi")):
        said = install.text(*command, "", status=1)
        assert said == "GH-410: no living container goes by an empty name; `gpu-hook ps` lists those with a share\n"


def test_those_that_do_not_live(install: Install, web: Grant, tmp_path: Path) -> None:
    """Refused, or ended: their events have the id alone, and the engine still knows the name. Two engines may know it."""
    second = "cafe" * 16
    file = tmp_path / "docker/containers" / second / "config.v2.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"ID": second, "Name": "/big"}))
    assert "no event is about big" in install.text("events", "-c", "big", status=1)
    events.refused(str(install.state), REFUSED, [Problem("GH-201", "no room")])
    events.record(str(install.state), "ended", id=second)
    events.record(str(install.state), "ended", id="other")
    shown = [json.loads(line) for line in install.text("events", "-c", "big", "--json").splitlines()]
    assert [(event["id"], event["name"]) for event in shown] == [(REFUSED, "big"), (second, "big")]
    said = "GH-410: 2 containers that do not run match big: big (beefbeefbeef), cafecafecafe; name one by its id\n"
    assert install.text("why", "big", status=1) == said
    assert "ended at" in install.text("why", second)
    assert "no event is about bi;" in install.text("events", "-c", "bi", status=1)


def test_what_core_says_of_an_id_is_said_of_the_name(install: Install) -> None:
    install.grant("e" * 64, Share("GPU-0", 24576, whole=True), who={"container": "trainer"})
    for words in (("set", "trainer", "--memory", "1Gi"), ("freeze", "trainer"), ("suspend", "trainer")):
        (line,) = install.text(*words, status=1).splitlines()
        assert line.startswith(f"GH-411: container trainer ({'e' * 12}) ") and "e" * 13 not in line, line
