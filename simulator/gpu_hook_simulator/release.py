"""Releases of the driver: their versions, and what a release can do that the ones before cannot."""

import re

from oci_hook.core.value import Value

# CUDA version of each driver branch, by the tables of the CUDA Toolkit's release notes
CUDA = {
    470: 11040,
    510: 11060,
    515: 11070,
    520: 11080,
    525: 12000,
    530: 12010,
    535: 12020,
    545: 12030,
    550: 12040,
    555: 12050,
    560: 12060,
    565: 12070,
    570: 12080,
    575: 12090,
    580: 13000,
    590: 13010,
    595: 13020,
    615: 13040,
}
LIMITS = {"dmem": 1, "misc": 2, "dmem-keeps": 3}  # gpu.h enum gpu_limits
FIRST_WITH_LIMITS = 615
WRITTEN = re.compile(r"([0-9]{3})(\.[0-9]{1,3}){0,2}")


class Release(Value):
    """version: three numbers, as NVML says it. cuda_version: 12040 is 12.4. limits: of LIMITS; 0: it has none.

    exact: it has the functions of that release; else those of every release.
    """

    version: str
    cuda_version: int
    limits: int
    exact: bool = True


def release(version: str, limits: str = "dmem") -> Release:
    """Parse --driver: 615 is 615.0.0, which no real release is called. Raises ValueError."""
    written = WRITTEN.fullmatch(version)
    branch = int(written[1]) if written else 0
    if branch not in CUDA:
        raise ValueError(f"known drivers are {', '.join(map(str, CUDA))}, written as 615, 615.71 or 615.71.05")
    whole = version + ".0" * (2 - version.count("."))
    return Release(whole, CUDA[branch], LIMITS[limits] if branch >= FIRST_WITH_LIMITS else 0)


DEFAULT = Release("550.0.0", CUDA[550], 0, exact=False)  # for tests of functions that are newer than its version
