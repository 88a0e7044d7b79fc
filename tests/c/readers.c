/* Processes of one node, each a client of its own, open one file at once and read it: readers COUNT PATH TEXT */
#include "check.h"
#include <azekura.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int count = atoi(argv[1]), ready[2], go[2];
	size_t length = strlen(argv[3]);
	char byte, text[256];
	CHECK(count > 0 && length < sizeof text && pipe(ready) == 0 && pipe(go) == 0);
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid > 0)
			continue;
		close(go[1]);
		aze_volume *volume = aze_open_volume(NULL);
		CHECK(volume != NULL && write(ready[1], "r", 1) == 1);
		/* Until the parent has closed it. */
		CHECK(read(go[0], &byte, 1) == 0);
		int fd = aze_open(volume, argv[2], O_RDONLY, 0);
		CHECK(fd >= 0 && aze_read(fd, text, sizeof text) == (ssize_t)length && memcmp(text, argv[3], length) == 0);
		CHECK(aze_close(fd) == 0);
		CHECK(aze_close_volume(volume) == 0);
		_exit(0);
	}
	for (int i = 0; i < count; i++)
		CHECK(read(ready[0], &byte, 1) == 1);
	close(go[1]);
	for (int i = 0; i < count; i++) {
		int status;
		CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	puts("all is well");
	return 0;
}
