/*
 * chfs.h - the interface of CHFS (https://github.com/otatebe/chfs) on an Azekura volume
 *
 * For programs that were written for CHFS, such as the CHFS back ends of IOR, mdtest and io500: they are compiled and linked
 * with this instead. Programs of your own have azekura.h. What differs from CHFS stands in docs/c.md.
 *
 * Functions give -1 and set errno when they fail, also before chfs_init() and after chfs_term(): ENOTCONN.
 */
#ifndef AZEKURA_CHFS_H
#define AZEKURA_CHFS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stat;

/* What CHFS lets callers add to flags and modes: accepted, and ignored. */
#define CHFS_O_CACHE (1 << 28)
#define CHFS_S_IFREP (4 << 28)

/* server names a volume; if NULL or "", the environment variable CHFS_SERVER does, else the volume meant is AZE_VOLUME or the
 * only one. A second call does nothing and gives 0. */
int chfs_init(const char *server);
int chfs_initialized(void);
/* Makes durable what was written, as far as the volume promises it, and ends the connection; files that are open fail. */
int chfs_term(void);
int chfs_term_without_sync(void);
/* Number of servers. */
int chfs_size(void);
const char *chfs_version(void);

/* May be called before chfs_init(). The chunk size counts for files made from then on: rounded up to a power of two from 64 KiB
 * to 16 MiB. The others are accepted, and have no effect. */
void chfs_set_chunk_size(int chunk_size);
void chfs_set_buf_size(int buf_size);
void chfs_set_async_access(int enable);
void chfs_set_rdma_thresh(size_t thresh);
void chfs_set_rpc_timeout_msec(int timeout);
void chfs_set_node_list_cache_timeout(int timeout);
void chfs_set_stagein_buf_size(int buf_size);

/* Opens a file, and makes it before if it is not there: never an error because it exists, never truncated. All descriptors are for
 * reading and writing, whatever flags says. */
int chfs_create(const char *path, int32_t flags, mode_t mode);
int chfs_create_chunk_size(const char *path, int32_t flags, mode_t mode, int chunk_size);
int chfs_open(const char *path, int32_t flags);
int chfs_close(int fd);

/* Never short, but at the end of the file. */
ssize_t chfs_pwrite(int fd, const void *buf, size_t size, off_t offset);
ssize_t chfs_write(int fd, const void *buf, size_t size);
ssize_t chfs_pread(int fd, void *buf, size_t size, off_t offset);
ssize_t chfs_read(int fd, void *buf, size_t size);
off_t chfs_seek(int fd, off_t off, int whence);
int chfs_fsync(int fd);

int chfs_truncate(const char *path, off_t len);
int chfs_unlink(const char *path);
int chfs_mkdir(const char *path, mode_t mode);
int chfs_rmdir(const char *path);
int chfs_stat(const char *path, struct stat *st);
/* Calls filler for each entry but "." and "..", until it gives something other than 0. */
int chfs_readdir(const char *path, void *buf, int (*filler)(void *, const char *, const struct stat *, off_t));
/* The same for the entries that one server has: 0 to chfs_size() - 1. */
int chfs_readdir_index(const char *path, int index, void *buf,
	int (*filler)(void *, const char *, const struct stat *, off_t));
int chfs_symlink(const char *target, const char *path);
/* Gives the target's length; a NUL follows if there is room. */
int chfs_readlink(const char *path, char *buf, size_t size);

void chfs_sync(void);
/* Copies a file, directory or symbolic link of this machine's file systems to the same path in the volume, with the directories
 * above it; of a directory itself only, not what is in it. */
int chfs_stagein(const char *path);

#ifdef __cplusplus
}
#endif

#endif
