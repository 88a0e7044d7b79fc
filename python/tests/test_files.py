"""Files: each test runs on the volume and, by the builtin functions, on a local directory, and must be true of both."""

import io
import json
import os
import subprocess
import types

import pytest

import azekura


@pytest.fixture(params=["volume", "local"])
def place(request, tmp_path):
    """What has the functions of os and open(), and `root`, an empty directory."""
    if request.param == "volume":
        volume = request.getfixturevalue("volume")
        place = types.SimpleNamespace(**{name: getattr(volume, name) for name in dir(volume) if not name.startswith("_")})
        place.root = request.getfixturevalue("home")
    else:
        place = types.SimpleNamespace(**vars(os), **{name: getattr(os.path, name) for name in ["exists", "isdir", "isfile", "islink"]})
        place.root, place.open = str(tmp_path), open
        place.lexists, place.getsize = os.path.lexists, os.path.getsize
    return place


def contents(place, path):
    with place.open(path, "rb") as file:
        return file.read()


def test_modes_make_files_and_say_what_they_allow(place):
    path = place.root + "/file"
    for mode in ["r", "rb", "r+", "rb+"]:
        with pytest.raises(FileNotFoundError):
            place.open(path, mode)
    with place.open(path, "x") as file:
        assert file.write("one\n") == 4 and not file.readable()
        with pytest.raises(io.UnsupportedOperation):
            file.read()
    with pytest.raises(FileExistsError) as raised:
        place.open(path, "xb")
    assert raised.value.filename == path
    with place.open(path, "a") as file:
        assert file.tell() == 4
        file.write("two\n")
    assert contents(place, path) == b"one\ntwo\n"
    with place.open(path) as file:
        assert not file.writable() and list(file) == ["one\n", "two\n"]
        with pytest.raises(io.UnsupportedOperation):
            file.write("x")
    with place.open(path, "r+b") as file:
        assert file.read(3) == b"one"
        file.write(b"!")
        file.seek(0)
        assert file.read() == b"one!two\n"
    with place.open(path, "w+") as file:
        assert file.read() == "" and file.write("new") == 3
        file.seek(0)
        assert file.read() == "new"
    with place.open(path, "a+b") as file:
        file.seek(0)
        assert file.read(1) == b"n"
        file.write(b"er")
    assert contents(place, path) == b"newer"
    with place.open(path, "wb"):
        pass
    assert place.getsize(path) == 0


@pytest.mark.parametrize("mode", ["", "rw", "rr", "b", "q", "rbt", "U", "++"])
def test_wrong_modes_are_refused_before_a_file_is_made(place, mode):
    with pytest.raises(ValueError):
        place.open(place.root + "/file", mode)
    assert place.listdir(place.root) == []


def test_arguments_that_exclude_each_other(place):
    path = place.root + "/file"
    # The builtin finds the last one out when the file is made.
    for arguments in [{"mode": "wb", "encoding": "utf-8"}, {"mode": "wb", "errors": "strict"}, {"mode": "wb", "newline": ""},
                      {"mode": "w", "buffering": 0}]:  # fmt: skip
        with pytest.raises(ValueError):
            place.open(path, **arguments)
    assert place.open is open or not place.exists(path)
    with pytest.raises(LookupError):
        place.open(path, "w", encoding="no such")


def test_layers_are_those_of_io(place):
    path = place.root + "/file"
    for mode, buffering, kind in [("wb", 0, io.RawIOBase), ("wb", -1, io.BufferedWriter), ("rb", 7, io.BufferedReader),
                                  ("rb+", -1, io.BufferedRandom), ("r", -1, io.TextIOWrapper), ("w", 1, io.TextIOWrapper)]:  # fmt: skip
        with place.open(path, mode, buffering) as file:
            assert isinstance(file, kind) and file.name == path and file.seekable() and not file.isatty()
    with place.open(path, "w", 1) as file:
        assert file.line_buffering
    for mode in ["wt", "w+", "r", "rt", "r+", "a", "a+", "wb", "wb+", "rb", "rb+", "ab+"]:
        with place.open(path, mode) as file, open(os.devnull, mode) as other:
            assert file.mode == other.mode, mode


