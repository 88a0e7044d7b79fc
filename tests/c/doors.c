/* What programs do with descriptors and processes, in the directory of the first argument: through any door the same. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define THREADS 4
#define TURNS 25
#define ROUNDS 4
#define BIG (5 << 20)
#define PAGE 4096

extern char **environ;
static const char *place;
static char in[300], out[300];

static void ended_well(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *work(void *argument)
{
	long me = (long)argument;
	char path[400], back[400];
	for (int turn = 0; turn < TURNS; turn++) {
		snprintf(path, sizeof path, "%s/w%ld-%d", place, me, turn);
		ssize_t length = strlen(path);
		int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0600);
		CHECK(fd >= 0 && write(fd, path, length) == length);
		CHECK(pread(fd, back, sizeof back, 0) == length && memcmp(path, back, length) == 0);
		CHECK(close(fd) == 0 && unlink(path) == 0);
	}
	return NULL;
}

/* A child with its files, its directory and, every other time, without an environment. */
static void spawned(int round)
{
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, in, O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	posix_spawn_file_actions_addclose(&actions, 3);
	posix_spawn_file_actions_addchdir_np(&actions, place);
	char *words[] = {"sh", "-c", "cat; /bin/pwd; ls in", NULL}, *none[] = {NULL};
	pid_t child;
	CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, words, round % 2 ? none : environ) == 0);
	ended_well(child);
	posix_spawn_file_actions_destroy(&actions);
	char line[400];
	FILE *file = fopen(out, "r");
	CHECK(file && fgets(line, sizeof line, file) && strcmp(line, "one two\n") == 0);
	CHECK(fgets(line, sizeof line, file) && strncmp(line, place, strlen(place)) == 0);
	CHECK(fgets(line, sizeof line, file) && strcmp(line, "in\n") == 0 && fclose(file) == 0);
}

static void vforked(void)
{
	int before = open(in, O_RDONLY);
	pid_t child = vfork();
	if (child == 0) {
		int fd = open(in, O_RDONLY);
		/* What the child closes and replaces stays the parent's. */
		if (fd < 0 || dup2(fd, 0) != 0 || close(fd) != 0 || close(before) != 0)
			_exit(8);
		execlp("grep", "grep", "-q", "two", (char *)NULL);
		_exit(9);
	}
	ended_well(child);
	char word[4];
	CHECK(read(before, word, 4) == 4 && memcmp(word, "one ", 4) == 0 && close(before) == 0);
}

/* A position is the description's: parent, child and grandchild move it. */
static void forked(void)
{
	int fd = open(in, O_RDONLY);
	char word[4];
	pid_t child = fork();
	if (child == 0) {
		CHECK(read(fd, word, 3) == 3);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			CHECK(read(fd, word, 1) == 1 && word[0] == ' ');
			_exit(0);
		}
		ended_well(grandchild);
		CHECK(lseek(fd, 0, SEEK_CUR) == 4);
		_exit(0);
	}
	ended_well(child);
	CHECK(read(fd, word, 3) == 3 && memcmp(word, "two", 3) == 0 && close(fd) == 0);
}

