/*
 * azekura.h - files of an Azekura volume, without a mount
 *
 * Link with -lazekura (pkg-config azekura). See azekura(3).
 *
 * Errors. A function that fails gives -1, or a null pointer, and sets errno as the system call of its name does;
 * aze_last_error() has a sentence about it. EFAULT stands for a null pointer where there must be none, EIO also for a defect
 * in the library: the connection concerned has ended then, and the program goes on.
 *
 * Blocking. Functions block until the servers have answered: up to 10 s where one does not answer, longer only while servers
 * say that they are starting, and for as long as it takes in aze_flock() and aze_queue_wait(). They do not return EINTR.
 *
 * Threads. Any number of threads may call any functions at the same time. One directory (aze_dir) is used by one thread
 * at a time. A pointer must not be used after, or while, it is closed.
 *
 * Fork. After fork(2) a volume may be used in the child: it connects anew at its first use there. Files, directories and
 * queues of the parent fail in the child with EBADF; the parent is not disturbed, whatever the child does.
 *
 * Paths begin at the root of the volume, with or without a slash. There is no current directory.
 */
#ifndef AZEKURA_H
#define AZEKURA_H

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Volumes */

typedef struct aze_volume aze_volume;

/*
 * Connects to a volume of this user on this machine: that of this name; without one (NULL or ""), the volume that the
 * environment variable AZE_VOLUME names, else the only one. NULL with ENOENT if there is none, EINVAL if it is unclear
 * which is meant, EACCES without its secret, EHOSTUNREACH if its servers do not answer.
 */
aze_volume *aze_open_volume(const char *name);

/* Ends the connection. Files, directories and queues of it fail from then on; directories and queues must still be freed. */
int aze_close_volume(aze_volume *volume);

/* The volume's name; valid until it is closed. */
const char *aze_volume_name(const aze_volume *volume);

/*
 * Sets which permission bits new files and directories do not get; gives the mask before. At first it is that of the process
 * (umask(2)) at the time of the connection.
 */
int aze_umask(const aze_volume *volume, mode_t mask);

int aze_statvfs(const aze_volume *volume, struct statvfs *statvfs);

/* Makes durable, as far as the volume promises it, all that any client has been told is done: as syncfs(2). */
int aze_sync(const aze_volume *volume);

/* Names: as the system calls */

int aze_stat(const aze_volume *volume, const char *path, struct stat *stat);
int aze_lstat(const aze_volume *volume, const char *path, struct stat *stat);
int aze_mkdir(const aze_volume *volume, const char *path, mode_t mode);
/* All that is made below such a directory is on one server, and no other one is asked for it: for a process whose files no
   other process looks at. */
int aze_mkdir_private(const aze_volume *volume, const char *path, mode_t mode);
int aze_rmdir(const aze_volume *volume, const char *path);
int aze_unlink(const aze_volume *volume, const char *path);
int aze_rename(const aze_volume *volume, const char *from, const char *to);
/* With flags of renameat2(2): RENAME_NOREPLACE or RENAME_EXCHANGE. */
int aze_rename2(const aze_volume *volume, const char *from, const char *to, unsigned int flags);
int aze_link(const aze_volume *volume, const char *path, const char *path_new);
int aze_symlink(const aze_volume *volume, const char *target, const char *path);
ssize_t aze_readlink(const aze_volume *volume, const char *path, char *buffer, size_t bytes);
int aze_truncate(const aze_volume *volume, const char *path, off_t length);
int aze_chmod(const aze_volume *volume, const char *path, mode_t mode);
int aze_chown(const aze_volume *volume, const char *path, uid_t uid, gid_t gid);
int aze_lchown(const aze_volume *volume, const char *path, uid_t uid, gid_t gid);
/* As utimensat(2): two times, access and modification, or NULL for now. */
int aze_utimens(const aze_volume *volume, const char *path, const struct timespec times[2]);
int aze_lutimens(const aze_volume *volume, const char *path, const struct timespec times[2]);
ssize_t aze_getxattr(const aze_volume *volume, const char *path, const char *name, void *value, size_t bytes);
ssize_t aze_listxattr(const aze_volume *volume, const char *path, char *names, size_t bytes);
int aze_setxattr(const aze_volume *volume, const char *path, const char *name, const void *value, size_t bytes, int flags);
int aze_removexattr(const aze_volume *volume, const char *path, const char *name);

/* Open files */

