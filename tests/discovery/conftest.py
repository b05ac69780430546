from pathlib import Path

import pytest

from testbed.sim.gpus import build_simulated


@pytest.fixture(scope="session")
def simulated() -> Path:
    """The build folder with the simulated driver: real ELF libraries, and an NVML that answers."""
    return build_simulated()
