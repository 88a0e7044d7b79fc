/*
 * Calls of chfs.h in the order in which the back ends for benchmarks make them: several processes, files of their own and a
 * shared one, transfers that are verified, init and term again and again.
 */
#define _GNU_SOURCE
#include "check.h"
#include <chfs.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 4
#define TRANSFER 100000
#define SEGMENTS 5
#define ITEMS 40
#define ITEM_BYTES 3901

/* Numbers of the benchmark's own, and no others: read-write, create, truncate, exclusive. */
enum { B_RDONLY = 1, B_RDWR = 4, B_CREAT = 0x10, B_TRUNC = 0x20, B_EXCL = 0x40 };

static pthread_barrier_t *barrier;

static void meet(void)
{
	pthread_barrier_wait(barrier);
}

static void fill(unsigned char *data, size_t bytes, int rank, int segment)
{
	for (size_t at = 0; at < bytes; at++)
		data[at] = (unsigned char)(rank * 31 + segment * 7 + at * 13 + at / 251);
}

static void before_init(void)
{
	struct stat st;
	CHECK(chfs_initialized() == 0);
	FAILS(chfs_stat("/", &st), ENOTCONN);
	FAILS(chfs_create("/x", 0, 0644), ENOTCONN);
	FAILS(chfs_size(), ENOTCONN);
	CHECK(chfs_term() == 0);
	chfs_set_chunk_size(65536);
	chfs_set_buf_size(1 << 20);
	chfs_set_async_access(1);
	chfs_set_rdma_thresh(32768);
	chfs_set_rpc_timeout_msec(30000);
	chfs_set_node_list_cache_timeout(120);
	CHECK(strlen(chfs_version()) > 0);
}

/* All processes make, write and verify one file. */
static void shared_file(int rank)
{
	static unsigned char data[TRANSFER], back[TRANSFER];
	struct stat st;
	CHECK(chfs_init(NULL) == 0 && chfs_init("") == 0 && chfs_initialized() == 1);
	meet();
	/* The flags say read-only and truncate: neither is acted on. */
	int fd = chfs_create("/shared/", B_RDONLY | B_CREAT | B_TRUNC | B_EXCL, 0664);
	CHECK(fd >= 0);
	for (int segment = 0; segment < SEGMENTS; segment++) {
		off_t offset = ((off_t)segment * RANKS + rank) * TRANSFER;
		fill(data, TRANSFER, rank, segment);
		CHECK(chfs_pwrite(fd, data, TRANSFER, offset) == TRANSFER);
	}
	CHECK(chfs_fsync(fd) == 0 && chfs_close(fd) == 0);
	meet();
	CHECK(chfs_stat("shared", &st) == 0 && st.st_size == (off_t)RANKS * SEGMENTS * TRANSFER && S_ISREG(st.st_mode));
	CHECK(st.st_blksize == 65536);
	/* Again, by name only: what is there stays. */
	fd = chfs_create("/shared", B_RDWR | B_CREAT, 0664);
	CHECK(fd >= 0 && chfs_close(fd) == 0 && chfs_term() == 0 && chfs_initialized() == 0);
	FAILS(chfs_pread(fd, back, 1, 0), EBADF);
	FAILS(chfs_open("/shared", B_RDWR), ENOTCONN);
	CHECK(chfs_init(NULL) == 0);
	meet();
	fd = chfs_open("/shared", B_RDONLY);
	CHECK(fd >= 0);
	int other = (rank + 1) % RANKS;
	for (int segment = 0; segment < SEGMENTS; segment++) {
		fill(data, TRANSFER, other, segment);
		CHECK(chfs_pread(fd, back, TRANSFER, ((off_t)segment * RANKS + other) * TRANSFER) == TRANSFER);
		CHECK(memcmp(data, back, TRANSFER) == 0);
	}
	/* Beyond the end, and up to it. */
	off_t end = (off_t)RANKS * SEGMENTS * TRANSFER;
	CHECK(chfs_pread(fd, back, TRANSFER, end - 10) == 10 && chfs_pread(fd, back, TRANSFER, end) == 0);
	CHECK(chfs_close(fd) == 0);
	FAILS(chfs_close(fd), EBADF);
	meet();
	if (rank == 0)
		CHECK(chfs_unlink("/shared") == 0);
	meet();
	FAILS(chfs_stat("/shared", &st), ENOENT);
}

struct listing {
	int entries, most, sum;
};

static int note(void *argument, const char *name, const struct stat *st, off_t offset)
{
	struct listing *listing = argument;
	int rank, item;
	CHECK(offset == 0 && sscanf(name, "file.%d.%d", &rank, &item) == 2 && st->st_size == ITEM_BYTES);
	CHECK(S_ISREG(st->st_mode));
	listing->entries++;
	listing->sum += item;
	return listing->entries == listing->most;
}

