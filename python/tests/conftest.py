"""A volume for all tests of a run, in a run directory of its own; a directory of it for each test."""

import itertools
import os

import pytest

import azekura

numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def run_directory(tmp_path_factory):
    before = {name: os.environ.pop(name, None) for name in ("AZE_RUN_DIR", "AZE_VOLUME", "XDG_RUNTIME_DIR")}
    directory = tmp_path_factory.mktemp("run")
    directory.chmod(0o700)
    os.environ["AZE_RUN_DIR"] = str(directory)
    yield directory
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="session")
def volume(run_directory):
    with azekura.up(size="1G", servers=3, name="tests") as volume:
        yield volume


@pytest.fixture
def home(volume):
    """A new directory of the volume."""
    path = f"/t{next(numbers)}"
    volume.mkdir(path)
    return path
