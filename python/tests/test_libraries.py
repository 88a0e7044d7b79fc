"""Libraries that find `aze://` by fsspec, or are given a file, on real files of theirs."""

import os

import pytest

numpy = pytest.importorskip("numpy")


@pytest.fixture
def url(volume, home):
    return f"aze://{volume.name}{home}"


@pytest.fixture
def table():
    pandas = pytest.importorskip("pandas")
    random = numpy.random.default_rng(7)
    return pandas.DataFrame({"a": random.integers(0, 1000, 20_000), "b": random.random(20_000), "c": [f"word {n % 97}" for n in range(20_000)]})


def test_pandas(url, table, volume, home):
    pandas = pytest.importorskip("pandas")
    table.to_csv(url + "/new/t.csv", index=False)
    assert volume.getsize(home + "/new/t.csv") > 500_000
    pandas.testing.assert_frame_equal(pandas.read_csv(url + "/new/t.csv"), table)
    table.to_csv(url + "/t.csv.gz", index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(url + "/t.csv.gz"), table)
    table.to_pickle(url + "/t.pickle")
    pandas.testing.assert_frame_equal(pandas.read_pickle(url + "/t.pickle"), table)
    table.to_json(url + "/t.json", orient="records", lines=True)
    assert len(pandas.read_json(url + "/t.json", orient="records", lines=True)) == 20_000
    with pytest.raises(FileNotFoundError):
        pandas.read_csv(url + "/none.csv")


def test_pandas_and_parquet(url, table):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    table.to_parquet(url + "/t.parquet")
    pandas.testing.assert_frame_equal(pandas.read_parquet(url + "/t.parquet"), table)
    assert list(pandas.read_parquet(url + "/t.parquet", columns=["b"]).columns) == ["b"]


def test_pyarrow(volume, home, table):
    pyarrow = pytest.importorskip("pyarrow")
    import fsspec
    import pyarrow.dataset
    import pyarrow.fs
    import pyarrow.parquet

    fs = fsspec.filesystem("aze", volume=volume.name)
    data = pyarrow.Table.from_pandas(table)
    pyarrow.parquet.write_table(data, home + "/t.parquet", filesystem=fs, row_group_size=1000)
    assert pyarrow.parquet.read_table(home + "/t.parquet", filesystem=fs).equals(data)
    pyarrow.dataset.write_dataset(data, home + "/set", filesystem=fs, format="parquet", max_rows_per_file=3000, max_rows_per_group=3000)
    found = pyarrow.dataset.dataset(home + "/set", filesystem=fs)
    assert len(found.files) == 7 and found.to_table().num_rows == 20_000
    assert found.to_table(filter=pyarrow.dataset.field("a") == 7).num_rows == int((table["a"] == 7).sum())
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    with arrow.open_input_file(home + "/t.parquet") as file:
        assert file.size() == volume.getsize(home + "/t.parquet") and file.read_at(4, 0) == b"PAR1"
    kinds = {info.base_name: info.type for info in arrow.get_file_info(pyarrow.fs.FileSelector(home))}
    assert kinds == {"t.parquet": pyarrow.fs.FileType.File, "set": pyarrow.fs.FileType.Directory}
    with pyarrow.OSFile(os.devnull, "wb") as _, pyarrow.PythonFile(volume.open(home + "/x.arrow", "wb")) as sink:
        with pyarrow.ipc.new_file(sink, data.schema) as writer:
            writer.write_table(data)
    with volume.open(home + "/x.arrow", "rb") as source:
        assert pyarrow.ipc.open_file(source).read_all().equals(data)


def test_polars(url, table):
    polars = pytest.importorskip("polars")
    import fsspec

    frame = polars.from_pandas(table)
    with fsspec.open(url + "/t.parquet", "wb") as file:
        frame.write_parquet(file)
    with fsspec.open(url + "/t.parquet", "rb") as file:
        assert polars.read_parquet(file).equals(frame)
    with fsspec.open(url + "/t.csv", "wb") as file:
        frame.write_csv(file)
    with fsspec.open(url + "/t.csv", "rb") as file:
        assert polars.read_csv(file).equals(frame)
    # It asks object stores of its own, and no other, where it is given a URL.
    with pytest.raises((OSError, polars.exceptions.PolarsError)):
        polars.read_parquet(url + "/t.parquet")
    with fsspec.open(url + "/t.arrow", "wb") as file:
        frame.write_ipc(file)
    with fsspec.open(url + "/t.arrow", "rb") as file:
        assert polars.read_ipc(file).equals(frame)