/* Many small files in one directory. */
static void small_files(int rank)
{
	unsigned char data[ITEM_BYTES], back[ITEM_BYTES];
	char name[64];
	struct stat st;
	if (rank == 0)
		CHECK(chfs_mkdir("/tree/", 0755) == 0);
	meet();
	FAILS(chfs_mkdir("/tree", 0755), EEXIST);
	for (int item = 0; item < ITEMS; item++) {
		snprintf(name, sizeof name, "/tree/file.%d.%d", rank, item);
		int fd = chfs_create(name, B_RDWR | B_CREAT, 0664);
		fill(data, ITEM_BYTES, rank, item);
		CHECK(fd >= 0 && chfs_pwrite(fd, data, ITEM_BYTES, 0) == ITEM_BYTES && chfs_close(fd) == 0);
	}
	meet();
	int other = (rank + 1) % RANKS;
	for (int item = 0; item < ITEMS; item++) {
		snprintf(name, sizeof name, "/tree/file.%d.%d", other, item);
		CHECK(chfs_stat(name, &st) == 0 && st.st_size == ITEM_BYTES && (st.st_mode & 0777) == 0644);
	}
	meet();
	for (int item = 0; item < ITEMS; item++) {
		snprintf(name, sizeof name, "/tree/file.%d.%d", other, item);
		int fd = chfs_open(name, B_RDONLY);
		fill(data, ITEM_BYTES, other, item);
		CHECK(fd >= 0 && chfs_pread(fd, back, ITEM_BYTES, 0) == ITEM_BYTES && chfs_close(fd) == 0);
		CHECK(memcmp(data, back, ITEM_BYTES) == 0);
	}
	struct listing all = {0, -1, 0}, parts = {0, -1, 0}, some = {0, 3, 0};
	CHECK(chfs_readdir("/tree", &all, note) == 0 && all.entries == RANKS * ITEMS);
	CHECK(chfs_size() == 2);
	for (int server = 0; server < chfs_size(); server++) {
		int before = parts.entries;
		CHECK(chfs_readdir_index("/tree/", server, &parts, note) == 0 && parts.entries > before);
	}
	CHECK(parts.entries == all.entries && parts.sum == all.sum);
	CHECK(chfs_readdir_index("/tree", 99, &parts, note) == 0 && parts.entries == all.entries);
	CHECK(chfs_readdir("/tree", &some, note) == 0 && some.entries == 3);
	FAILS(chfs_readdir("/none", &all, note), ENOENT);
	meet();
	FAILS(chfs_rmdir("/tree"), ENOTEMPTY);
	meet();
	for (int item = 0; item < ITEMS; item++) {
		snprintf(name, sizeof name, "/tree/file.%d.%d", rank, item);
		CHECK(chfs_unlink(name) == 0);
		FAILS(chfs_unlink(name), ENOENT);
	}
	meet();
	if (rank == 0)
		CHECK(chfs_rmdir("/tree/") == 0);
	meet();
}

/* What is opened is read as it has come with the open, until something is written through it; also without a name. */
static void read_and_written(const char *name)
{
	char buffer[64];
	int maker = chfs_create(name, B_RDWR | B_CREAT, 0600);
	CHECK(maker >= 0 && chfs_pwrite(maker, "abcd", 4, 0) == 4 && chfs_close(maker) == 0);
	int fd = chfs_open(name, B_RDONLY), other = chfs_open(name, B_RDONLY);
	CHECK(fd >= 0 && other >= 0 && chfs_pread(fd, buffer, 64, 0) == 4 && memcmp(buffer, "abcd", 4) == 0);
	CHECK(chfs_pwrite(fd, "AB", 2, 0) == 2 && chfs_pread(fd, buffer, 64, 0) == 4 && memcmp(buffer, "ABcd", 4) == 0);
	CHECK(chfs_pread(other, buffer, 64, 0) == 4 && memcmp(buffer, "ABcd", 4) == 0);
	CHECK(chfs_fsync(fd) == 0 && chfs_unlink(name) == 0);
	CHECK(chfs_seek(other, 4, SEEK_SET) == 4 && chfs_write(other, "e", 1) == 1 && chfs_seek(other, 0, SEEK_END) == 5);
	CHECK(chfs_pread(fd, buffer, 64, 0) == 5 && memcmp(buffer, "ABcde", 5) == 0);
	CHECK(chfs_close(fd) == 0 && chfs_close(other) == 0);
	FAILS(chfs_pwrite(fd, "x", 1, 0), EBADF);
}

