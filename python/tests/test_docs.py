"""What the documentation shows is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [(ROOT / page).read_text() for page in ("README.md", "docs/python.md")]
BLOCKS = [block for page in PAGES for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)]


def test_there_are_examples():
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_run(block, tmp_path):
    # No other volume is there, so that examples may leave the name out.
    run = tmp_path / "run"
    run.mkdir(0o700)
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], env={"AZE_RUN_DIR": str(run)}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
