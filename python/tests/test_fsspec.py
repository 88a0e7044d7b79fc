"""fsspec: its own suites of tests, and what they leave out."""

import asyncio
import multiprocessing
import os
import pickle
import signal

import pytest

fsspec = pytest.importorskip("fsspec")

from fsspec.tests import abstract  # noqa: E402

import azekura.fs  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, volume):
        return fsspec.filesystem("aze", volume=volume.name)

    @pytest.fixture
    def fs_path(self, home):
        return home

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


@pytest.fixture
def fs(volume):
    return fsspec.filesystem("aze", volume=volume.name)


def test_urls_lead_to_the_volume_that_they_name(volume, home, monkeypatch):
    volume.write_bytes(home + "/f", b"data")
    for url in [f"aze://{volume.name}{home}/f", f"aze://{home}/f"]:
        with monkeypatch.context() as patch:
            patch.setenv("AZE_VOLUME", volume.name)
            with fsspec.open(url, "rb") as file:
                assert file.read() == b"data"
    with monkeypatch.context() as patch:
        patch.setenv("AZE_VOLUME", "no-such-volume")
        with pytest.raises(FileNotFoundError):
            fsspec.open(f"aze://{home}/f").open()
    fs, path = fsspec.url_to_fs(f"aze://{volume.name}{home}/f")
    assert isinstance(fs, azekura.fs.AzekuraFileSystem) and path == home + "/f"
    assert fs.unstrip_protocol(path) == f"aze://{volume.name}{home}/f"
    assert fs.cat_file(f"aze:{home}/f") == b"data"
    assert fs._strip_protocol("aze://" + volume.name) == "/" and fs.ls("/") == fs.ls(f"aze://{volume.name}/")
    for call in [fs.cat_file, fs.ls, fs.exists, fs.rm, fs.isdir]:
        with pytest.raises(ValueError, match="another volume"):
            call("aze://other/f")
    with pytest.raises(FileNotFoundError):
        fsspec.open("aze://no-such-volume/f").open()


def test_info_and_listings(fs, volume, home):
    volume.makedirs(home + "/d/e")
    volume.write_bytes(home + "/f", b"12345")
    volume.symlink("f", home + "/to-f")
    volume.symlink("d", home + "/to-d")
    volume.symlink("none", home + "/dangling")
    infos = {info["name"]: info for info in fs.ls(home)}
    kinds = {name.rsplit("/", 1)[1]: (info["type"], info["size"], info["islink"]) for name, info in infos.items()}
    assert kinds == {"d": ("directory", 0, False), "f": ("file", 5, False), "to-f": ("file", 5, True), "to-d": ("other", 1, True),
                     "dangling": ("other", 4, True)}  # fmt: skip
    assert infos[home + "/to-d"]["destination"] == "d" and fs.info(home + "/to-d")["type"] == "directory"
    assert infos[home + "/f"] == fs.info(home + "/f") and fs.ls(home + "/f") == [fs.info(home + "/f")]
    assert sorted(fs.ls(home, detail=False)) == sorted(infos) and fs.ls(home + "/f", detail=False) == [home + "/f"]
    assert sorted(fs.find(home)) == [home + "/" + name for name in ["dangling", "f", "to-d", "to-f"]]
    assert sorted(fs.glob(home + "/*f")) == [home + "/f", home + "/to-f"] and fs.du(home + "/f") == 5
    with pytest.raises(FileNotFoundError):
        fs.ls(home + "/none")
    assert fs.exists(home + "/to-f") and not fs.exists(home + "/dangling") and fs.lexists(home + "/dangling")
    assert not fs.exists(home + "/f/x") and fs.isfile(home + "/f") and fs.isdir(home + "/to-d") and fs.islink(home + "/to-d")
    assert fs.info(home + "/f")["mtime"] == volume.stat(home + "/f").st_mtime
    assert fs.modified(home + "/f").timestamp() == pytest.approx(volume.stat(home + "/f").st_mtime, abs=1e-6)
    assert fs.created(home + "/f") <= fs.modified(home + "/f")
    before = fs.ukey(home + "/f"), fs.checksum(home + "/f")
    assert before == (fs.ukey(home + "/f"), fs.checksum(home + "/f"))
    volume.write_bytes(home + "/f", b"54321")
    assert fs.ukey(home + "/f") != before[0] and fs.checksum(home + "/f") != before[1]


