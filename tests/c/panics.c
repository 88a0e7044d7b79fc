/* A defect in the library gives EIO, and its program lives. */
#include "check.h"
#include <azekura.h>
#include <pthread.h>

int aze_test_panic(const aze_volume *volume, int place);

static void *wait_for_a_lock(void *fd)
{
	/* Another open has the lock: this waits until the connection ends. */
	FAILS(aze_flock(*(int *)fd, LOCK_EX), EIO);
	return NULL;
}

int main(void)
{
	struct stat st;
	struct aze_completion done;
	aze_volume *other = aze_open_volume(NULL);
	CHECK(other != NULL);
	int holder = aze_open(other, "/f", O_CREAT | O_RDWR, 0644);
	CHECK(holder >= 0 && aze_flock(holder, LOCK_EX) == 0);
	aze_volume *volume = aze_open_volume(NULL);
	CHECK(volume != NULL);
	FAILS(aze_test_panic(volume, 0), EIO);
	CHECK(strstr(aze_last_error(), "defect") != NULL);
	CHECK(aze_stat(volume, "/f", &st) == 0);
	for (int place = 1; place <= 2; place++) {
		int fd = aze_open(volume, "/f", O_RDWR, 0);
		aze_queue *queue = aze_queue_new(volume);
		CHECK(fd >= 0 && queue != NULL);
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, wait_for_a_lock, &fd) == 0);
		FAILS(aze_test_panic(volume, place), EIO);
		CHECK(pthread_join(thread, NULL) == 0);
		FAILS(aze_stat(volume, "/f", &st), EIO);
		FAILS(aze_fstat(fd, &st), EIO);
		FAILS(aze_queue_fsync(queue, fd, 1), EIO);
		CHECK(aze_queue_poll(queue, &done, 1) == 0);
		CHECK(aze_queue_free(queue) == 0);
		/* The other connection is not concerned, and a new one can be made. */
		CHECK(aze_fstat(holder, &st) == 0);
		CHECK(aze_close_volume(volume) == 0);
		volume = aze_open_volume(NULL);
		CHECK(volume != NULL && aze_stat(volume, "/f", &st) == 0);
	}
	CHECK(aze_close_volume(volume) == 0 && aze_close_volume(other) == 0);
	puts("all is well");
	return 0;
}
