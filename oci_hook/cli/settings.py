"""`gpu-hook settings check|compile`: the settings people write, and what the runtime reads of them."""

import os

import click

from oci_hook.cli import output
from oci_hook.config import settings as compiled
from oci_hook.config import settings_compile
from oci_hook.core.layout import SETTINGS_YAML
from oci_hook.errors import Problem, SettingsError


@click.group()
def settings() -> None:
    """Check or compile the settings of an install."""


@settings.command()
@output.answers
def check(prefix: str) -> output.Report:
    """Say whether settings.yaml is valid and in use; write nothing."""
    said = settings_compile.check(prefix)
    used, why = in_use(prefix)
    if used is not None and used.fields() != said.fields():
        why = Problem("GH-502", f"{file(prefix)} differs from what is in use; run {compile_command(prefix)}")
    return output.Report(
        {"settings": as_data(said), "in_use": why is None},
        [f"{file(prefix)} is valid" + ("" if why else " and in use")],
        warnings=[why] if why else [],
    )


@settings.command(name="compile")
@output.answers
def compile_(prefix: str) -> output.Report:
    """Check settings.yaml and write what the runtime reads; containers made from now on obey it."""
    said = settings_compile.compile(prefix)
    return output.Report({"settings": as_data(said)}, [f"{file(prefix)} is valid and now in use"])


def in_use(prefix: str) -> tuple[compiled.Settings | None, Problem | None]:
    try:
        used = compiled.load(prefix)
    except SettingsError as e:
        return None, e.problems[0]
    return used.replace(stale=False), None  # the values are compared, not the time of the file


def as_data(said: compiled.Settings) -> dict[str, object]:
    data = {**said.fields(), "rules": said.rules.fields()}
    del data["stale"]
    return data


def file(prefix: str) -> str:
    return os.path.join(prefix, SETTINGS_YAML)


def compile_command(prefix: str) -> str:
    return f"`gpu-hook settings compile --prefix {prefix}`"
