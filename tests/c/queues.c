/* Operations that go on by themselves: picked up by polling, by waiting, and by an event loop. */
#include "check.h"
#include <azekura.h>
#include <poll.h>

#define OPERATIONS 64
#define BYTES 100000

static char data[OPERATIONS][BYTES], back[OPERATIONS][BYTES];

int main(void)
{
	aze_volume *volume = aze_open_volume(NULL);
	CHECK(volume != NULL);
	aze_queue *queue = aze_queue_new(volume);
	CHECK(queue != NULL);
	struct aze_completion done[OPERATIONS];
	struct stat st;
	CHECK(aze_queue_poll(queue, done, OPERATIONS) == 0);
	CHECK(aze_queue_wait(queue, done, OPERATIONS, -1) == 0);
	FAILS(aze_queue_poll(queue, done, 0), EINVAL);
	FAILS(aze_queue_poll(queue, NULL, 1), EFAULT);
	FAILS(aze_queue_pread(queue, -1, back, 1, 0, 0), EBADF);
	FAILS(aze_queue_stat(queue, "/q", NULL, 0), EFAULT);
	CHECK(aze_queue_open(queue, "/q", O_CREAT | O_RDWR, 0644, 1) == 0);
	CHECK(aze_queue_wait(queue, done, 1, -1) == 1 && done[0].tag == 1 && done[0].error == 0 && done[0].result >= 0);
	int fd = (int)done[0].result;
	CHECK(aze_queue_open(queue, "/none", O_RDONLY, 0, 2) == 0);
	CHECK(aze_queue_wait(queue, done, 1, 30000) == 1 && done[0].tag == 2 && done[0].error == ENOENT && done[0].result == -1);
	/* One outcome alone makes the descriptor readable, until it is picked up. */
	struct pollfd event = {.fd = aze_queue_fd(queue), .events = POLLIN};
	CHECK(event.fd >= 0 && poll(&event, 1, 0) == 0 && aze_queue_fsync(queue, fd, 5) == 0);
	CHECK(poll(&event, 1, 30000) == 1 && aze_queue_poll(queue, done, 1) == 1 && done[0].tag == 5);
	CHECK(poll(&event, 1, 0) == 0);
	for (int i = 0; i < OPERATIONS; i++) {
		memset(data[i], 'A' + i % 26, BYTES);
		CHECK(aze_queue_pwrite(queue, fd, data[i], BYTES, (off_t)i * BYTES, 100 + i) == 0);
	}
	/* By an event loop: the program itself does nothing but wait for the descriptor. */
	int seen[OPERATIONS] = {0}, count = 0;
	while (count < OPERATIONS) {
		CHECK(poll(&event, 1, 30000) == 1);
		int some = aze_queue_poll(queue, done, 5);
		CHECK(some > 0);
		for (int i = 0; i < some; i++) {
			CHECK(done[i].error == 0 && done[i].result == BYTES && seen[done[i].tag - 100]++ == 0);
			count++;
		}
	}
	CHECK(poll(&event, 1, 0) == 0 && aze_queue_pending(queue) == 0);
	CHECK(aze_queue_fsync(queue, fd, 3) == 0);
	CHECK(aze_queue_wait(queue, done, OPERATIONS, -1) == 1 && done[0].tag == 3 && done[0].error == 0);
	CHECK(aze_queue_stat(queue, "/q", &st, 4) == 0);
	CHECK(aze_queue_wait(queue, done, OPERATIONS, -1) == 1 && done[0].tag == 4 && st.st_size == OPERATIONS * BYTES);
	for (int i = 0; i < OPERATIONS; i++)
		CHECK(aze_queue_pread(queue, fd, back[i], BYTES, (off_t)i * BYTES, i) == 0);
	for (count = 0; count < OPERATIONS;) {
		int some = aze_queue_wait(queue, done, OPERATIONS, -1);
		CHECK(some > 0);
		for (int i = 0; i < some; i++, count++) {
			CHECK(done[i].result == BYTES && memcmp(back[done[i].tag], data[done[i].tag], BYTES) == 0);
		}
	}
	/* What is under way when the queue goes is waited for, and nothing writes to the buffers afterwards. */
	for (int i = 0; i < OPERATIONS; i++)
		CHECK(aze_queue_pread(queue, fd, back[i], BYTES, 0, i) == 0);
	CHECK(aze_queue_free(queue) == 0);
	memset(back, 0, sizeof back);
	/* A volume that is closed under a queue leaves no operation without an outcome. */
	aze_volume *second = aze_open_volume(NULL);
	queue = aze_queue_new(second);
	int other = aze_open(second, "/q", O_RDONLY, 0);
	CHECK(second != NULL && queue != NULL && other >= 0);
	for (int i = 0; i < OPERATIONS; i++)
		CHECK(aze_queue_pread(queue, other, back[i], BYTES, 0, i) == 0);
	CHECK(aze_close_volume(second) == 0);
	for (count = 0; count < OPERATIONS;) {
		int some = aze_queue_poll(queue, done, OPERATIONS);
		CHECK(some > 0);
		count += some;
	}
	CHECK(aze_queue_free(queue) == 0);
	CHECK(aze_close(fd) == 0 && aze_close_volume(volume) == 0);
	puts("all is well");
	return 0;
}
