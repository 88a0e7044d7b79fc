#!/usr/bin/env python3
"""How fast Python reads from a volume, beside the library for C and a directory in memory: bench/python/reads.py [--short].

Needs the package azekura in this interpreter (make wheel), cc, and the libraries for C (make libs) where PKG_CONFIG_PATH finds
azekura.pc. Starts a volume of its own. Every way does the same work in turns in one run; medians are shown, and the ratio of
the C program's time to each. Prints a table and, as the last line, JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import azekura

HERE = Path(__file__).parent
SHORT = "--short" in sys.argv[1:]
FILES, FILE_BYTES = (500, 4096) if SHORT else (10_000, 4096)
LARGE_BYTES = 16 << 20 if SHORT else 1 << 30
TURNS = 3 if SHORT else 7


def compiled(directory: str) -> str:
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "azekura"], check=True, capture_output=True, text=True).stdout.split()
    where = subprocess.run(["pkg-config", "--variable=libdir", "azekura"], check=True, capture_output=True, text=True).stdout.strip()
    program = f"{directory}/reads"
    subprocess.run(["cc", "-O2", "-o", program, str(HERE / "reads.c"), *flags, f"-Wl,-rpath,{where}"], check=True)
    return program


def in_c(*words: str):
    """A program in C that does one turn each time it is asked; started anew each time, its connection not timed."""

    def turn() -> tuple[float, int]:
        seconds, total = subprocess.run([*words, "1"], check=True, capture_output=True, text=True).stdout.split()
        return float(seconds), int(total)

    return turn


def timed(read):
    def turn() -> tuple[float, int]:
        begun = time.perf_counter()
        total = read()
        return time.perf_counter() - begun, total

    return turn


def compare(title: str, ways: dict, expected: int) -> dict:
    seconds = {way: [] for way in ways}
    for _ in range(TURNS):
        for way, turn in ways.items():
            took, total = turn()
            assert total == expected, f"{way}: {total} bytes were read, not {expected}"
            seconds[way].append(took)
    first = next(iter(ways))
    print(f"\n{title}: median of {TURNS} turns, in turns")
    rows = {}
    for way, took in seconds.items():
        # Of each turn, since the machine may be slower in one than in another.
        ratio = statistics.median(one / other for one, other in zip(seconds[first], took))
        rows[way] = {"seconds": statistics.median(took), "turns": took, "ratio": ratio}
        print(f"  {way:<44}{statistics.median(took):>10.4f} s{ratio:>8.2f} of {first}'s speed")
    return rows


def read_opened(volume, paths):
    total = 0
    for path in paths:
        with volume.open(path, "rb") as file:
            total += len(file.read())
    return total


def read_large(opened, memory):
    with opened as file:
        return file.readinto(memory)


def main() -> None:
    result = {"files": FILES, "file_bytes": FILE_BYTES, "large_bytes": LARGE_BYTES, "turns": TURNS, "python": sys.version.split()[0],
              "aze": subprocess.run([azekura.program(), "version"], capture_output=True, text=True).stdout.splitlines()}  # fmt: skip
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(dir="/dev/shm") as memory_directory:
        program = compiled(directory)
        with azekura.up(size="4G", servers=1) as volume:
            os.environ["AZE_VOLUME"] = volume.name
            volume.mkdir("/files")
            paths = [f"/files/{number}" for number in range(FILES)]
            data = os.urandom(FILE_BYTES)
            volume.write_many((path, data) for path in paths)
            result["small"] = compare(f"{FILES} files of {FILE_BYTES} bytes", {
                "C, aze_open, aze_pread, aze_close": in_c(program, "files", "/files", str(FILES)),
                "Volume.read_bytes, one after the other": timed(lambda: sum(len(volume.read_bytes(path)) for path in paths)),
                "Volume.open and read, one after the other": timed(lambda: read_opened(volume, paths)),
                "Volume.read_many": timed(lambda: sum(map(len, volume.read_many(paths)))),
                **fsspec_ways(volume, paths),
            }, FILES * FILE_BYTES)  # fmt: skip
            memory = bytearray(LARGE_BYTES)
            memory[::4096] = b"\1" * len(memory[::4096])
            volume.write_bytes("/large", memory)
            local = f"{memory_directory}/large"
            Path(local).write_bytes(memory)
            result["large"] = compare(f"a file of {LARGE_BYTES >> 20} MiB into touched memory by one call", {
                "C, aze_pread": in_c(program, "large", "/large", str(LARGE_BYTES)),
                "RawFile.readinto": timed(lambda: read_large(volume.open("/large", "rb", 0), memory)),
                "tmpfs, readinto of open(…, 'rb', 0)": timed(lambda: read_large(open(local, "rb", 0), memory)),
            }, LARGE_BYTES)  # fmt: skip
            rows = result["large"]
            result["large_beside_tmpfs"] = statistics.median(
                one / other for one, other in zip(rows["tmpfs, readinto of open(…, 'rb', 0)"]["turns"], rows["RawFile.readinto"]["turns"])
            )
            print(f"  RawFile.readinto: {result['large_beside_tmpfs']:.2f} of tmpfs's speed")
    print(json.dumps(result))


def fsspec_ways(volume, paths) -> dict:
    try:
        import fsspec
    except ImportError:
        return {}
    fs = fsspec.filesystem("aze", volume=volume.name)
    return {"fsspec, cat of a list": timed(lambda: sum(map(len, fs.cat(paths).values())))}


if __name__ == "__main__":
    main()