/* The other calls, in a directory of each process. */
static void the_rest(int rank)
{
	char dir[32], name[64], link[64], buffer[64], local[64];
	struct stat st;
	snprintf(dir, sizeof dir, "/own%d", rank);
	snprintf(name, sizeof name, "%s/f", dir);
	snprintf(link, sizeof link, "%s/l", dir);
	CHECK(chfs_mkdir(dir, 0700) == 0);
	int fd = chfs_create_chunk_size(name, B_RDWR | B_CREAT | CHFS_O_CACHE, 0600, 300000);
	CHECK(fd >= 0 && chfs_write(fd, "hello ", 6) == 6 && chfs_write(fd, "world", 5) == 5);
	CHECK(chfs_seek(fd, 6, SEEK_SET) == 6 && chfs_read(fd, buffer, sizeof buffer) == 5 && memcmp(buffer, "world", 5) == 0);
	CHECK(chfs_seek(fd, 0, SEEK_END) == 11 && chfs_seek(fd, -2, SEEK_CUR) == 9);
	CHECK(chfs_stat(name, &st) == 0 && st.st_blksize == 1 << 19 && chfs_close(fd) == 0);
	read_and_written(link);
	FAILS(chfs_open(dir, B_RDONLY), EISDIR);
	CHECK(chfs_truncate(name, 4) == 0 && chfs_stat(name, &st) == 0 && st.st_size == 4);
	CHECK(chfs_symlink("f", link) == 0 && chfs_stat(link, &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(chfs_readlink(link, buffer, sizeof buffer) == 1 && strcmp(buffer, "f") == 0);
	FAILS(chfs_readlink(name, buffer, sizeof buffer), EINVAL);
	FAILS(chfs_open("/none", B_RDWR), ENOENT);
	FAILS(chfs_open(NULL, B_RDWR), EFAULT);
	chfs_sync();
	CHECK(chfs_unlink(link) == 0 && chfs_unlink(name) == 0 && chfs_rmdir(dir) == 0);
	/* From this machine's file systems, into the volume under the same path. */
	snprintf(local, sizeof local, "in%d/f", rank);
	snprintf(dir, sizeof dir, "in%d", rank);
	CHECK(mkdir(dir, 0755) == 0);
	int from = open(local, O_CREAT | O_WRONLY, 0640);
	for (int i = 0; i < 1000; i++)
		CHECK(write(from, "0123456789", 10) == 10);
	CHECK(close(from) == 0);
	chfs_set_stagein_buf_size(4096);
	CHECK(chfs_stagein(dir) == 0 && chfs_stagein(dir) == 0 && chfs_stagein(local) == 0);
	CHECK(chfs_stat(local, &st) == 0 && st.st_size == 10000 && (st.st_mode & 0777) == 0640);
	fd = chfs_open(local, B_RDONLY);
	CHECK(fd >= 0 && chfs_pread(fd, buffer, 10, 9990) == 10 && memcmp(buffer, "0123456789", 10) == 0 && chfs_close(fd) == 0);
	FAILS(chfs_stagein("no-such-file"), ENOENT);
}

static void one(int rank)
{
	alarm(120);
	before_init();
	shared_file(rank);
	small_files(rank);
	the_rest(rank);
	for (int turn = 0; turn < 5; turn++) {
		CHECK(chfs_term_without_sync() == 0 && chfs_term() == 0);
		CHECK(chfs_init(NULL) == 0);
	}
	CHECK(chfs_term() == 0);
	setenv("CHFS_SERVER", "no-such-volume", 1);
	FAILS(chfs_init(NULL), ENOENT);
	setenv("CHFS_SERVER", "", 1);
	CHECK(chfs_init(NULL) == 0 && chfs_term() == 0);
}

int main(void)
{
	pthread_barrierattr_t shared;
	pid_t pids[RANKS];
	umask(022);
	barrier = mmap(NULL, sizeof *barrier, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(barrier != MAP_FAILED && pthread_barrierattr_init(&shared) == 0);
	CHECK(pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_barrier_init(barrier, &shared, RANKS) == 0);
	for (int rank = 0; rank < RANKS; rank++) {
		pids[rank] = fork();
		CHECK(pids[rank] >= 0);
		if (pids[rank] == 0) {
			one(rank);
			exit(0);
		}
	}
	int failed = 0;
	for (int rank = 0; rank < RANKS; rank++) {
		int status;
		pid_t ended = wait(&status);
		if (status != 0 && !failed++)
			for (int other = 0; other < RANKS; other++)
				if (pids[other] != ended)
					kill(pids[other], 9);
	}
	CHECK(!failed);
	puts("all is well");
	return 0;
}
