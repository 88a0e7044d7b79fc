/* Threads share one volume, one file and its position; another one closes the volume under them. */
#define _GNU_SOURCE
#include "check.h"
#include <azekura.h>
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define TURNS 200
#define BYTES 512

static aze_volume *volume;
static int shared;
static atomic_int ready;

static void *work(void *argument)
{
	long me = (long)argument;
	char name[64], data[BYTES], back[BYTES];
	memset(data, 'a' + me, sizeof data);
	for (int turn = 0; turn < TURNS; turn++) {
		snprintf(name, sizeof name, "/t%ld-%d", me, turn);
		int fd = aze_open(volume, name, O_CREAT | O_RDWR, 0644);
		CHECK(fd >= 0 && aze_pwrite(fd, data, BYTES, turn) == BYTES && aze_pread(fd, back, BYTES, turn) == BYTES);
		CHECK(memcmp(data, back, BYTES) == 0 && aze_close(fd) == 0 && aze_unlink(volume, name) == 0);
		CHECK(aze_write(shared, data, BYTES) == BYTES);
		/* Each thread has an error of its own. */
		FAILS(aze_unlink(volume, name), ENOENT);
		CHECK(strstr(aze_last_error(), name) != NULL);
	}
	return NULL;
}

static void *until_closed(void *argument)
{
	char data[BYTES];
	int fd = *(int *)argument;
	do {
		ready++;
		errno = 0;
	} while (aze_pread(fd, data, BYTES, 0) == BYTES);
	CHECK(errno == EBADF || errno == EIO || errno == ESTALE);
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	char data[BYTES];
	volume = aze_open_volume("");
	CHECK(volume != NULL);
	shared = aze_open(volume, "/shared", O_CREAT | O_RDWR, 0644);
	CHECK(shared >= 0);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	/* No write through the shared position was lost or torn. */
	int counts[THREADS] = {0};
	for (int i = 0; i < THREADS * TURNS; i++) {
		CHECK(aze_pread(shared, data, BYTES, (off_t)i * BYTES) == BYTES);
		for (int at = 1; at < BYTES; at++)
			CHECK(data[at] == data[0]);
		counts[data[0] - 'a']++;
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(counts[i] == TURNS);
	aze_volume *second = aze_open_volume(NULL);
	int fd = aze_open(second, "/shared", O_RDONLY | O_DIRECT, 0);
	CHECK(second != NULL && fd >= 0);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, until_closed, &fd) == 0);
	while (ready < 50 * THREADS)
		sched_yield();
	CHECK(aze_close_volume(second) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(aze_pread(shared, data, BYTES, 0) == BYTES);
	CHECK(aze_close(shared) == 0 && aze_close_volume(volume) == 0);
	puts("all is well");
	return 0;
}
