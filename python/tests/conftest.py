"""What several tests begin with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The array of `shardfs create --sample`."""
    path = tmp_path / "sample.zarr"
    subprocess.run([os.environ["SHARDFS"], "create", "--sample", path], check=True)
    return path
