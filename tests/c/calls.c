/* Every call of azekura.h once or more, and the errno of those that fail. */
#define _GNU_SOURCE
#include "check.h"
#include <azekura.h>
#include <sys/xattr.h>
#include <unistd.h>

static aze_volume *volume;

static void files(void)
{
	char buffer[64] = {0};
	struct stat st;
	int fd = aze_open(volume, "/f", O_CREAT | O_EXCL | O_RDWR, 0666);
	CHECK(fd >= 0);
	FAILS(aze_open(volume, "/f", O_CREAT | O_EXCL | O_RDWR, 0666), EEXIST);
	CHECK(aze_write(fd, "hello ", 6) == 6 && aze_write(fd, "world", 5) == 5 && aze_write(fd, "", 0) == 0);
	CHECK(aze_lseek(fd, 0, SEEK_CUR) == 11 && aze_lseek(fd, -5, SEEK_END) == 6);
	CHECK(aze_read(fd, buffer, sizeof buffer) == 5 && memcmp(buffer, "world", 5) == 0);
	CHECK(aze_read(fd, buffer, sizeof buffer) == 0);
	CHECK(aze_pread(fd, buffer, 5, 0) == 5 && memcmp(buffer, "hello", 5) == 0);
	CHECK(aze_pread(fd, buffer, 5, 100) == 0);
	CHECK(aze_pwrite(fd, "HELLO", 5, 0) == 5 && aze_pwrite(fd, NULL, 0, 0) == 0);
	CHECK(aze_lseek(fd, 0, SEEK_CUR) == 11);
	FAILS(aze_lseek(fd, -1, SEEK_SET), EINVAL);
	FAILS(aze_lseek(fd, 0, 99), EINVAL);
	FAILS(aze_pread(fd, buffer, 5, -1), EINVAL);
	FAILS(aze_pread(fd, NULL, 5, 0), EFAULT);
	FAILS(aze_pread(fd, buffer, (size_t)-1, 0), EINVAL);
	CHECK(aze_fsync(fd) == 0 && aze_fstat(fd, &st) == 0);
	CHECK(st.st_size == 11 && S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_uid == geteuid() && st.st_ino > 0);
	CHECK((st.st_mode & 0777) == 0644);
	CHECK(aze_fchmod(fd, 0600) == 0 && aze_fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0600);
	CHECK(aze_fchown(fd, -1, -1) == 0);
	struct timespec times[2] = {{.tv_sec = 5, .tv_nsec = 6}, {.tv_nsec = UTIME_OMIT}};
	CHECK(aze_futimens(fd, times) == 0 && aze_fstat(fd, &st) == 0 && st.st_atim.tv_sec == 5 && st.st_atim.tv_nsec == 6);
	CHECK(st.st_mtim.tv_sec > 1000000);
	CHECK(aze_ftruncate(fd, 3) == 0 && aze_fstat(fd, &st) == 0 && st.st_size == 3);
	FAILS(aze_ftruncate(fd, -3), EINVAL);
	CHECK(aze_pwrite(fd, "x", 1, 1 << 21) == 1 && aze_lseek(fd, 4096, SEEK_DATA) == 1 << 21);
	FAILS(aze_lseek(fd, 1 << 22, SEEK_DATA), ENXIO);
	CHECK(aze_fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 8192) == 0);
	FAILS(aze_fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
	int other = aze_open(volume, "f", O_RDONLY, 0);
	CHECK(other >= 0 && aze_flock(fd, LOCK_EX) == 0);
	FAILS(aze_flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
	FAILS(aze_flock(other, 99), EINVAL);
	CHECK(aze_flock(fd, LOCK_UN) == 0 && aze_flock(other, LOCK_SH) == 0);
	FAILS(aze_write(other, "x", 1), EBADF);
	FAILS(aze_ftruncate(other, 0), EINVAL);
	CHECK(aze_close(other) == 0 && aze_close(fd) == 0);
	FAILS(aze_close(fd), EBADF);
	FAILS(aze_read(fd, buffer, 1), EBADF);
	FAILS(aze_read(-1, buffer, 1), EBADF);
	FAILS(aze_read(0, buffer, 1), EBADF);
}

static void opens(void)
{
	char buffer[16];
	FAILS(aze_open(volume, "/none", O_RDONLY, 0), ENOENT);
	FAILS(aze_open(volume, "", O_RDONLY, 0), ENOENT);
	FAILS(aze_open(volume, NULL, O_RDONLY, 0), EFAULT);
	FAILS(aze_open(NULL, "/f", O_RDONLY, 0), EFAULT);
	FAILS(aze_open(volume, "/f/x", O_RDONLY, 0), ENOTDIR);
	FAILS(aze_open(volume, "/f/", O_RDONLY, 0), ENOTDIR);
	FAILS(aze_open(volume, "/new/", O_CREAT | O_WRONLY, 0644), EISDIR);
	FAILS(aze_open(volume, "/", O_WRONLY, 0), EISDIR);
	FAILS(aze_open(volume, "/f", O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
	FAILS(aze_open(volume, "/", O_TMPFILE | O_RDWR, 0644), EINVAL);
	char name[300];
	memset(name, 'n', sizeof name);
	name[sizeof name - 1] = 0;
	FAILS(aze_open(volume, name, O_CREAT | O_WRONLY, 0644), ENAMETOOLONG);
	int dir = aze_open(volume, "/", O_RDONLY | O_DIRECTORY, 0);
	CHECK(dir >= 0 && aze_fsync(dir) == 0);
	FAILS(aze_read(dir, buffer, 1), EISDIR);
	CHECK(aze_close(dir) == 0);
	int fd = aze_open(volume, "/log", O_CREAT | O_WRONLY | O_APPEND | O_SYNC, 0644);
	CHECK(fd >= 0 && aze_write(fd, "one", 3) == 3 && aze_lseek(fd, 0, SEEK_SET) == 0 && aze_write(fd, "two", 3) == 3);
	CHECK(aze_lseek(fd, 0, SEEK_CUR) == 6 && aze_close(fd) == 0);
	fd = aze_open(volume, "/log", O_CREAT | O_RDWR, 0644);
	CHECK(fd >= 0 && aze_read(fd, buffer, 16) == 6 && memcmp(buffer, "onetwo", 6) == 0 && aze_close(fd) == 0);
	fd = aze_open(volume, "/log", O_WRONLY | O_TRUNC, 0);
	struct stat st;
	CHECK(fd >= 0 && aze_fstat(fd, &st) == 0 && st.st_size == 0 && aze_close(fd) == 0);
	CHECK(aze_umask(volume, 077) == 022);
	fd = aze_open(volume, "/private", O_CREAT | O_WRONLY, 0666);
	CHECK(fd >= 0 && aze_fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0600 && aze_close(fd) == 0);
	CHECK(aze_umask(volume, 022) == 077);
}

static void names(void)
{
	char buffer[64];
	struct stat st, other;
	CHECK(aze_mkdir(volume, "/d", 0777) == 0 && aze_stat(volume, "/d/", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK((st.st_mode & 0777) == 0755 && st.st_nlink == 2);
	FAILS(aze_mkdir(volume, "/d", 0777), EEXIST);
	FAILS(aze_mkdir(volume, "/no/d", 0777), ENOENT);
	CHECK(aze_mkdir(volume, "/d/e/", 0700) == 0 && aze_stat(volume, "/d", &st) == 0 && st.st_nlink == 3);
	CHECK(aze_mkdir_private(volume, "/own", 0777) == 0 && aze_stat(volume, "/own", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK((st.st_mode & 0777) == 0755 && aze_mkdir(volume, "/own/d", 0700) == 0);
	FAILS(aze_mkdir_private(volume, "/own", 0777), EEXIST);
	FAILS(aze_mkdir_private(volume, "/no/d", 0777), ENOENT);
	FAILS(aze_rmdir(volume, "/d"), ENOTEMPTY);
	FAILS(aze_rmdir(volume, "/d/e/."), EINVAL);
	FAILS(aze_rmdir(volume, "/f"), ENOTDIR);
	FAILS(aze_unlink(volume, "/d"), EISDIR);
	FAILS(aze_unlink(volume, "/f/"), ENOTDIR);
	FAILS(aze_unlink(volume, "/none"), ENOENT);
	CHECK(aze_symlink(volume, "../f", "/d/s") == 0 && aze_lstat(volume, "/d/s", &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(aze_stat(volume, "/d/s", &st) == 0 && S_ISREG(st.st_mode) && st.st_size == (1 << 21) + 1);
	CHECK(aze_readlink(volume, "/d/s", buffer, sizeof buffer) == 4 && memcmp(buffer, "../f", 4) == 0);
	CHECK(aze_readlink(volume, "/d/s", buffer, 2) == 2);
	FAILS(aze_readlink(volume, "/f", buffer, sizeof buffer), EINVAL);
	FAILS(aze_readlink(volume, "/d/s", buffer, 0), EINVAL);
	FAILS(aze_open(volume, "/d/s", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
	FAILS(aze_symlink(volume, "", "/d/t"), ENOENT);
	CHECK(aze_symlink(volume, "loop", "/loop") == 0);
	FAILS(aze_stat(volume, "/loop", &st), ELOOP);
	CHECK(aze_link(volume, "/f", "/d/l") == 0 && aze_stat(volume, "/d/l", &st) == 0 && st.st_nlink == 2);
	CHECK(aze_stat(volume, "/f", &other) == 0 && st.st_ino == other.st_ino);
	FAILS(aze_link(volume, "/f", "/d/l"), EEXIST);
	FAILS(aze_link(volume, "/d", "/x"), EPERM);
	CHECK(aze_rename(volume, "/d/l", "/d/m") == 0 && aze_stat(volume, "/d/m", &st) == 0);
	FAILS(aze_rename(volume, "/d/l", "/d/n"), ENOENT);
	FAILS(aze_rename(volume, "/d", "/d/e/d"), EINVAL);
	FAILS(aze_rename2(volume, "/d/m", "/d/s", RENAME_NOREPLACE), EEXIST);
	CHECK(aze_rename2(volume, "/d/m", "/d/s", RENAME_EXCHANGE) == 0);
	CHECK(aze_lstat(volume, "/d/m", &st) == 0 && S_ISLNK(st.st_mode));
	FAILS(aze_rename2(volume, "/d/m", "/d/s", RENAME_WHITEOUT), EINVAL);
	CHECK(aze_truncate(volume, "/f", 10) == 0 && aze_stat(volume, "/f", &st) == 0 && st.st_size == 10);
	FAILS(aze_truncate(volume, "/d", 10), EISDIR);
	FAILS(aze_truncate(volume, "/f", -1), EINVAL);
	CHECK(aze_chmod(volume, "/f", 0640) == 0 && aze_stat(volume, "/f", &st) == 0 && (st.st_mode & 0777) == 0640);
	CHECK(aze_chown(volume, "/f", geteuid(), -1) == 0 && aze_lchown(volume, "/d/m", -1, getegid()) == 0);
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 7}};
	CHECK(aze_utimens(volume, "/f", times) == 0 && aze_stat(volume, "/f", &st) == 0 && st.st_mtim.tv_sec == 7);
	CHECK(aze_lutimens(volume, "/d/m", times) == 0 && aze_lstat(volume, "/d/m", &st) == 0 && st.st_mtim.tv_sec == 7);
	CHECK(aze_utimens(volume, "/f", NULL) == 0 && aze_stat(volume, "/f", &st) == 0 && st.st_mtim.tv_sec > 1000000);
	times[0].tv_nsec = 1000000000;
	FAILS(aze_utimens(volume, "/f", times), EINVAL);
	FAILS(aze_stat(volume, "/f", NULL), EFAULT);
}

static void attributes(void)
{
	char buffer[64];
	CHECK(aze_setxattr(volume, "/f", "user.a", "value", 5, XATTR_CREATE) == 0);
	FAILS(aze_setxattr(volume, "/f", "user.a", "value", 5, XATTR_CREATE), EEXIST);
	FAILS(aze_setxattr(volume, "/f", "user.b", "value", 5, XATTR_REPLACE), ENODATA);
	FAILS(aze_setxattr(volume, "/f", "user.b", "value", 5, 99), EINVAL);
	CHECK(aze_getxattr(volume, "/f", "user.a", buffer, sizeof buffer) == 5 && memcmp(buffer, "value", 5) == 0);
	CHECK(aze_getxattr(volume, "/f", "user.a", NULL, 0) == 5);
	FAILS(aze_getxattr(volume, "/f", "user.a", buffer, 3), ERANGE);
	FAILS(aze_getxattr(volume, "/f", "user.b", buffer, 3), ENODATA);
	CHECK(aze_listxattr(volume, "/f", buffer, sizeof buffer) == 7 && strcmp(buffer, "user.a") == 0);
	CHECK(aze_removexattr(volume, "/f", "user.a") == 0 && aze_listxattr(volume, "/f", buffer, sizeof buffer) == 0);
	FAILS(aze_removexattr(volume, "/f", "user.a"), ENODATA);
}

static void directories(void)
{
	char name[32];
	int seen = 0, dots = 0;
	CHECK(aze_mkdir(volume, "/many", 0755) == 0);
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof name, "/many/f%d", i);
		int fd = aze_open(volume, name, O_CREAT | O_WRONLY, 0644);
		CHECK(fd >= 0 && aze_close(fd) == 0);
	}
	CHECK(aze_opendir(volume, "/none") == NULL && errno == ENOENT);
	CHECK(aze_opendir(volume, "/f") == NULL && errno == ENOTDIR);
	aze_dir *dir = aze_opendir(volume, "/many");
	CHECK(dir != NULL);
	struct dirent *entry;
	long middle = -1;
	char after[256] = "";
	while (errno = 0, (entry = aze_readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.') {
			dots++;
			CHECK(entry->d_type == DT_DIR);
			continue;
		}
		CHECK(entry->d_type == DT_REG && entry->d_ino > 0);
		if (seen == 1500)
			strcpy(after, entry->d_name);
		if (++seen == 1500)
			middle = aze_telldir(dir);
	}
	CHECK(errno == 0 && seen == 3000 && dots == 2);
	aze_seekdir(dir, middle);
	entry = aze_readdir(dir);
	CHECK(entry != NULL && strcmp(entry->d_name, after) == 0);
	aze_rewinddir(dir);
	entry = aze_readdir(dir);
	CHECK(entry != NULL && strcmp(entry->d_name, ".") == 0);
	CHECK(aze_closedir(dir) == 0);
}

int main(void)
{
	umask(022);
	CHECK(aze_open_volume("no-such-volume") == NULL && errno == ENOENT);
	CHECK(strstr(aze_last_error(), "no-such-volume") != NULL);
	CHECK(aze_open_volume("../x") == NULL && errno == EINVAL);
	volume = aze_open_volume(NULL);
	CHECK(volume != NULL && strlen(aze_volume_name(volume)) > 0);
	files();
	opens();
	names();
	attributes();
	directories();
	struct statvfs space;
	CHECK(aze_statvfs(volume, &space) == 0 && space.f_blocks > 0 && space.f_bfree <= space.f_blocks && space.f_namemax == 255);
	CHECK(aze_sync(volume) == 0);
	FAILS(aze_stat(volume, "/none", &(struct stat){0}), ENOENT);
	CHECK(strstr(aze_last_error(), "/none") != NULL && strcmp(aze_strerror(ENOENT), strerror(ENOENT)) == 0);
	CHECK(aze_version()[0] >= '0' && aze_version()[0] <= '9');
	int fd = aze_open(volume, "/f", O_RDONLY, 0);
	CHECK(fd >= 0 && aze_close_volume(volume) == 0);
	FAILS(aze_fsync(fd), EBADF);
	FAILS(aze_close_volume(NULL), EFAULT);
	puts("all is well");
	return 0;
}
