"""What pyproject.toml cannot say of our wheels: they carry compiled parts, for one architecture and any Python."""

import shutil
from pathlib import Path
from typing import Any

import compiled
from setuptools import Distribution
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class WithCompiledParts(build_py):
    def run(self) -> None:
        if self.editable_mode:  # then they are found in build/
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # else files deleted since would come along
        super().run()
        for package in self.packages:
            if package not in compiled.PACKAGES:
                continue
            for name, file in compiled.parts(package).items():
                target = Path(self.build_lib, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
                target.chmod(compiled.mode(name))


class ForOneArchitecture(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class ForAnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def arguments(folder: str) -> dict[str, Any]:
    """For setuptools.setup(). folder: below build/, where setuptools lays the wheel's files together."""
    return {
        "distclass": ForOneArchitecture,
        "cmdclass": {"build_py": WithCompiledParts, "bdist_wheel": ForAnyPython},
        "options": {"build": {"build_base": str(compiled.ROOT / "build" / folder)}},
    }
