/* Children of a program with a volume, and with threads that use it all the time: each connects anew. */
#include "check.h"
#include <azekura.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 12
#define THREADS 3

static aze_volume *volume;
static atomic_int stop;

static void *busy(void *argument)
{
	char name[64], data[4096] = "busy";
	snprintf(name, sizeof name, "/busy%ld", (long)argument);
	int fd = aze_open(volume, name, O_CREAT | O_RDWR, 0644);
	CHECK(fd >= 0);
	while (!stop)
		CHECK(aze_pwrite(fd, data, sizeof data, 0) == sizeof data && aze_pread(fd, data, sizeof data, 0) == sizeof data);
	CHECK(aze_close(fd) == 0);
	return NULL;
}

static void *in_child(void *argument)
{
	char name[64], data[16];
	for (int turn = 0; turn < 20; turn++) {
		snprintf(name, sizeof name, "/child%d-%ld-%d", (int)getpid(), (long)argument, turn);
		int fd = aze_open(volume, name, O_CREAT | O_RDWR, 0644);
		CHECK(fd >= 0 && aze_pwrite(fd, "child", 5, 0) == 5 && aze_pread(fd, data, 16, 0) == 5 && aze_close(fd) == 0);
	}
	return NULL;
}

static void child(int parents_fd, aze_dir *parents_dir, aze_queue *parents_queue, int deeper)
{
	char data[16];
	pthread_t threads[2];
	struct stat st;
	FAILS(aze_pread(parents_fd, data, 1, 0), EBADF);
	FAILS(aze_close(parents_fd), EBADF);
	CHECK(aze_stat(volume, "/parent", &st) == 0 && st.st_size == 6);
	/* A number of the parent's stays bad, also after this process has opened as many. */
	int fd = aze_open(volume, "/parent", O_RDONLY, 0);
	CHECK(fd >= 0 && fd != parents_fd && aze_read(fd, data, 16) == 6 && memcmp(data, "parent", 6) == 0);
	FAILS(aze_pread(parents_fd, data, 1, 0), EBADF);
	for (long i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, in_child, (void *)i) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	errno = 0;
	CHECK(aze_readdir(parents_dir) == NULL && errno == EBADF);
	FAILS(aze_closedir(parents_dir), EBADF);
	FAILS(aze_queue_pending(parents_queue), EBADF);
	FAILS(aze_queue_free(parents_queue), EBADF);
	aze_queue *queue = aze_queue_new(volume);
	struct aze_completion done;
	CHECK(queue != NULL && aze_queue_pread(queue, fd, data, 6, 0, 9) == 0);
	CHECK(aze_queue_wait(queue, &done, 1, -1) == 1 && done.tag == 9 && done.result == 6);
	if (deeper) {
		pid_t grandchild = fork();
		CHECK(grandchild >= 0);
		if (grandchild == 0) {
			FAILS(aze_pread(fd, data, 1, 0), EBADF);
			in_child((void *)7L);
			_exit(0);
		}
		int status;
		CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
	}
	CHECK(aze_queue_free(queue) == 0 && aze_close(fd) == 0 && aze_close_volume(volume) == 0);
}

int main(void)
{
	pthread_t threads[THREADS];
	char data[16];
	/* A run that hangs is a failure: the children must wait for nothing that a thread of the parent held. */
	alarm(120);
	volume = aze_open_volume(NULL);
	CHECK(volume != NULL);
	int fd = aze_open(volume, "/parent", O_CREAT | O_RDWR, 0644);
	aze_dir *dir = aze_opendir(volume, "/");
	aze_queue *queue = aze_queue_new(volume);
	CHECK(fd >= 0 && aze_write(fd, "parent", 6) == 6 && dir != NULL && queue != NULL);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, busy, (void *)i) == 0);
	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			alarm(60);
			child(fd, dir, queue, i == 0);
			/* exit(3) and not _exit(2): nothing that the library leaves behind may disturb the parent. */
			exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		aze_rewinddir(dir);
		CHECK(aze_pread(fd, data, 16, 0) == 6 && aze_readdir(dir) != NULL);
	}
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(aze_closedir(dir) == 0 && aze_queue_free(queue) == 0 && aze_close(fd) == 0 && aze_close_volume(volume) == 0);
	puts("all is well");
	return 0;
}
