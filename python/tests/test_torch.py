"""PyTorch: loaders with workers, and checkpoints."""

import os

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler  # noqa: E402

from azekura.torch import FileDataset, FileStream, load, save  # noqa: E402

COUNT = 300


@pytest.fixture
def train(volume, home):
    """A directory with files whose bytes say their numbers."""
    volume.makedirs(home + "/train/a")
    volume.makedirs(home + "/train/b")
    volume.write_many([(f"{home}/train/{'ab'[number % 2]}/{number:04}", b"%04d" % number * 50) for number in range(COUNT)])
    return home + "/train"


def number(data):
    assert len(data) == 200 and data == data[:4] * 50
    return int(data[:4])


def batches(samples):
    return samples


def test_files_have_numbers(volume, train):
    files = FileDataset(train, volume, decode=number)
    assert len(files) == COUNT and files.paths[0].endswith("a/0000") and repr(files).startswith("<azekura.torch.FileDataset of 300 files")
    assert files[0] == 0 and files[1] == 2 and files[-1] == 299 and files[[3, 1]] == [6, 2] and files.__getitems__([0]) == [0]
    assert FileDataset([train + "/a/0004"], volume.name)[0] == b"0004" * 50
    missing = FileDataset([train + "/a/0004", train + "/none"], volume)
    for call in [lambda: missing[1], lambda: missing[[0, 1]]]:
        with pytest.raises(FileNotFoundError):
            call()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_workers(volume, train, workers, method):
    context = {"multiprocessing_context": method} if workers else {}
    files = FileDataset(train, volume, decode=number)
    files[0]  # the connection of this process is in use when workers are forked
    for loader in [
        DataLoader(files, batch_size=32, shuffle=True, num_workers=workers, **context),
        DataLoader(files, sampler=BatchSampler(RandomSampler(files), 32, False), batch_size=None, num_workers=workers, collate_fn=batches, **context),
        DataLoader(FileStream(train, volume, decode=number, shuffle=True, at_once=16), batch_size=32, num_workers=workers, **context),
    ]:
        got = [int(sample) for batch in loader for sample in batch]
        assert len(got) == COUNT and sorted(got) == list(range(COUNT)) and got != sorted(got)


def test_a_batch_is_read_in_the_order_that_was_asked_for(volume, train):
    files = FileDataset(train, volume, decode=number)
    loader = DataLoader(files, sampler=BatchSampler(SequentialSampler(files), 7, False), batch_size=None, collate_fn=batches)
    assert [sample for batch in loader for sample in batch] == [*range(0, COUNT, 2), *range(1, COUNT, 2)]


def test_streams_are_shared_and_shuffled(volume, train):
    plain = list(FileStream(train, volume, decode=number, at_once=5))
    assert plain == [*range(0, COUNT, 2), *range(1, COUNT, 2)]
    parts = [list(FileStream(train, volume, decode=number, shuffle=True, shard=shard, shards=3)) for shard in range(3)]
    assert [len(part) for part in parts] == [100] * 3 and sorted(sum(parts, [])) == list(range(COUNT))
    stream = FileStream(train, volume, decode=number, shuffle=True, seed=7)
    first = list(stream)
    assert list(stream) == first and first != plain
    stream.set_epoch(1)
    assert sorted(list(stream)) == sorted(first) and list(stream) != first
    for wrong in [{"shard": 1}, {"shard": 3, "shards": 3}, {"at_once": 0}]:
        with pytest.raises(ValueError):
            FileStream(train, volume, **wrong)
    with pytest.raises(FileNotFoundError):
        list(FileStream([train + "/a/0000", train + "/none"], volume))
    # One that is not read to its end.
    assert next(iter(FileStream(train, volume, decode=number))) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_is_lost_is_an_error(volume, train, workers):
    files = FileDataset(train, volume)
    volume.remove(files.paths[77])
    with pytest.raises(OSError):
        for _ in DataLoader(files, batch_size=10, num_workers=workers):
            pass


def test_checkpoints_are_whole(volume, home):
    state = {"weights": torch.arange(1_000_000, dtype=torch.float32), "step": 7, "nested": [torch.ones(3), torch.zeros(0)]}
    path = home + "/last.pt"
    save(state, path, volume)
    back = load(path, volume, map_location="cpu")
    assert torch.equal(back["weights"], state["weights"]) and back["step"] == 7 and torch.equal(back["nested"][0], torch.ones(3))
    with pytest.raises(Exception):
        save({"function": lambda: 0}, path, volume)
    assert volume.listdir(home) == ["last.pt"] and load(path, volume.name)["step"] == 7
    save({"step": 8}, path, volume, sync=False)
    assert load(path, volume)["step"] == 8 and volume.listdir(home) == ["last.pt"]
    with pytest.raises(FileNotFoundError):
        save({}, home + "/none/x.pt", volume)


def test_a_model_goes_on_where_it_was(volume, home):
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(10)).sum().backward()
    optimizer.step()
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, home + "/c.pt", volume)
    again = torch.nn.Linear(10, 10)
    again.load_state_dict(load(home + "/c.pt", volume)["model"])
    assert torch.equal(model.weight, again.weight) and os.path.basename(home) in volume.listdir("/")
