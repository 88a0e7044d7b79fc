"""The conformance program finds the same through each door as in tmpfs, and docs/semantics.md says so."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import azekura
import conformance

ROOT = Path(__file__).parent.parent.parent
PROGRAM = [sys.executable, conformance.__file__]
# Where scripts/test-python has linked the library for C.
LIBRARY = os.environ.get("AZE_TEST_LIBRARY")


@pytest.fixture(scope="module")
def expected():
    """What a directory in memory gives."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        return through([*PROGRAM, directory])


def through(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compare(door, found, expected):
    assert len(expected) == len(conformance.STEPS) >= 48 and list(found) == list(expected)
    assert {step: what for step, what in found.items() if what != expected[step]} == {}
    page = (ROOT / "docs/semantics.md").read_text()
    (row,) = re.findall(rf"^\| {door} \| .* \| (\d+) \| (\d+) \|$", page, re.M)
    assert row == (str(len(found)), str(len(found))), row


def test_the_package_for_python(volume, home, expected):
    compare("Python", conformance.outcomes(conformance.Package(volume, home)), expected)


def test_the_library_for_c(volume, home, expected):
    if LIBRARY is None:
        pytest.skip("AZE_TEST_LIBRARY does not name libazekura.so")
    door = conformance.LibraryC(LIBRARY, volume.name, home)
    compare("C", conformance.outcomes(door), expected)
    door.close()


def test_a_program_without_a_mount(volume, home, expected):
    command = [azekura.program(), "run", "--name", volume.name, "--door", "intercept", "--", *PROGRAM, f"/aze{home}"]
    compare("without a mount", through(command), expected)


def test_a_mount(volume, home, expected, tmp_path):
    if not os.access("/dev/fuse", os.W_OK) or (os.geteuid() != 0 and shutil.which("fusermount3") is None):
        pytest.skip("nothing can be mounted here")
    subprocess.run([azekura.program(), "mount", "--name", volume.name, tmp_path], check=True, capture_output=True)
    try:
        compare("mount", through([*PROGRAM, f"{tmp_path}{home}"]), expected)
    finally:
        subprocess.run([azekura.program(), "umount", tmp_path], check=True, capture_output=True)
