"""Threads, forked and spawned processes, signals, event loops, and volumes that a program starts."""

import asyncio
import errno
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import azekura


def in_child(body):
    """Runs a function in a forked process, which says by its exit code whether all was well."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_other_threads_go_on_while_a_call_waits(volume, home):
    with volume.open(home + "/lock", "wb", 0) as held, volume.open(home + "/lock", "rb", 0) as wanted:
        held.lock()
        waiting, got = threading.Event(), threading.Event()

        def wait():
            waiting.set()
            wanted.lock()
            got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        # This line would never run if the waiting thread kept the interpreter's lock.
        assert waiting.wait(30) and not got.wait(0.1)
        held.unlock()
        assert got.wait(30)
        thread.join()


def test_threads_share_a_volume(volume, home):
    failures = []

    def work(number):
        try:
            for turn in range(50):
                path = f"{home}/{number}-{turn}"
                volume.write_bytes(path, path.encode() * 100)
                assert volume.read_bytes(path) == path.encode() * 100
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert failures == [] and len(volume.listdir(home)) == 400


def test_an_interrupt_ends_a_wait(volume, home):
    with volume.open(home + "/lock", "wb", 0) as held, volume.open(home + "/lock", "rb", 0) as wanted:
        held.lock()
        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("alarm")))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(TimeoutError, match="alarm"):
                wanted.lock()
        finally:
            signal.signal(signal.SIGALRM, before)
        # The lock was not taken after all.
        held.unlock()
        held.lock(wait=False)


def test_an_interrupt_ends_a_wait_for_a_server_that_says_nothing(run_directory):
    with azekura.up(size="256M", servers=1) as started:
        record = json.loads((run_directory / started.name / "volume.json").read_text())
        pids = [server["process"]["pid"] for server in record["servers"]]
        assert len(pids) == 1
        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("alarm")))
        os.kill(pids[0], signal.SIGSTOP)
        try:
            begun = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(TimeoutError, match="alarm"):
                started.write_bytes("/f", b"x" * 10_000_000)
            # The request itself is tried for 10 s.
            assert time.monotonic() - begun < 5
        finally:
            os.kill(pids[0], signal.SIGCONT)
            signal.signal(signal.SIGALRM, before)
        assert started.write_bytes("/g", b"y") == 1


def test_a_forked_process_uses_the_volume_but_not_files_of_its_parent(volume, home):
    volume.write_bytes(home + "/f", b"data")
    raw, buffered = volume.open(home + "/f", "rb", 0), volume.open(home + "/out", "wb")
    buffered.write(b"of the parent")

    def child():
        assert volume.read_bytes(home + "/f") == b"data"
        volume.write_bytes(home + "/child", b"here")
        for call in [raw.read, raw.tell, lambda: raw.seek(0), lambda: raw.readinto(bytearray(1)), buffered.flush]:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.EBADF
        raw.close()
        in_child(lambda: volume.read_bytes(home + "/child"))

    in_child(child)
    assert raw.read() == b"data" and volume.read_bytes(home + "/child") == b"here"
    buffered.close()
    assert volume.read_bytes(home + "/out") == b"of the parent"
    raw.close()


def test_processes_are_forked_while_threads_use_the_volume(volume, home):
    stop, failures = threading.Event(), []

    def work(number):
        try:
            while not stop.is_set():
                volume.write_bytes(f"{home}/{number}", b"x" * 1000)
                volume.read_bytes(f"{home}/{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    [thread.start() for thread in threads]
    try:
        for turn in range(20):
            in_child(lambda: volume.write_bytes(f"{home}/child-{turn}", b"y"))
    finally:
        stop.set()
        [thread.join() for thread in threads]
    assert failures == [] and len(volume.listdir(home)) == 23


def length(arguments):
    volume, path = arguments
    return len(volume.read_bytes(path))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(volume, home, method):
    paths = [f"{home}/{number}" for number in range(20)]
    volume.write_many([(path, b"z" * number) for number, path in enumerate(paths)])
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(length, [(volume, path) for path in paths]) == list(range(20))


def test_a_volume_is_pickled_by_its_name(volume):
    again = pickle.loads(pickle.dumps(volume))
    assert type(again) is azekura.Volume and again.name == volume.name and again.listdir("/") == volume.listdir("/")
    again.close()
    again.close()
    with pytest.raises(OSError) as raised:
        again.listdir("/")
    assert raised.value.errno == errno.EBADF
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(volume.open("/x", "wb", 0))


def test_a_file_keeps_its_volume_open(volume, home):
    with azekura.Volume(volume.name).open(home + "/f", "w+") as file:
        file.write("data")
        file.seek(0)
        assert file.read() == "data"


def test_a_volume_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        azekura.Volume("no-such-volume")


def test_many_requests_of_an_event_loop(volume, home):
    aio, count = volume.aio, 5000
    threads = threading.active_count()

    async def work():
        await asyncio.gather(*[aio.write_bytes(f"{home}/{number}", b"%d" % number) for number in range(count)])
        read = await asyncio.gather(*[aio.read_bytes(f"{home}/{number}") for number in range(count)])
        assert len(read) == count and read == [b"%d" % number for number in range(count)]
        assert threading.active_count() == threads
        with pytest.raises(FileNotFoundError) as raised:
            await aio.stat(home + "/none")
        assert raised.value.filename == home + "/none"
        assert len(await aio.listdir(home)) == count
        async with await aio.open(home + "/0", "wb+") as file:
            await asyncio.gather(*[file.pwrite(b"%02d" % part, 2 * part) for part in range(100)])
            assert await file.pread(300, 0) == b"".join(b"%02d" % part for part in range(100))
            back = bytearray(4)
            assert await file.preadinto(back, 196) == 4 and back == b"9899" and (await file.stat()).st_size == 200
            await file.sync()
        with pytest.raises(ValueError):
            await aio.open(home + "/0", "a")
        with pytest.raises(IsADirectoryError):
            await aio.open(home)
        await aio.mkdir(home + "/d")
        await aio.rename(home + "/0", home + "/d/0")
        await aio.truncate(home + "/d/0", 1)
        assert (await aio.stat(home + "/d/0")).st_size == 1
        await aio.remove(home + "/d/0")
        await aio.rmdir(home + "/d")

    asyncio.run(work())
    # Another event loop, and one of a forked process.
    asyncio.run(aio.stat(home))
    in_child(lambda: asyncio.run(aio.stat(home)))


def test_a_task_that_is_cancelled_leaves_the_others_alone(volume, home):
    async def work():
        aio = volume.aio
        tasks = [asyncio.create_task(aio.write_bytes(f"{home}/{number}", b"x" * 100_000)) for number in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in done] == [asyncio.CancelledError, int] * 25
        return await aio.read_bytes(f"{home}/1")

    assert asyncio.run(work()) == b"x" * 100_000


def volumes():
    return {entry.name for entry in os.scandir(os.environ["AZE_RUN_DIR"])}


def gone(pid_or_name):
    deadline = time.monotonic() + 30
    while pid_or_name in volumes():
        assert time.monotonic() < deadline, f"{pid_or_name} is still there"
        os.sched_yield()


def test_a_started_volume_ends_after_an_exception(volume):
    with pytest.raises(KeyError):
        with azekura.up(size="256M", servers=1) as started:
            name = started.name
            assert name in volumes() and azekura.Volume(name).listdir() == []
            # A forked process that leaves the block does not end it.
            in_child(started.down)
            assert name in volumes() and started.listdir() == []
            raise KeyError
    assert name not in volumes()
    started.down()


def test_a_started_volume_ends_with_its_process():
    program = "import azekura, os; volume = azekura.up(size='256M', servers=1); print(volume.name, flush=True); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    gone(done.stdout.strip())


def test_what_aze_says_is_in_the_exception(volume):
    with pytest.raises(azekura.CommandError, match="--no-such-option") as raised:
        azekura.up(no_such_option=True)
    assert raised.value.returncode == 2
    with pytest.raises(azekura.CommandError) as raised:
        azekura.up(name=volume.name, size="1G")
    assert raised.value.returncode == 5 and volume.name in raised.value.stderr


def test_the_program_of_the_package_runs():
    path = azekura.program()
    assert os.path.dirname(path) == os.path.dirname(sys.executable)
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    assert said.split()[1] == azekura.__version__


def test_a_defect_gives_eio_and_the_program_lives(volume):
    for place in range(3):
        broken = azekura.Volume(volume.name)
        with pytest.raises(OSError) as raised:
            broken._volume.test_panic(place)
        assert raised.value.errno == errno.EIO
        if place > 0:
            with pytest.raises(OSError) as raised:
                broken.listdir()
            assert raised.value.errno == errno.EIO
        broken.close()
        with azekura.Volume(volume.name) as again:
            again.listdir()
