"""`gpu-hook release`: shares of exited containers are released, those of living ones only by force."""

import subprocess

import pytest

from oci_hook.core.grant import Grant, Life, Share
from oci_hook.linux.proc import boot_id, process_life
from tests.cli.box import Install


def dead(install: Install, id: str) -> Grant:
    """A grant whose creator has died."""
    p = subprocess.Popen(["sleep", "60"])
    try:
        return install.grant(id, Share("GPU-0", 1024), life=Life(boot_id(), creator=process_life(p.pid)))
    finally:
        p.kill()
        p.wait()


def held(install: Install) -> list[str]:
    return sorted(path.stem for path in (install.state / "ledger").glob("*.json"))


def test_a_dead_containers_grant(install: Install) -> None:
    grant = dead(install, "gone")
    assert install.text("release", "gone") == f"released {grant.key}\n"
    assert held(install) == []
    nothing = install.text("release", "gone", status=1)
    assert nothing == "GH-410: container gone holds no share; `gpu-hook ps` lists those that do\n"


def test_json(install: Install) -> None:
    grant = dead(install, "gone")
    assert install.data("release", "gone") == {"released": [grant.key]}
    (error,) = install.data("release", "gone", status=1)["errors"]
    assert error["code"] == "GH-410" and "container gone holds no share" in error["message"]


def test_a_living_container_keeps_its_grant(install: Install) -> None:
    grant = install.grant("busy", Share("GPU-0", 1024))
    line = f"container busy is alive and holds grant {grant.key}; stop it, or use --force"
    assert install.text("release", "busy", status=1) == f"GH-407: {line}\n"
    assert install.data("release", "busy", status=1) == {"errors": [{"code": "GH-407", "message": line}]}
    assert install.data("release", "--key", grant.key, status=1)["errors"][0]["code"] == "GH-407"
    assert held(install) == [grant.key]


def test_force(install: Install) -> None:
    first, second = install.grant("one", Share("GPU-0", 1)), install.grant("two", Share("GPU-0", 1))
    assert install.data("release", "one", "--force") == {"released": [first.key]}
    assert install.data("release", "--key", second.key, "--force") == {"released": [second.key]}
    assert held(install) == [] and not list((install.state / "pages").iterdir())


def test_by_key(install: Install) -> None:
    grant = dead(install, "gone")
    assert install.text("release", "--key", grant.key) == f"released {grant.key}\n"
    assert f"grant {grant.key} holds no share" in install.text("release", "--key", grant.key, status=1)
    assert f"grant {'0' * 32} holds no share" in install.text("release", "--force", "--key", "0" * 32, status=1)
    assert install.text("release", "--key", "../../etc", status=1).startswith("GH-407: ../../etc is no grant's key")


def test_by_the_beginning_of_an_id(install: Install) -> None:
    grants = {id: install.grant(id, Share("GPU-0", 1)) for id in ("abcdef01", "abcdef02", "abcdef0")}
    assert install.data("release", "abcde", "--force", status=1)["errors"][0]["code"] == "GH-410"  # too short
    assert "choose one by --key" in install.text("release", "abcdef", "--force", status=1)
    assert install.data("release", "abcdef0", "--force") == {"released": [grants["abcdef0"].key]}  # an id as it is
    assert install.data("release", "abcdef02", "--force") == {"released": [grants["abcdef02"].key]}
    assert install.data("release", "abcdef", "--force") == {"released": [grants["abcdef01"].key]}


def test_a_damaged_file_goes_by_force(install: Install) -> None:
    grant = install.grant("c", Share("GPU-0", 1))
    (install.state / f"ledger/{grant.key}.json").write_text("{")
    assert install.data("release", "c", status=1)["errors"][0]["code"] == "GH-303"
    assert install.data("release", "--key", grant.key, "--force") == {"released": [grant.key]}
    assert install.data("ps") == {"containers": []}


@pytest.mark.parametrize("args", [(), ("c", "--key", "k")])
def test_one_of_both_must_be_named(install: Install, args: tuple[str, ...]) -> None:
    assert "name a CONTAINER or give --key" in install.text("release", *args, status=2)
