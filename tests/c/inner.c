/* What becomes of calls that libc makes by itself: one line for each function. The directory is empty at first. */
#define _GNU_SOURCE
#include "check.h"
#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

static int seen;

static int see(const char *path, const struct stat *stat, int kind, struct FTW *where)
{
	(void)path, (void)stat, (void)kind, (void)where;
	seen++;
	return 0;
}

static void tell(const char *function, long value)
{
	if (value < 0)
		printf("%s: %s\n", function, strerrorname_np(errno));
	else
		printf("%s: %ld\n", function, value);
}

/* Whether a child of vfork is on its parent's memory. */
static int shares_memory(void)
{
	static volatile int stored;
	pid_t child = vfork();
	if (child == 0) {
		stored = 1;
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return stored;
}

int main(int count, char **words)
{
	char line[100] = "";
	CHECK(count == 2 && chdir(words[1]) == 0);
	FILE *file = fopen("f", "w+x");
	CHECK(file && fprintf(file, "one\ntwo\n") == 8 && fflush(file) == 0 && fseek(file, 4, SEEK_SET) == 0);
	CHECK(fgets(line, sizeof line, file) && ftell(file) == 8);
	tell("stdio", strcmp(line, "two\n") == 0);
	CHECK(freopen("g", "a", file) == file && fputws(L"wide\n", file) >= 0 && fclose(file) == 0);
	struct stat stat_of;
	CHECK(stat("g", &stat_of) == 0);
	tell("freopen", stat_of.st_size);
	int fd = open("g", O_RDONLY);
	CHECK(fd >= 0 && !fdopen(fd, "w") && errno == EINVAL && (file = fdopen(fd, "r")) && fileno(file) == fd);
	CHECK(fgets(line, sizeof line, file) && fclose(file) == 0 && fcntl(fd, F_GETFD) < 0);
	tell("fdopen", (long)strlen(line));
	file = popen("cat f; pwd -P", "r");
	int lines = 0;
	while (fgets(line, sizeof line, file))
		lines++;
	CHECK(pclose(file) == 0 && strncmp(line, words[1], strlen(words[1])) == 0);
	tell("popen", lines);
	tell("system", system("test -s f && test ! -e none"));
	char name[] = "t-XXXXXX.c", directory[] = "d-XXXXXX";
	fd = mkstemps(name, 2);
	CHECK(fd >= 0 && write(fd, "1234", 4) == 4 && mkdtemp(directory) && access(name, F_OK) == 0);
	tell("mkstemps", strlen(name));
	glob_t found;
	CHECK(glob("*", 0, NULL, &found) == 0);
	tell("glob", (long)found.gl_pathc);
	globfree(&found);
	struct dirent **entries;
	tell("scandir", scandir(".", &entries, NULL, alphasort));
	CHECK(strcmp(entries[0]->d_name, ".") == 0);
	char *path = realpath("f", NULL);
	CHECK(path && strncmp(path, words[1], strlen(words[1])) == 0);
	struct statvfs space;
	tell("statvfs", statvfs("f", &space) == 0 && space.f_namemax == 255);
	int (*by_name)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_DEFAULT, "open");
	CHECK(by_name && (fd = by_name("f", O_RDONLY)) >= 0);
	tell("dlsym", read(fd, line, 3));
	tell("vfork", shares_memory());
	struct aiocb request = {.aio_fildes = fd, .aio_buf = line, .aio_nbytes = 4};
	const struct aiocb *all[] = {&request};
	CHECK(aio_read(&request) == 0);
	while (aio_error(&request) == EINPROGRESS)
		aio_suspend(all, 1, NULL);
	errno = aio_error(&request);
	tell("aio", aio_return(&request));
	CHECK(remove(directory) == 0 && remove("g") == 0);
	int walked = nftw(words[1], see, 10, FTW_PHYS);
	tell("nftw", walked < 0 ? walked : seen);
	char *roots[] = {words[1], NULL};
	FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	FTSENT *entry;
	seen = 0;
	while (walk && (entry = fts_read(walk))) {
		if (entry->fts_info == FTS_NS) {
			errno = entry->fts_errno;
			seen = -1;
			break;
		}
		seen++;
	}
	tell("fts", seen);
	return 0;
}
