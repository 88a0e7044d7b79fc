/* Processes of MPI that write files in a directory: one for each, and one that all share, of which each changes its part and a
 * counter under a lock. Each compares what all others have written. */
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART 4096
#define TURNS 10

static char path[500];

static int opened(const char *directory, const char *name, int number, int flags)
{
	snprintf(path, sizeof path, number < 0 ? "%s/%s" : "%s/%s%d", directory, name, number);
	int fd = open(path, flags, 0644);
	CHECK(fd >= 0);
	return fd;
}

static void counted(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = sizeof(long)};
	long count = 0;
	CHECK(fcntl(fd, F_SETLKW, &lock) == 0);
	CHECK(pread(fd, &count, sizeof count, 0) >= 0);
	count++;
	CHECK(pwrite(fd, &count, sizeof count, 0) == sizeof count);
	lock.l_type = F_UNLCK;
	CHECK(fcntl(fd, F_SETLK, &lock) == 0);
}

int main(int argc, char **argv)
{
	char part[PART], back[PART];
	long count = 0;
	begin(&argc, &argv);
	int own = opened(argv[1], "own", rank, O_CREAT | O_RDWR | O_TRUNC);
	int shared = opened(argv[1], "shared", -1, O_CREAT | O_RDWR);
	memset(part, 'a' + rank, PART);
	for (int turn = 0; turn < TURNS; turn++) {
		CHECK(write(own, part, PART) == PART);
		CHECK(pwrite(shared, part, PART, (off_t)(1 + turn * ranks + rank) * PART) == PART);
		counted(shared);
	}
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	for (int other = 0; other < ranks; other++) {
		struct stat stat;
		int fd = opened(argv[1], "own", other, O_RDONLY);
		CHECK(fstat(fd, &stat) == 0 && stat.st_size == PART * TURNS);
		close(fd);
		memset(part, 'a' + other, PART);
		for (int turn = 0; turn < TURNS; turn++) {
			CHECK(pread(shared, back, PART, (off_t)(1 + turn * ranks + other) * PART) == PART);
			CHECK(memcmp(part, back, PART) == 0);
		}
	}
	CHECK(pread(shared, &count, sizeof count, 0) == sizeof count && count == (long)TURNS * ranks);
	if (rank == 0)
		CHECK(close(opened(argv[1], "all", -1, O_CREAT | O_WRONLY)) == 0);
	end();
	return 0;
}
