"""One program for each door: what a program finds that works on files, step by step, without a word about doors in the steps.

Run by itself it is a program that knows nothing of Azekura: conformance.py DIRECTORY prints JSON, what each step came to.
"""

import ctypes
import errno
import json
import os
import stat
import sys


class Local:
    """A directory, by the module os: of a local file system, of a mount, or seen by an intercepted program."""

    def __init__(self, root):
        self.root = root
        for name in ("stat", "lstat", "mkdir", "rmdir", "unlink", "listdir", "truncate", "chmod", "utime", "readlink", "getxattr", "listxattr",
                     "setxattr", "removexattr"):  # fmt: skip
            setattr(self, name, self._of(getattr(os, name)))

    def _of(self, function):
        return lambda path, *rest, **options: function(self.root + path, *rest, **options)

    def open(self, path, mode):
        return open(self.root + path, mode, buffering=0)

    def rename(self, old, new):
        os.rename(self.root + old, self.root + new)

    def link(self, old, new):
        os.link(self.root + old, self.root + new)

    def symlink(self, target, path):
        os.symlink(target, self.root + path)

    def size(self, file):
        return os.fstat(file.fileno()).st_size


class Package:
    """A directory of a volume, by the package azekura."""

    def __init__(self, volume, root):
        self.volume, self.root = volume, root

    def __getattr__(self, name):
        function = getattr(self.volume, name)
        return lambda path, *rest, **options: function(self.root + path, *rest, **options)

    def open(self, path, mode):
        return self.volume.open(self.root + path, mode, buffering=0)

    def rename(self, old, new):
        self.volume.rename(self.root + old, self.root + new)

    def link(self, old, new):
        self.volume.link(self.root + old, self.root + new)

    def symlink(self, target, path):
        self.volume.symlink(target, self.root + path)

    def size(self, file):
        return file.seek(0, os.SEEK_END)


