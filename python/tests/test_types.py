"""Type hints: the package agrees with its own, the compiled part with its stub, and what the documentation shows with both."""

import subprocess
import sys
from pathlib import Path

from test_docs import BLOCKS

CONFIG = Path(__file__).parent / "mypy.ini"


def checked(*words, cwd):
    return subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True)


def test_package_and_examples_agree_with_the_hints(tmp_path):
    examples = [tmp_path / f"example{number}.py" for number in range(len(BLOCKS))]
    for path, block in zip(examples, BLOCKS):
        # Functions of the examples are without hints, as most programs' are.
        path.write_text(f"# mypy: allow-untyped-defs, allow-untyped-calls\n{block}")
    (tmp_path / "wrong.py").write_text("import azekura\nazekura.Volume(3).stat()\n")
    mypy = ["mypy", "--config-file", str(CONFIG), "--cache-dir", str(tmp_path / "cache")]
    for words, files in [(["-p", "azekura"], 8), (list(map(str, examples)), len(BLOCKS))]:
        done = checked(*mypy, *words, cwd=tmp_path)
        assert done.returncode == 0 and f"in {files} source files" in done.stdout, done.stdout + done.stderr
    done = checked(*mypy, "wrong.py", cwd=tmp_path)
    assert done.returncode == 1 and "[arg-type]" in done.stdout and "[call-arg]" in done.stdout, done.stdout + done.stderr


def test_stub_agrees_with_the_compiled_part(tmp_path):
    # What only builds with debug assertions have.
    (tmp_path / "allowed").write_text(r"azekura\._azekura\.Volume\.test_panic")
    stubtest = ["mypy.stubtest", "azekura._azekura", "--mypy-config-file", str(CONFIG), "--allowlist", "allowed", "--ignore-unused-allowlist"]
    done = checked(*stubtest, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
