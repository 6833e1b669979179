"""The blocks of docs/PYTHON.md, one after the other: what they print is what stands behind `#`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import shardfs

PAGE = Path(__file__).parents[2] / "docs" / "PYTHON.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([shardfs.find_program(), "create", "--sample", "sample.zarr"], check=True)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    names: dict[str, Any] = {}
    for block in blocks:
        if "import napari" in block and not importlib.util.find_spec("napari"):
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, PAGE, "exec"), names)
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert said.getvalue().splitlines() == expected, block
