"""A private install, with a runc of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from testbed import BUILD, REPO, demo_folder, tiny_image


class Stage:
    """A private install, state directory and runc root below one temporary directory; `close` removes all of it."""

    def __init__(self, simulated: bool) -> None:
        self.dir, self.keep = demo_folder.make()
        self.prefix = self.dir / demo_folder.PREFIX
        self.state = demo_folder.run_of(self.dir)
        self.state.mkdir(0o700)
        self.root = self.dir / demo_folder.RUNC
        self.ids: list[str] = []
        self.simulated = simulated

    def cli(self, *args: str, check: bool = True) -> str:
        r = subprocess.run(
            [sys.executable, "-m", "oci_hook", *args, "--prefix", str(self.prefix)],
            capture_output=True,
            text=True,
            cwd=REPO,
        )
        if check and r.returncode != 0:
            raise SystemExit(f"gpu-hook {' '.join(args)} failed:\n{r.stdout}{r.stderr}")
        return r.stdout + r.stderr

    def runtime(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.prefix / "bin/gpu-hook-runtime"), "--root", str(self.root), *args]
        # A file, not a pipe: a detached container keeps its standard output open.
        with tempfile.TemporaryFile("w+") as out:
            r = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            out.seek(0)
            return subprocess.CompletedProcess(command, r.returncode, out.read(), "")

    def container(self, name: str, annotations: dict[str, str], script: str, detach: bool = False) -> tuple[int, str]:
        """Start one; foreground: (exit status, output). Detached: its output goes to `log(name)`."""
        bundle = self.dir / name
        bundle.mkdir()
        rootfs = tiny_image.with_c_library(bundle / "rootfs")
        shutil.copy(BUILD / "sim/gpu-probe", rootfs / "bin")
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        config = json.loads((bundle / "config.json").read_text())
        if detach:
            script = f"exec >/log 2>&1; {script}"
        config["process"].update(terminal=False, args=["/bin/sh", "-c", script])
        config["root"]["readonly"] = False
        config["annotations"] = annotations
        config["linux"]["cgroupsPath"] = f"/{self.dir.name}/{name}"  # two demos at once must not meet
        for kind in ("bounding", "effective", "permitted"):  # mknod as docker allows it
            config["process"]["capabilities"][kind].append("CAP_MKNOD")
        (bundle / "config.json").write_text(json.dumps(config))
        self.ids.append(name)
        r = self.runtime("run", *(["--detach"] if detach else []), "--bundle", str(bundle), name)
        return r.returncode, r.stdout

    def log(self, name: str) -> str:
        return (self.dir / name / "rootfs/log").read_text(errors="replace")

    def close(self) -> None:
        demo_folder.clear(self.dir)
        os.close(self.keep)