def test_text_is_translated(place):
    path = place.root + "/file"
    with place.open(path, "w", encoding="utf-16-le", newline="\r\n") as file:
        file.write("ä\nb")
    assert contents(place, path) == "ä\r\nb".encode("utf-16-le")
    with place.open(path, encoding="utf-16-le") as file:
        assert file.read() == "ä\nb"
    with place.open(path, "wb") as file:
        file.write(b"\xff")
    with place.open(path, encoding="utf-8") as file, pytest.raises(UnicodeDecodeError):
        file.read()
    with place.open(path, encoding="utf-8", errors="replace") as file:
        assert file.read() == "\ufffd"


def test_raw_files_have_positions(place):
    path = place.root + "/file"
    with place.open(path, "wb+", 0) as file:
        assert file.write(b"0123456789") == 10 and file.tell() == 10
        assert file.seek(-3, os.SEEK_END) == 7 and file.read() == b"789" and file.read(1) == b""
        assert file.seek(2) == 2 and file.seek(2, os.SEEK_CUR) == 4 and file.read(2) == b"45"
        with pytest.raises(OSError):
            file.seek(-1)
        assert file.truncate(4) == 4 and file.tell() == 6
        assert file.write(b"") == 0 and file.write(memoryview(b"abcd")[::1]) == 4
        assert file.seek(0) == 0 and file.readall() == b"0123\0\0abcd"
        file.seek(5)
        assert file.truncate() == 5
    assert contents(place, path) == b"0123\0"
    for call in [file.read, file.tell, file.readall, lambda: file.write(b"x"), lambda: file.readinto(bytearray(1)), file.readable]:
        with pytest.raises(ValueError):
            call()
    file.close()


def test_memory_of_any_kind_is_read_into_and_written(place):
    import array
    import mmap

    path = place.root + "/file"
    numbers = array.array("d", range(10000))
    with place.open(path, "wb", 0) as file:
        assert file.write(numbers) == 80000
    back = array.array("d", bytes(80000))
    with place.open(path, "rb", 0) as file:
        assert file.readinto(back) == 80000 and back == numbers and file.readinto(back) == 0
    pages = mmap.mmap(-1, 100000)
    with place.open(path, "rb") as file:
        assert file.readinto(pages) == 80000 and pages[:80000] == numbers.tobytes()
        file.seek(79990)
        part = memoryview(bytearray(20))
        assert file.readinto(part[5:]) == 10 and part[5:15] == numbers.tobytes()[-10:]
        with pytest.raises(TypeError):
            file.readinto(b"bytes")
    with place.open(path, "rb", 0) as file, pytest.raises((TypeError, BufferError)):
        file.readinto(memoryview(bytearray(20))[::2])


def test_large_files_keep_every_byte(place):
    data = os.urandom(5_000_003)
    path = place.root + "/file"
    with place.open(path, "wb") as file:
        for at in range(0, len(data), 70_001):
            file.write(data[at : at + 70_001])
    assert contents(place, path) == data
    with place.open(path, "rb") as file:
        file.seek(1_234_567)
        assert file.read(2_000_000) == data[1_234_567:3_234_567] and file.tell() == 3_234_567
        assert b"".join(iter(lambda: file.read1(99_999), b"")) == data[3_234_567:]