class StatC(ctypes.Structure):
    """struct stat of x86-64."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("st_dev", "st_ino", "st_nlink")] + [
        (name, ctypes.c_uint32) for name in ("st_mode", "st_uid", "st_gid", "pad")] + [
        (name, ctypes.c_int64) for name in ("st_rdev", "st_size", "st_blksize", "st_blocks", "atime", "atime_ns", "mtime", "mtime_ns", "ctime", "ctime_ns")] + [
        ("rest", ctypes.c_int64 * 3)]  # fmt: skip

    @property
    def st_mtime_ns(self):
        return self.mtime * 1_000_000_000 + self.mtime_ns


class DirentC(ctypes.Structure):
    """struct dirent."""

    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16), ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


class LibraryC:
    """A directory of a volume, by azekura.h."""

    MODES = {"rb": os.O_RDONLY, "r+b": os.O_RDWR, "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
             "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND}  # fmt: skip

    class File:
        def __init__(self, library, fd):
            self.library, self.fd = library, fd

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.library.call("aze_close", self.fd)

        def read(self, count):
            memory = ctypes.create_string_buffer(count)
            got = self.library.call("aze_read", self.fd, memory, ctypes.c_size_t(count))
            return memory.raw[:got]

        def write(self, data):
            return self.library.call("aze_write", self.fd, data, ctypes.c_size_t(len(data)))

        def seek(self, offset, whence=os.SEEK_SET):
            return self.library.call("aze_lseek", self.fd, ctypes.c_int64(offset), whence)

        def truncate(self, length):
            self.library.call("aze_ftruncate", self.fd, ctypes.c_int64(length))

    def __init__(self, path, name, root):
        self.so, self.root = ctypes.CDLL(path, use_errno=True), root
        for function in ("aze_open_volume", "aze_opendir", "aze_readdir"):
            getattr(self.so, function).restype = ctypes.c_void_p
        for function in ("aze_read", "aze_write", "aze_lseek", "aze_readlink", "aze_getxattr", "aze_listxattr"):
            getattr(self.so, function).restype = ctypes.c_int64
        self.volume = ctypes.c_void_p(self.so.aze_open_volume(name.encode()))
        assert self.volume, os.strerror(ctypes.get_errno())

    def close(self):
        assert self.so.aze_close_volume(self.volume) == 0

    def call(self, function, *words):
        result = getattr(self.so, function)(*words)
        if result == -1 or result is None:
            raise OSError(ctypes.get_errno(), function)
        return result

    def at(self, function, path, *words):
        return self.call(function, self.volume, (self.root + path).encode(), *words)

    def open(self, path, mode):
        return self.File(self, self.at("aze_open", path, self.MODES[mode], 0o666))

    def stat(self, path, function="aze_stat"):
        found = StatC()
        self.at(function, path, ctypes.byref(found))
        return found

    def lstat(self, path):
        return self.stat(path, "aze_lstat")

    def mkdir(self, path, mode=0o777):
        self.at("aze_mkdir", path, mode)

    def rmdir(self, path):
        self.at("aze_rmdir", path)

    def unlink(self, path):
        self.at("aze_unlink", path)

    def listdir(self, path):
        directory, names = ctypes.c_void_p(self.at("aze_opendir", path)), []
        while (entry := self.so.aze_readdir(directory)) is not None:
            names.append(DirentC.from_address(entry).name.decode())
        assert self.so.aze_closedir(directory) == 0
        return [name for name in names if name not in (".", "..")]

    def truncate(self, path, length):
        self.at("aze_truncate", path, ctypes.c_int64(length))

    def chmod(self, path, mode):
        self.at("aze_chmod", path, mode)

    def utime(self, path, ns):
        times = (ctypes.c_int64 * 4)(*(part for time in ns for part in divmod(time, 1_000_000_000)))
        self.at("aze_utimens", path, times)

    def readlink(self, path):
        memory = ctypes.create_string_buffer(4096)
        count = self.at("aze_readlink", path, memory, ctypes.c_size_t(4096))
        return memory.raw[:count].decode()

    def getxattr(self, path, name):
        memory = ctypes.create_string_buffer(4096)
        count = self.at("aze_getxattr", path, name.encode(), memory, ctypes.c_size_t(4096))
        return memory.raw[:count]

    def listxattr(self, path):
        memory = ctypes.create_string_buffer(4096)
        count = self.at("aze_listxattr", path, memory, ctypes.c_size_t(4096))
        return [name.decode() for name in memory.raw[:count].split(b"\0") if name]

    def setxattr(self, path, name, value, flags=0):
        self.at("aze_setxattr", path, name.encode(), value, ctypes.c_size_t(len(value)), flags)

    def removexattr(self, path, name):
        self.at("aze_removexattr", path, name.encode())

    def rename(self, old, new):
        self.at("aze_rename", old, (self.root + new).encode())

    def link(self, old, new):
        self.at("aze_link", old, (self.root + new).encode())

    def symlink(self, target, path):
        self.call("aze_symlink", self.volume, target.encode(), (self.root + path).encode())

    def size(self, file):
        return file.seek(0, os.SEEK_END)


def put(door, path, data, mode="wb"):
    with door.open(path, mode) as file:
        return file.write(data)


def whole(door, path):
    with door.open(path, "rb") as file:
        return file.read(1 << 20)


def kind(door, path):
    return stat.filemode(door.lstat(path).st_mode)


def read_at_the_end(door):
    with door.open("/file", "rb") as file:
        return file.seek(3), file.read(10), file.read(10), file.seek(100), file.read(10)


def write_beyond_the_end(door):
    put(door, "/gap", b"a")
    with door.open("/gap", "r+b") as file:
        file.seek(5)
        file.write(b"b")
        return whole(door, "/gap"), door.size(file)


def hole(door):
    put(door, "/sparse", b"a" * 4096)
    door.truncate("/sparse", 1 << 20)
    with door.open("/sparse", "r+b") as file:
        file.seek((1 << 20) - 4096)
        file.write(b"b" * 4096)
        return file.seek(0, os.SEEK_HOLE) <= 65536, file.seek(1 << 19, os.SEEK_DATA) >= 1 << 19


def append_twice(door):
    put(door, "/log", b"one")
    with door.open("/log", "ab") as one, door.open("/log", "ab") as other:
        one.write(b"two")
        other.write(b"three")
        one.write(b"four")
    return whole(door, "/log")


def unlinked_and_open(door):
    put(door, "/gone", b"still here")
    with door.open("/gone", "rb") as file:
        door.unlink("/gone")
        return file.read(100), sorted(door.listdir("/"))[:0]


def replaced_by_rename(door):
    put(door, "/old", b"old")
    put(door, "/new", b"new")
    with door.open("/old", "rb") as file:
        door.rename("/new", "/old")
        return file.read(10), whole(door, "/old")


def shrunk_and_grown(door):
    put(door, "/cut", b"123456")
    with door.open("/cut", "r+b") as file:
        file.truncate(3)
        file.truncate(6)
        return whole(door, "/cut")


def links_are_counted(door):
    put(door, "/one", b"x")
    door.link("/one", "/two")
    both = door.stat("/one").st_nlink
    door.unlink("/one")
    return both, door.stat("/two").st_nlink, whole(door, "/two")


def times_to_the_nanosecond(door):
    door.utime("/file", ns=(1, 1_500_000_000_123_456_789))
    return door.stat("/file").st_mtime_ns


def attributes(door):
    door.setxattr("/file", "user.one", b"1")
    door.setxattr("/file", "user.two", b"")
    found = sorted(door.listxattr("/file")), door.getxattr("/file", "user.one"), door.getxattr("/file", "user.two")
    door.removexattr("/file", "user.one")
    return found, door.listxattr("/file")


def many(door):
    door.mkdir("/many")
    for number in range(300):
        put(door, f"/many/{number}", b"")
    return len(set(door.listdir("/many"))), len(door.listdir("/many"))


# A step is what it is called, and what it does; it comes to what it gives, or to the error. They come one after the other.
STEPS = [
    ("write a new file", lambda door: put(door, "/file", b"hello")),
    ("read it", lambda door: whole(door, "/file")),
    ("read around its end", read_at_the_end),
    ("its length and mode", lambda door: (door.stat("/file").st_size, kind(door, "/file"))),
    ("open what is not there", lambda door: door.open("/nothing", "rb")),
    ("open below what is not there", lambda door: door.open("/nothing/file", "wb")),
    ("open below a file", lambda door: door.open("/file/below", "rb")),
    ("make a file that is there, exclusively", lambda door: door.open("/file", "xb")),
    ("open a directory for writing", lambda door: (door.mkdir("/dir"), door.open("/dir", "wb"))),
    ("write beyond the end", write_beyond_the_end),
    ("find a hole and data", hole),
    ("append through two opens", append_twice),
    ("shrink and grow", shrunk_and_grown),
    ("truncate below zero", lambda door: door.truncate("/file", -1)),
    ("truncate a directory", lambda door: door.truncate("/dir", 0)),
    ("an unlinked file that is open", unlinked_and_open),
    ("a file that a rename replaces", replaced_by_rename),
    ("make a directory that is there", lambda door: door.mkdir("/dir")),
    ("modes under the umask", lambda door: (door.mkdir("/closed", 0o700), kind(door, "/closed"), kind(door, "/dir"))),
    ("remove a directory with a file in it", lambda door: (put(door, "/dir/in", b""), door.rmdir("/dir"))),
    ("remove a directory by unlink", lambda door: door.unlink("/closed")),
    ("remove a file by rmdir", lambda door: door.rmdir("/file")),
    ("rename a directory into itself", lambda door: door.rename("/dir", "/dir/below")),
    ("rename a directory over a full one", lambda door: door.rename("/closed", "/dir")),
    ("rename a directory over an empty one", lambda door: (door.mkdir("/empty"), door.rename("/dir", "/empty"), door.listdir("/empty"))),
    ("rename a file over a directory", lambda door: door.rename("/file", "/empty")),
    ("rename a directory over a file", lambda door: door.rename("/empty", "/file")),
    ("hard links", links_are_counted),
    ("link a directory", lambda door: door.link("/empty", "/second")),
    ("a symbolic link", lambda door: (door.symlink("file", "/to-file"), door.readlink("/to-file"), whole(door, "/to-file"))),
    ("its own attributes", lambda door: (kind(door, "/to-file"), door.lstat("/to-file").st_size)),
    ("a symbolic link that leads nowhere", lambda door: (door.symlink("nowhere", "/broken"), door.stat("/broken"))),
    ("symbolic links in a circle", lambda door: (door.symlink("b", "/a"), door.symlink("a", "/b"), door.stat("/a"))),
    ("write through a symbolic link", lambda door: (put(door, "/to-file", b"through"), whole(door, "/file"))),
    ("read a link that is none", lambda door: door.readlink("/file")),
    ("change a mode", lambda door: (door.chmod("/file", 0o640), kind(door, "/file"))),
    ("times to the nanosecond", times_to_the_nanosecond),
    ("extended attributes", attributes),
    ("an attribute that is not there", lambda door: door.getxattr("/file", "user.none")),
    ("make an attribute that is there", lambda door: door.setxattr("/file", "user.two", b"", os.XATTR_CREATE)),
    ("a name of 255 bytes", lambda door: (put(door, "/" + "n" * 255, b"x"), door.unlink("/" + "n" * 255))),
    ("a name of 256 bytes", lambda door: put(door, "/" + "n" * 256, b"x")),
    ("a path with a slash at its end", lambda door: (stat.filemode(door.stat("/empty/").st_mode)[0], door.open("/file/", "rb"))),
    ("a directory with 300 names", many),
    ("list a file", lambda door: door.listdir("/file")),
    ("list what is not there", lambda door: door.listdir("/nothing")),
    ("remove what is not there", lambda door: door.unlink("/nothing")),
    ("what is there at the end", lambda door: sorted(door.listdir("/"))),
]


def outcomes(door):
    """What each step came to."""
    os.umask(0o022)
    found = {}
    for name, step in STEPS:
        try:
            given = step(door)
            found[name] = repr(given) if not hasattr(given, "read") else "an open file"
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
        except (OverflowError, TypeError, ValueError) as error:
            found[name] = type(error).__name__
    return found


if __name__ == "__main__":
    json.dump(outcomes(Local(sys.argv[1])), sys.stdout)