/* A descriptor that another process gets by a socket. */
static void passed(void)
{
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	pid_t child = fork();
	if (child == 0) {
		CHECK(recvmsg(ends[1], &message, 0) == 1);
		int fd;
		char word[4];
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
		CHECK(read(fd, word, 3) == 3 && memcmp(word, "two", 3) == 0);
		_exit(0);
	}
	int fd = open(in, O_RDONLY);
	CHECK(lseek(fd, 4, SEEK_SET) == 4);
	memset(&control, 0, sizeof control);
	control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	CHECK(sendmsg(ends[0], &message, 0) == 1 && close(fd) == 0);
	ended_well(child);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Descriptors are closed by number, in a range, and replaced; others with these numbers are not taken for them. */
static void closed(void)
{
	char word[8];
	int kept = open(in, O_RDONLY);
	CHECK(kept >= 0);
	closefrom(kept + 1);
	CHECK(read(kept, word, 3) == 3);
	for (int fd = kept + 1; fd < 70000; fd++)
		close(fd);
	CHECK(access(in, R_OK) == 0 && lseek(kept, 0, SEEK_CUR) == 3);
	CHECK(dup2(kept, 500) == 500 && close(kept) == 0 && read(500, word, 4) == 4);
	CHECK((fcntl(500, F_GETFL) & O_ACCMODE) == O_RDONLY);
	FAILS(read(kept, word, 1), EBADF);
	int ends[2];
	CHECK(pipe(ends) == 0 && dup2(ends[0], 500) == 500 && write(ends[1], "pipe", 4) == 4);
	CHECK(read(500, word, 8) == 4 && memcmp(word, "pipe", 4) == 0);
	CHECK(close_range(500, 500, 0) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
	FAILS(lseek(500, 0, SEEK_CUR), EBADF);
}

static void moved(void)
{
	char here[400];
	int directory = open(place, O_RDONLY | O_DIRECTORY);
	CHECK(chdir(place) == 0 && getcwd(here, sizeof here) && access("in", F_OK) == 0);
	CHECK(strcmp(here, place) == 0);
	CHECK(chdir("/usr") == 0 && getcwd(here, sizeof here) && strcmp(here, "/usr") == 0 && access("bin", F_OK) == 0);
	CHECK(fchdir(directory) == 0 && access("in", F_OK) == 0 && chdir("..") == 0 && access("in", F_OK) != 0);
	CHECK(fchdir(directory) == 0 && access("../../../../../../../../../../../../usr/bin", F_OK) == 0 && chdir("/") == 0);
	CHECK(faccessat(directory, "in", F_OK, 0) == 0 && close(directory) == 0);
}

/* More than one request moves, in parts that do not fit them. */
static void large(void)
{
	char *data = malloc(BIG), *back = malloc(BIG);
	for (int at = 0; at < BIG; at++)
		data[at] = at * 7 + at / 4096 + (at >> 20) * 31;
	struct iovec parts[] = {{data, 3}, {data + 3, 0}, {data + 3, BIG - 1000}, {data + BIG - 997, 997}};
	struct iovec backs[] = {{back, BIG / 2}, {back + BIG / 2, BIG / 2}};
	int fd = open(out, O_CREAT | O_RDWR | O_TRUNC, 0600);
	CHECK(writev(fd, parts, 4) == BIG && preadv(fd, backs, 2, 0) == BIG && memcmp(data, back, BIG) == 0);
	CHECK(pread(fd, back, BIG, BIG - 5) == 5 && read(fd, back, 1) == 0);
	CHECK(pwrite(fd, "xyz", 3, 1) == 3 && pread(fd, back, 5, 0) == 5 && memcmp(back + 1, "xyz", 3) == 0);
	/* To a pipe and back: the kernel's sendfile(2), through the library. */
	int ends[2];
	off_t from = 1;
	CHECK(pipe(ends) == 0 && sendfile(ends[1], fd, &from, 3) == 3 && from == 4);
	CHECK(read(ends[0], back, 10) == 3 && memcmp(back, "xyz", 3) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
	char *seen = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(seen != MAP_FAILED && memcmp(seen + 4, data + 4, BIG - 4) == 0);
	seen[0] = 'p';
	CHECK(pread(fd, back, 1, 0) == 1 && back[0] == data[0] && munmap(seen, BIG) == 0 && close(fd) == 0);
	free(data);
	free(back);
}

/* Shared mappings: what is stored is read, and what is written is seen, also by other processes, and after they have been killed. */
static void mapped(void)
{
	char path[400], back[8];
	int status;
	snprintf(path, sizeof path, "%s/mapped", place);
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
	CHECK(ftruncate(fd, 3 * PAGE) == 0 && pwrite(fd, "before", 6, PAGE) == 6);
	char *seen = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, PAGE);
	CHECK(seen != MAP_FAILED && memcmp(seen, "before", 6) == 0);
	memcpy(seen, "stored", 6);
	CHECK(pread(fd, back, 6, PAGE) == 6 && memcmp(back, "stored", 6) == 0);
	CHECK(pwrite(fd, "W", 1, PAGE + 2) == 1 && memcmp(seen, "stWred", 6) == 0);
	pid_t child = fork();
	if (child == 0) {
		seen[PAGE] = 'c';
		raise(SIGKILL);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	CHECK(seen[PAGE] == 'c' && pread(fd, back, 1, 2 * PAGE) == 1 && back[0] == 'c');
	/* By another open, for reading only at first. */
	int other = open(path, O_RDWR);
	char *again = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, other, 0);
	CHECK(again != MAP_FAILED && memcmp(again + PAGE, "stWred", 6) == 0);
	seen[1] = 'T';
	CHECK(again[PAGE + 1] == 'T' && msync(seen, PAGE, MS_SYNC) == 0 && mprotect(again, 3 * PAGE, PROT_READ | PROT_WRITE) == 0);
	again[0] = 'a';
	CHECK(pread(fd, back, 1, 0) == 1 && back[0] == 'a');
	/* A shorter file loses what lay behind its end, and a longer one has zeros there. */
	CHECK(ftruncate(fd, PAGE) == 0 && ftruncate(fd, 4 * PAGE) == 0 && seen[0] == 0 && seen[PAGE] == 0);
	again = mremap(again, 3 * PAGE, 4 * PAGE, MREMAP_MAYMOVE);
	CHECK(again != MAP_FAILED && pwrite(fd, "end", 3, 4 * PAGE - 3) == 3 && memcmp(again + 4 * PAGE - 3, "end", 3) == 0);
	CHECK(close(fd) == 0 && close(other) == 0);
	seen[7] = '7';
	CHECK(munmap(seen, 2 * PAGE) == 0 && munmap(again, 4 * PAGE) == 0);
	CHECK((fd = open(path, O_RDONLY)) >= 0 && pread(fd, back, 1, PAGE + 7) == 1 && back[0] == '7');
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
	CHECK(close(fd) == 0 && unlink(path) == 0);
}

/* What pjdfstest has found to differ. */
static void refused(void)
{
	FAILS(syscall(SYS_rename, in, NULL), EFAULT);
	FAILS(syscall(SYS_rename, NULL, in), EFAULT);
	FAILS(syscall(SYS_link, NULL, in), EFAULT);
	FAILS(open(place, O_RDONLY | O_TRUNC), EISDIR);
}

static void ready(void)
{
	int ends[2], fd = open(in, O_RDONLY);
	CHECK(pipe(ends) == 0);
	struct pollfd set[] = {{fd, POLLIN | POLLOUT, 0}, {ends[0], POLLIN, 0}, {-1, POLLIN, 0}};
	CHECK(poll(set, 3, -1) == 1 && set[0].revents == (POLLIN | POLLOUT) && set[1].revents == 0 && set[0].fd == fd);
	CHECK(write(ends[1], "x", 1) == 1 && poll(set, 3, -1) == 2 && set[1].revents == POLLIN);
	fd_set reads, writes;
	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(fd, &reads);
	FD_SET(ends[0], &reads);
	FD_SET(fd, &writes);
	CHECK(select(600, &reads, &writes, NULL, NULL) == 3 && FD_ISSET(fd, &reads) && FD_ISSET(ends[0], &reads));
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(fd) == 0);
}

static void on_alarm(int number)
{
	(void)number;
}

/* A lock that is waited for: a signal ends the wait, and the lock's end gives it. */
static void waited(void)
{
	int ends[2], gone[2];
	char byte;
	CHECK(pipe(ends) == 0 && pipe(gone) == 0);
	pid_t child = fork();
	if (child == 0) {
		int fd = open(out, O_RDWR);
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		CHECK(fcntl(fd, F_SETLK, &lock) == 0 && write(ends[1], "l", 1) == 1 && read(gone[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(read(ends[0], &byte, 1) == 1);
	int fd = open(out, O_RDWR);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	FAILS(fcntl(fd, F_SETLK, &lock), EAGAIN);
	CHECK(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_pid == child);
	struct sigaction action = {.sa_handler = on_alarm};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
	alarm(1);
	FAILS(fcntl(fd, F_SETLKW, &lock), EINTR);
	CHECK(write(gone[1], "g", 1) == 1 && fcntl(fd, F_SETLKW, &lock) == 0);
	ended_well(child);
	/* Any close(2) of the file ends this process's locks on it. */
	CHECK(close(open(out, O_RDONLY)) == 0);
	child = fork();
	if (child == 0)
		_exit(fcntl(open(out, O_RDWR), F_SETLK, &lock) == 0 ? 0 : 1);
	ended_well(child);
	CHECK(close(fd) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0 && close(gone[0]) == 0 && close(gone[1]) == 0);
}

int main(int count, char **words)
{
	CHECK(count == 2);
	place = words[1];
	snprintf(in, sizeof in, "%s/in", place);
	snprintf(out, sizeof out, "%s/out", place);
	FILE *file = fopen(in, "w");
	CHECK(file && fputs("one two\n", file) >= 0 && fclose(file) == 0);
	pthread_t threads[THREADS];
	for (long me = 0; me < THREADS; me++)
		CHECK(pthread_create(&threads[me], NULL, work, (void *)me) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		spawned(round);
		vforked();
		forked();
		passed();
	}
	for (int me = 0; me < THREADS; me++)
		CHECK(pthread_join(threads[me], NULL) == 0);
	large();
	mapped();
	refused();
	ready();
	waited();
	moved();
	closed();
	puts("the same");
	return 0;
}