def test_xarray_and_zarr(url, volume, home):
    xarray = pytest.importorskip("xarray")
    zarr = pytest.importorskip("zarr")
    values = numpy.arange(24_000.0).reshape(40, 600)
    data = xarray.Dataset({"t": (("x", "y"), values)}, coords={"x": numpy.arange(40)}, attrs={"of": "a test"})
    data.to_zarr(url + "/d.zarr", encoding={"t": {"chunks": (10, 100)}}, consolidated=False)
    assert len(list(volume.walk(home + "/d.zarr"))) > 4
    with xarray.open_zarr(url + "/d.zarr", consolidated=False) as back:
        assert back.attrs["of"] == "a test" and (back["t"].values == values).all()
        assert back["t"].sel(x=7)[33].values == values[7, 33]
    xarray.Dataset({"t": (("x", "y"), values[:, :10])}).to_zarr(url + "/d.zarr", group="part", mode="a", consolidated=False)
    group = zarr.open_group(url + "/g.zarr", mode="w")
    group.create_array("n", shape=(1000,), chunks=(10,), dtype="i4")[:] = numpy.arange(1000)
    again = zarr.open_group(url + "/g.zarr", mode="r")
    assert (again["n"][:] == numpy.arange(1000)).all() and list(again.array_keys()) == ["n"]
    with pytest.raises(FileNotFoundError):
        zarr.open_group(url + "/none.zarr", mode="r")


def test_dask(url, volume, home):
    pytest.importorskip("dask")
    import dask
    import dask.array
    import dask.bytes

    volume.write_many([(f"{home}/{number}.txt", b"line\n" * number) for number in range(1, 6)])
    _, parts = dask.bytes.read_bytes(url + "/*.txt", blocksize=10, delimiter=b"\n")
    for scheduler in ["synchronous", "threads", "processes"]:
        read = dask.compute(*[block for part in parts for block in part], scheduler=scheduler)
        assert b"".join(read) == b"line\n" * 15
    pytest.importorskip("zarr")
    numbers = dask.array.arange(10_000, chunks=1000)
    dask.array.to_zarr(numbers, url + "/n.zarr")
    assert int(dask.array.from_zarr(url + "/n.zarr").sum().compute()) == sum(range(10_000))


def test_dask_frames(url, table):
    pytest.importorskip("pyarrow")
    frames = pytest.importorskip("dask.dataframe")
    frames.from_pandas(table, npartitions=4).to_parquet(url + "/frames")
    back = frames.read_parquet(url + "/frames")
    assert back.npartitions == 4 and int(back["a"].sum().compute(scheduler="threads")) == int(table["a"].sum())
    frames.from_pandas(table, npartitions=3).to_csv(url + "/csv/part-*.csv", index=False)
    assert len(frames.read_csv(url + "/csv/part-*.csv").compute(scheduler="processes")) == 20_000


def test_h5py(url, volume, home):
    h5py = pytest.importorskip("h5py")
    import fsspec

    values = numpy.random.default_rng(7).random((300, 400))
    with volume.open(home + "/d.h5", "w+b") as file, h5py.File(file, "w") as data:
        data.create_dataset("group/values", data=values, chunks=(30, 40), compression="gzip")
        data["group"].attrs["of"] = "a test"
    with fsspec.open(url + "/d.h5", "rb") as file, h5py.File(file, "r") as data:
        assert (data["group/values"][:] == values).all() and (data["group/values"][17, 5:9] == values[17, 5:9]).all()
        assert data["group"].attrs["of"] == "a test"
    with volume.open(home + "/d.h5", "r+b") as file, h5py.File(file, "r+") as data:
        data["group/values"][0, 0] = 7
        data["more"] = numpy.arange(10)
    with volume.open(home + "/d.h5", "rb", 0) as file, h5py.File(file, "r") as data:
        assert data["group/values"][0, 0] == 7 and list(data["more"]) == list(range(10))


def test_numpy(volume, home):
    values = numpy.arange(100_000).reshape(100, 1000)
    with volume.open(home + "/v.npy", "wb") as file:
        numpy.save(file, values)
    with volume.open(home + "/v.npy", "rb") as file:
        assert (numpy.load(file) == values).all()
    with volume.open(home + "/v.npz", "wb") as file:
        numpy.savez(file, values=values)
    with volume.open(home + "/v.npz", "rb") as file:
        assert (numpy.load(file)["values"] == values).all()
    back = numpy.empty(1000, dtype=values.dtype)
    with volume.open(home + "/raw", "wb", 0) as file:
        file.write(values[3])
    assert volume.readinto(home + "/raw", back) == back.nbytes and (back == values[3]).all()
