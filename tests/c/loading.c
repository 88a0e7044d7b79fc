/* A library is loaded again and again, and asked for the size of a file, while other threads make calls on that file. With -DLIBRARY, the
 * library itself. */
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS 3

long size_of(const char *path);

#ifdef LIBRARY
long size_of(const char *path)
{
	struct stat stat_of;
	return stat(path, &stat_of) == 0 ? stat_of.st_size : -1;
}
#else
static atomic_int is_over;
static const char *path;

static void *call(void *argument)
{
	char bytes[4];
	(void)argument;
	while (!is_over) {
		int fd = open(path, O_RDONLY);
		CHECK(fd >= 0 && read(fd, bytes, sizeof bytes) == 2 && close(fd) == 0);
	}
	return NULL;
}

int main(int count, char **words)
{
	CHECK(count == 4);
	path = words[1];
	pthread_t threads[THREADS];
	for (int index = 0; index < THREADS; index++)
		CHECK(pthread_create(&threads[index], NULL, call, NULL) == 0);
	for (int round = 0; round < atoi(words[3]); round++) {
		void *library = dlopen(words[2], RTLD_LAZY);
		CHECK(library);
		long (*size)(const char *) = (long (*)(const char *))dlsym(library, "size_of");
		CHECK(size && size(path) == 2 && dlclose(library) == 0);
	}
	is_over = 1;
	for (int index = 0; index < THREADS; index++)
		CHECK(pthread_join(threads[index], NULL) == 0);
	puts("seen each time");
	return 0;
}
#endif