def test_names_and_attributes(place):
    root = place.root
    place.makedirs(root + "/a/b/c")
    with pytest.raises(FileExistsError):
        place.makedirs(root + "/a/b")
    place.makedirs(root + "/a/b", exist_ok=True)
    with place.open(root + "/a/f", "wb") as file:
        file.write(b"12345")
    assert place.isdir(root + "/a") and place.isfile(root + "/a/f") and not place.isfile(root + "/a")
    assert not place.exists(root + "/a/f/x") and not place.exists(root + "/none")
    with pytest.raises(FileExistsError):
        place.mkdir(root + "/a")
    with pytest.raises(OSError) as raised:
        place.rmdir(root + "/a")
    assert raised.value.filename == root + "/a"
    with pytest.raises(NotADirectoryError):
        place.listdir(root + "/a/f")
    for mode in ["r", "rb", "wb", "r+"]:
        with pytest.raises(IsADirectoryError) as raised:
            place.open(root + "/a", mode)
        assert raised.value.filename == root + "/a"
    place.symlink("nowhere", root + "/led")
    place.symlink("round", root + "/round")
    for path in [root + "/a/f", root + "/led", root + "/round"]:
        with pytest.raises(FileExistsError) as raised:
            place.makedirs(path, exist_ok=True)
        assert raised.value.filename == path
    place.remove(root + "/led")
    place.remove(root + "/round")
    with pytest.raises(NotADirectoryError):
        place.makedirs(root + "/a/f/x")
    place.rename(root + "/a/f", root + "/g")
    with pytest.raises(FileNotFoundError) as raised:
        place.rename(root + "/a/f", root + "/h")
    assert (raised.value.filename, raised.value.filename2) == (root + "/a/f", root + "/h")
    place.link(root + "/g", root + "/h")
    assert place.stat(root + "/h").st_nlink == 2 and place.stat(root + "/h").st_ino == place.stat(root + "/g").st_ino
    place.symlink("a/b", root + "/s")
    place.symlink("nowhere", root + "/dangling")
    assert place.readlink(root + "/s") == "a/b" and place.isdir(root + "/s") and place.islink(root + "/s")
    assert place.lexists(root + "/dangling") and not place.exists(root + "/dangling")
    place.chmod(root + "/g", 0o640)
    assert place.stat(root + "/g").st_mode == 0o100640
    place.utime(root + "/g", (1, 2.5))
    assert (place.stat(root + "/g").st_atime_ns, place.stat(root + "/g").st_mtime_ns) == (10**9, 25 * 10**8)
    place.utime(root + "/g", ns=(3, 4))
    assert place.stat(root + "/g").st_mtime_ns == 4 and place.stat(root + "/g").st_size == 5
    place.truncate(root + "/g", 7)
    assert contents(place, root + "/h") == b"12345\0\0"
    assert sorted(place.listdir(root)) == ["a", "dangling", "g", "h", "s"]
    with place.scandir(root) as entries:
        found = {entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink(), os.fspath(entry)) for entry in entries}
    assert found["s"] == (True, False, True, root + "/s") and found["g"] == (False, True, False, root + "/g")
    assert len(found) == 5
    walked = {top: (sorted(dirs), sorted(files)) for top, dirs, files in place.walk(root)}
    assert walked == {root: (["a", "s"], ["dangling", "g", "h"]), root + "/a": (["b"], []), root + "/a/b": (["c"], []),
                      root + "/a/b/c": ([], [])}  # fmt: skip
    up = [top for top, _, _ in place.walk(root, topdown=False)]
    assert up == [root + "/a/b/c", root + "/a/b", root + "/a", root]
    place.remove(root + "/h")
    place.replace(root + "/g", root + "/dangling")
    place.rmdir(root + "/a/b/c")
    assert sorted(place.listdir(root)) == ["a", "dangling", "s"] and place.listdir(root + "/a/b") == []


def test_paths_of_every_kind(place):
    from pathlib import PurePosixPath

    path = PurePosixPath(place.root) / "ä"
    with place.open(path, "w") as file:
        file.write("x")
    assert place.stat(os.fsencode(path)).st_size == 1
    # A name that is no UTF-8.
    odd = os.fsdecode(os.fsencode(place.root) + b"/\xff")
    with place.open(odd, "w"):
        pass
    assert sorted(place.listdir(place.root)) == sorted(["ä", os.fsdecode(b"\xff")])
    for wrong in [None, 3.5, object()]:
        with pytest.raises(TypeError):
            place.stat(wrong)
    with pytest.raises(FileNotFoundError):
        place.stat("")
    with pytest.raises((ValueError, OSError)):
        place.stat("a\0b")