/*
 * As open(2). Gives a number that is no descriptor of the system; one that was closed is not used again soon. Flags that are not supported are refused with EINVAL: O_TMPFILE, O_PATH, O_ASYNC. Up to 1,048,576 files
 * can be open. mode counts with O_CREAT.
 */
int aze_open(const aze_volume *volume, const char *path, int flags, mode_t mode);
int aze_close(int fd);

/*
 * As pread(2) and pwrite(2), but never short: fewer bytes are read only at the end of the file, and all are written unless there is
 * an error. aze_pwrite() writes at the offset also with O_APPEND. A file of up to 64 KiB that was opened less than 1 s ago
 * may be read as it was at its open.
 */
ssize_t aze_pread(int fd, void *buffer, size_t bytes, off_t offset);
ssize_t aze_pwrite(int fd, const void *buffer, size_t bytes, off_t offset);

/* The same at the file's position. With O_APPEND up to 4 MiB are added in one piece, wherever the file ends by then. */
ssize_t aze_read(int fd, void *buffer, size_t bytes);
ssize_t aze_write(int fd, const void *buffer, size_t bytes);
off_t aze_lseek(int fd, off_t offset, int whence);

int aze_fsync(int fd);
int aze_ftruncate(int fd, off_t length);
int aze_fallocate(int fd, int mode, off_t offset, off_t length);
int aze_fstat(int fd, struct stat *stat);
int aze_fchmod(int fd, mode_t mode);
int aze_fchown(int fd, uid_t uid, gid_t gid);
int aze_futimens(int fd, const struct timespec times[2]);
/* As flock(2); also excludes programs that lock the file through a mount. */
int aze_flock(int fd, int operation);

/* Directories: as opendir(3) and readdir(3). An entry is valid until the next call with its directory. */

typedef struct aze_dir aze_dir;

aze_dir *aze_opendir(const aze_volume *volume, const char *path);
/* NULL at the end, and on errors: set errno to 0 before to tell them apart. */
struct dirent *aze_readdir(aze_dir *dir);
long aze_telldir(aze_dir *dir);
void aze_seekdir(aze_dir *dir, long place);
void aze_rewinddir(aze_dir *dir);
int aze_closedir(aze_dir *dir);

/*
 * Queues: operations that go on while the program does something else. The functions that begin one return at once; its
 * outcome is picked up later by aze_queue_poll() or aze_queue_wait(). Until then the buffer, or the place for attributes,
 * belongs to the operation. A path is copied. At most 65,536 operations are in a queue: EAGAIN.
 */

typedef struct aze_queue aze_queue;

struct aze_completion {
	uint64_t tag;   /* as given to the function that began it */
	int64_t result; /* as of the blocking function; -1 on errors */
	int error;      /* 0, or the error number */
	int reserved;
};

/* Starts one thread for all queues of the volume. */
aze_queue *aze_queue_new(const aze_volume *volume);
/* Waits for operations under way, whose outcomes are dropped. */
int aze_queue_free(aze_queue *queue);
int aze_queue_pread(const aze_queue *queue, int fd, void *buffer, size_t bytes, off_t offset, uint64_t tag);
int aze_queue_pwrite(const aze_queue *queue, int fd, const void *buffer, size_t bytes, off_t offset, uint64_t tag);
int aze_queue_fsync(const aze_queue *queue, int fd, uint64_t tag);
int aze_queue_open(const aze_queue *queue, const char *path, int flags, mode_t mode, uint64_t tag);
int aze_queue_stat(const aze_queue *queue, const char *path, struct stat *stat, uint64_t tag);
/* Outcomes that are there: their number, 0 if there is none yet. Does not block. */
int aze_queue_poll(const aze_queue *queue, struct aze_completion *completions, int most);
/* Blocks until there is one: 0 after timeout_ms (-1: never), or if nothing is under way. */
int aze_queue_wait(const aze_queue *queue, struct aze_completion *completions, int most, int timeout_ms);
/* A descriptor that poll(2) finds readable while there are outcomes; it must be neither read nor closed. */
int aze_queue_fd(const aze_queue *queue);
/* Operations under way. */
int aze_queue_pending(const aze_queue *queue);

/* What went wrong: the sentence of this thread's last failure, valid until its next one. Never NULL. */
const char *aze_last_error(void);
/* As strerror(3). */
const char *aze_strerror(int number);
/* Version of the library. */
const char *aze_version(void);

#ifdef __cplusplus
}
#endif

#endif
