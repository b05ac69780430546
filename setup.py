"""What pyproject.toml cannot say: a wheel carries the compiled parts; it is for one architecture and any Python."""

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "packaging/wheel"))
import compiled


class WithCompiledParts(build_py):
    def run(self) -> None:
        if self.editable_mode:  # then they are found in build/
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # else files deleted since would come along
        super().run()
        for name, file in compiled.parts().items():
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


setup(
    distclass=ForOneArchitecture,
    cmdclass={"build_py": WithCompiledParts, "bdist_wheel": ForAnyPython},
    options={"build": {"build_base": "build/python"}},
)