def test_only_the_volume_has(volume, home):
    volume.write_bytes(home + "/a", b"one")
    volume.write_bytes(home + "/b", b"two", permissions=0o600, chunk_size=100_000)
    assert volume.stat(home + "/b").st_blksize == 131072 and volume.stat(home + "/b").st_mode & 0o777 == 0o600
    volume.exchange(home + "/a", home + "/b")
    assert volume.read_bytes(home + "/a") == b"two" and volume.read_bytes(home + "/b", 1, 2) == b"n"
    with pytest.raises(FileExistsError):
        volume.rename_new(home + "/a", home + "/b")
    back = bytearray(10)
    assert volume.readinto(home + "/a", back, 1) == 2 and back[:2] == b"wo"
    volume.setxattr(home + "/a", "user.x", b"1")
    assert volume.getxattr(home + "/a", "user.x") == b"1" and volume.listxattr(home + "/a") == ["user.x"]
    volume.removexattr(home + "/a", b"user.x")
    with pytest.raises(OSError):
        volume.getxattr(home + "/a", "user.x")
    before = volume.umask(0o077)
    volume.write_bytes(home + "/c", b"")
    assert volume.umask(before) == 0o077 and volume.stat(home + "/c").st_mode & 0o777 == 0o600
    assert volume.statvfs().f_namemax == 255 and volume.servers == 3
    volume.sync()
    with volume.open(home + "/a", "rb", 0) as one, volume.open(home + "/a", "rb", 0) as other:
        one.lock()
        with pytest.raises(BlockingIOError):
            other.lock(wait=False)
        one.unlock()
        other.lock(shared=True)
        with pytest.raises(io.UnsupportedOperation):
            one.fileno()
    with pytest.raises(NotADirectoryError):
        volume.rmtree(home + "/a")
    volume.makedirs(home + "/d/e/f")
    volume.write_many([(f"{home}/d/e/{number}", str(number).encode()) for number in range(300)])
    read = volume.read_many([f"{home}/d/e/{number}" for number in range(301)])
    assert read[:300] == [str(number).encode() for number in range(300)] and isinstance(read[300], FileNotFoundError)
    volume.symlink("/", home + "/d/root")
    volume.rmtree(home + "/d")
    assert sorted(volume.listdir(home)) == ["a", "b", "c"] and volume.isdir(home)


def test_a_short_range_of_a_long_file(volume, home):
    data = os.urandom(300_000)
    volume.write_bytes(home + "/f", data)
    cases = [(0, None), (1, 65_537), (0, 65_536), (65_536, 65_537), (299_999, 10**9), (300_000, 300_001), (10**12, None), (5, 5), (9, 5),
             (0, 10**15)]  # fmt: skip
    read = volume.read_many([home + "/f"] * len(cases), cases)
    assert len(read) == 10 and read == [data[start:end] for start, end in cases]


def test_reprs_say_what_things_are(volume, home):
    with volume.open(home + "/f", "wb", 0) as file:
        assert repr(file) == f"<azekura.RawFile name={home + '/f'!r} mode='wb'>"
    assert repr(file).endswith(" closed>")
    assert repr(volume) == "<azekura.Volume 'tests'>" and repr(next(volume.scandir(home))) == "<azekura.DirEntry 'f'>"


def test_every_public_name_says_what_it_does(volume):
    import azekura.aio

    kinds = [azekura.Volume, azekura.RawFile, azekura.DirEntry, azekura.aio.AsyncVolume, azekura.aio.AsyncFile]
    named = [(kind, name) for kind in kinds for name, value in vars(kind).items() if not name.startswith("_") and callable(value)]
    assert len(named) > 70
    assert [f"{kind.__name__}.{name}" for kind, name in named if not getattr(kind, name).__doc__] == []


def test_a_private_directory_has_all_below_it_on_one_server(volume, home):
    volume.mkdir(home + "/own", private=True)
    volume.makedirs(home + "/own/deep/er")
    with pytest.raises(FileExistsError):
        volume.mkdir(home + "/own", private=True)
    paths = [home + path for path in ("/own", "/own/deep", "/own/deep/er")]
    told = subprocess.run([azekura.program(), "stat", "--json", *(f"aze://{volume.name}{path}" for path in paths)], check=True, stdout=-1).stdout
    objects = [json.loads(line) for line in told.splitlines()]
    assert [object["private"] for object in objects] == [True] * 3
    assert len({object["home_server"] for object in objects}) == 1