def test_a_directory_that_cannot_be_listed_is_no_empty_one(fs, home, monkeypatch):
    fs.pipe_file(home + "/d/f", b"x")
    monkeypatch.setattr(fs, "ls", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(PermissionError):
        list(fs.walk(home))

    async def refuse(*_, **__):
        raise PermissionError(13, "no")

    monkeypatch.setattr(fs, "_ls", refuse)
    for call in [fs.find, lambda path: fs.glob(path + "/*"), lambda path: fs.cat(path, recursive=True)]:
        with pytest.raises(PermissionError):
            call(home)
    assert fs.find(home, on_error="omit") == []


def test_contents_and_ranges(fs, home):
    data = os.urandom(200_000)
    fs.pipe({f"{home}/new/{number}": data for number in range(20)})
    paths = [f"{home}/new/{number}" for number in range(20)]
    assert fs.cat(paths) == dict.fromkeys(paths, data) and fs.cat(paths[0]) == data
    assert fs.cat(home + "/new/1*") == dict.fromkeys([paths[1], *paths[10:]], data)
    for start, end in [(None, None), (5, 10), (-5, None), (-10, -5), (100, -100), (None, -199_999), (0, 10**9), (10, 5), (-(10**9), 3)]:
        assert fs.cat_file(paths[0], start, end) == data[start:end], (start, end)
    starts = [10 * number for number in range(20)]
    assert fs.cat_ranges(paths, starts, [start + 7 for start in starts]) == [data[start : start + 7] for start in starts]
    assert fs.cat_ranges(paths, -3, None) == [data[-3:]] * 20
    missing = fs.cat_ranges([paths[0], home + "/none"], 0, 5)
    assert missing[0] == data[:5] and isinstance(missing[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([paths[0], home + "/none"], 0, 5, on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges(paths, [0], 5)
    with pytest.raises(FileNotFoundError):
        fs.cat([paths[0], home + "/none"])
    assert list(fs.cat([paths[0], home + "/none"], on_error="omit")) == [paths[0]]
    assert fs.head(paths[0], 10) == data[:10] and fs.tail(paths[0], 10) == data[-10:]
    with pytest.raises(ValueError):
        fs.pipe_file(paths[0], b"", mode="append")


def test_files_have_the_layers_and_options_of_fsspec(fs, home):
    path = home + "/a/b/f"
    with fs.open(path, "w", encoding="utf-8") as file:
        file.write("ä")
    with fs.open(path, "ab", block_size=100) as file:
        file.write(b"!")
    with fs.open(path, "r+b") as file:
        assert file.read() == "ä!".encode()
        file.seek(0)
        file.write(b"AA")
    with fs.open(path) as file:
        again = pickle.loads(pickle.dumps(file))
        assert file.size == 3 and file.read(2) == b"AA" and again.read() == b"AA!" and file.path == path and file.fs is fs
        assert pickle.loads(pickle.dumps(file)).read() == b"!"
    with fs.open(path + ".gz", "wb", compression="infer") as file:
        file.write(b"z" * 1000)
    with fs.open(path + ".gz", "rb", compression="gzip") as file:
        assert file.read() == b"z" * 1000
    with pytest.raises(TypeError, match="nonsense"):
        fs.open(path, nonsense=1)
    with pytest.raises(FileNotFoundError):
        fs.open(home + "/x/y")
    strict = fsspec.filesystem("aze", volume=fs.volume.name, auto_mkdir=False)
    with pytest.raises(FileNotFoundError):
        strict.open(home + "/x/y", "wb")
    assert not fs.exists(home + "/x")


def test_transactions_show_files_when_they_are_whole(fs, home):
    fs.pipe_file(home + "/old", b"old")
    with fs.transaction:
        for name in ["old", "new"]:
            with fs.open(f"{home}/{name}", "wb") as file:
                file.write(b"data")
        assert fs.cat_file(home + "/old") == b"old" and not fs.exists(home + "/new")
        with pytest.raises(ValueError, match="transaction"):
            fs.open(home + "/old", "ab")
    assert sorted(fs.ls(home, detail=False)) == [home + "/new", home + "/old"] and fs.cat_file(home + "/old") == b"data"
    with pytest.raises(KeyError):
        with fs.transaction:
            with fs.open(home + "/other", "wb") as file:
                file.write(b"data")
            raise KeyError
    assert sorted(fs.ls(home, detail=False)) == [home + "/new", home + "/old"]
    with pytest.raises(FileExistsError):
        with fs.transaction:
            fs.open(home + "/old", "xb").close()
    assert fs.cat_file(home + "/old") == b"data"


def test_names_are_moved_and_removed(fs, volume, home):
    fs.pipe({home + "/d/f": b"1", home + "/d/e/g": b"2"})
    ino = volume.stat(home + "/d/f").st_ino
    fs.mv(home + "/d", home + "/new/d")
    assert volume.stat(home + "/new/d/f").st_ino == ino and not fs.exists(home + "/d")
    fs.mkdir(home + "/into")
    fs.mv(home + "/new/d/f", home + "/into")
    fs.mv(home + "/new/d/e/g", home + "/into/")
    assert sorted(fs.ls(home + "/into", detail=False)) == [home + "/into/f", home + "/into/g"]
    with pytest.raises(FileNotFoundError):
        fs.mv(home + "/none", home + "/x/y")
    assert not fs.exists(home + "/x")
    with pytest.raises(FileExistsError):
        fs.mkdir(home + "/into")
    with pytest.raises(FileExistsError):
        fs.makedirs(home + "/into")
    fs.makedirs(home + "/into", exist_ok=True)
    with pytest.raises(IsADirectoryError):
        fs.rm(home + "/into")
    with pytest.raises(FileNotFoundError):
        fs.rm(home + "/none", recursive=True)
    volume.symlink("../into", home + "/new/link")
    fs.rm([home + "/into/*", home + "/new"], recursive=True)
    assert fs.ls(home + "/into") == [] and not fs.exists(home + "/new")
    fs.touch(home + "/t/file")
    fs.pipe_file(home + "/t/file", b"data")
    fs.touch(home + "/t/file", truncate=False)
    assert fs.cat_file(home + "/t/file") == b"data"
    fs.touch(home + "/t/file")
    assert fs.cat_file(home + "/t/file") == b""
    fs.rm_file(home + "/t/file")
    fs.rmdir(home + "/t")


def test_trees_are_put_and_got(fs, home, tmp_path):
    contents = {f"d{number % 7}/{number}": os.urandom(number * 100) for number in range(100)}
    contents["large"] = os.urandom(9_000_001)
    for name, data in contents.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    fs.put(str(tmp_path / "in"), home + "/tree", recursive=True)
    assert {path[len(home) + 6 :]: fs.cat_file(path) for path in fs.find(home + "/tree")} == contents
    fs.get(home + "/tree", str(tmp_path / "out"), recursive=True)
    back = {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert len(back) == 101 and back == contents
    fs.copy(home + "/tree", home + "/copy", recursive=True)
    assert fs.cat_file(home + "/copy/large") == contents["large"] and len(fs.find(home + "/copy")) == 101


def test_a_copy_of_a_tree_is_whole_or_an_error(fs, home, monkeypatch):
    fs.pipe({f"{home}/tree/{number}": b"data" for number in range(10)})
    copy_file = fs._cp_file

    async def lose_one(path1, path2, **more):
        if path1.endswith("/7"):
            raise FileNotFoundError(2, "lost", path1)
        await copy_file(path1, path2, **more)

    monkeypatch.setattr(fs, "_cp_file", lose_one)
    with pytest.raises(FileNotFoundError, match="lost"):
        fs.copy(home + "/tree", home + "/copy", recursive=True)
    fs.copy(home + "/tree", home + "/part", recursive=True, on_error="ignore")
    assert len(fs.find(home + "/part")) == 9


def test_an_event_loop_uses_it(volume, home):
    async def work():
        fs = fsspec.filesystem("aze", volume=volume.name, asynchronous=True)
        await fs._pipe({f"{home}/d/{number}": b"%d" % number for number in range(500)})
        read = await fs._cat([f"{home}/d/{number}" for number in range(500)])
        assert len(read) == 500 and read[home + "/d/99"] == b"99"
        assert len(await fs._ls(home + "/d")) == 500 and len(await fs._find(home)) == 500
        assert await fs._cat_ranges([home + "/d/123"] * 2, [0, -1], [1, None]) == [b"1", b"3"]
        await fs._mv_file(home + "/d/1", home + "/e/1")
        await fs._rm(home + "/d", recursive=True)
        assert not await fs._exists(home + "/d") and await fs._isfile(home + "/e/1") and await fs._isdir(home + "/e")
        with pytest.raises(IsADirectoryError):
            await fs._rm(home + "/e")

    asyncio.run(work())


def work_of_child(arguments):
    fs, path = arguments
    return fs.cat_file(path), fs.find(path), fs.glob(path + "*")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_use_it(fs, home, method):
    path = home + "/f"
    fs.pipe_file(path, b"data")
    # The event loop of this process is in use: a forked process gets its own.
    assert fs.find(home) == [path]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(work_of_child, [(fs, path)] * 4) == [(b"data", [path], [path])] * 4


def test_a_forked_process_has_an_event_loop_of_its_own(fs, home):
    fs.pipe_file(home + "/f", b"data")
    assert fs.find(home) == [home + "/f"]
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a loop of the parent's would never answer
        os._exit(0 if fs.find(home) == [home + "/f"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_mapper(fs, home):
    mapper = fs.get_mapper(home + "/m")
    mapper["a/b"] = b"1"
    mapper.setitems({"c": b"2", "d": b"3"})
    assert dict(mapper) == {"a/b": b"1", "c": b"2", "d": b"3"} and mapper.getitems(["c", "d"]) == {"c": b"2", "d": b"3"}
    del mapper["c"]
    assert sorted(mapper) == ["a/b", "d"]
