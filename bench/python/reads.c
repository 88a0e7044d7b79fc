/* The reads of reads.py by the library for C: reads files|large DIRECTORY|FILE COUNT|BYTES TURNS. Prints the seconds of each turn. */
#include <azekura.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void check(int held, const char *what)
{
	if (!held) {
		fprintf(stderr, "reads: %s: %s\n", what, aze_last_error());
		exit(1);
	}
}

/* Opens a file, reads up to `bytes` from its beginning, and closes it; gives how many. */
static size_t whole(aze_volume *volume, const char *path, char *buffer, size_t bytes)
{
	int fd = aze_open(volume, path, O_RDONLY, 0);
	check(fd >= 0, path);
	ssize_t count = aze_pread(fd, buffer, bytes, 0);
	check(count >= 0 && aze_close(fd) == 0, path);
	return (size_t)count;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: reads files|large DIRECTORY|FILE COUNT|BYTES TURNS\n");
		return 2;
	}
	int files = strcmp(argv[1], "files") == 0;
	size_t amount = strtoull(argv[3], NULL, 10), bytes = files ? 65536 : amount;
	aze_volume *volume = aze_open_volume(NULL);
	char *buffer = malloc(bytes);
	check(volume != NULL && buffer != NULL, "open the volume");
	/* The first touch of memory costs more than a copy. */
	memset(buffer, 1, bytes);
	for (int turn = atoi(argv[4]); turn > 0; turn--) {
		double begun = now();
		size_t total = 0;
		if (!files)
			total = whole(volume, argv[2], buffer, bytes);
		for (size_t number = 0; files && number < amount; number++) {
			char path[4096];
			snprintf(path, sizeof path, "%s/%zu", argv[2], number);
			total += whole(volume, path, buffer, bytes);
		}
		printf("%.6f %zu\n", now() - begun, total);
		fflush(stdout);
	}
	return aze_close_volume(volume);
}
