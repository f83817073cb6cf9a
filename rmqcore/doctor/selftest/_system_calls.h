// The system calls by which a store reaches its disk, in front of the C library's: each asks before
// it goes to the kernel, and tells afterwards. That works where the module of this file is
// preloaded (LD_PRELOAD), on Linux; elsewhere nobody is asked.
#ifndef RMQ_SYSTEM_CALLS_H
#define RMQ_SYSTEM_CALLS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <errno.h>
#include <stddef.h>

// In the order of the names in _system_calls.pyx.
enum rmq_call {
    RMQ_MSYNC, RMQ_FSYNC, RMQ_FDATASYNC, RMQ_FALLOCATE, RMQ_MMAP, RMQ_MLOCK,
    RMQ_OPEN, RMQ_WRITE, RMQ_FTRUNCATE, RMQ_RENAME, RMQ_LINK, RMQ_UNLINK, RMQ_MKDIR
};

// What is to happen with a call: 0 it is made; above 0 it fails with that errno; below 0 it
// writes at most so many bytes.
typedef int (*rmq_ask)(int call, int fd, long long at, long long size, const char *path);
// What it was asked about, and what came of it: the call's result, -1 when it failed.
typedef void (*rmq_tell)(int call, int fd, long long at, long long size, long long result);

static rmq_ask rmq_asked;
static rmq_tell rmq_told;
static __thread int rmq_quiet;

// From now on these two hear of every call.
static inline void rmq_listen(rmq_ask ask, rmq_tell tell) {
    rmq_asked = ask;
    rmq_told = tell;
}

// While `quiet`, nobody hears of this thread's calls.
static inline void rmq_keep_quiet(int quiet) { rmq_quiet = quiet; }

#ifdef __linux__
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int rmq_before(int call, int fd, long long at, long long size, const char *path) {
    int answer = 0, error = errno;
    if (rmq_asked != NULL && !rmq_quiet) {
        rmq_quiet = 1;
        answer = rmq_asked(call, fd, at, size, path);
        rmq_quiet = 0;
    }
    errno = answer > 0 ? answer : error;
    return answer;
}

static inline long rmq_after(int call, int fd, long long at, long long size, long result) {
    int error = errno;
    if (rmq_told != NULL && !rmq_quiet) {
        rmq_quiet = 1;
        rmq_told(call, fd, at, size, result);
        rmq_quiet = 0;
    }
    errno = error;
    return result;
}

static inline size_t rmq_most(size_t size, int answer) {
    size_t most = answer < 0 ? (size_t) - (long long)answer : size;
    return most < size ? most : size;
}

// One function under the C library's name of it.
#define RMQ_AS(type, name, symbol, ...)                                                        \
    type name(__VA_ARGS__) __asm__(symbol) __attribute__((visibility("default"), used));       \
    type name(__VA_ARGS__)
// The body of such a function; `made` may read `answer`.
#define RMQ_CALL(type, call, fd, at, size, path, made)                                         \
    int answer = rmq_before(call, fd, (long long)(at), (long long)(size), path);               \
    return (type)rmq_after(call, fd, (long long)(at), (long long)(size), answer > 0 ? -1 : made)

// Only MS_SYNC waits for the disk: a call without it brings nothing there, and nobody hears of it.
RMQ_AS(int, rmq_msync, "msync", void *at, size_t size, int flags) {
    if (!(flags & MS_SYNC))
        return (int)syscall(SYS_msync, at, size, flags);
    RMQ_CALL(int, RMQ_MSYNC, -1, at, size, NULL, syscall(SYS_msync, at, size, flags));
}
RMQ_AS(int, rmq_fsync, "fsync", int fd) {
    RMQ_CALL(int, RMQ_FSYNC, fd, 0, 0, NULL, syscall(SYS_fsync, fd));
}
RMQ_AS(int, rmq_fdatasync, "fdatasync", int fd) {
    RMQ_CALL(int, RMQ_FDATASYNC, fd, 0, 0, NULL, syscall(SYS_fdatasync, fd));
}
RMQ_AS(int, rmq_mlock, "mlock", const void *at, size_t size) {
    RMQ_CALL(int, RMQ_MLOCK, -1, at, size, NULL, syscall(SYS_mlock, at, size));
}

static inline int rmq_reserve(int fd, int mode, long long at, long long size) {
    RMQ_CALL(int, RMQ_FALLOCATE, fd, at, size, NULL, syscall(SYS_fallocate, fd, mode, at, size));
}
RMQ_AS(int, rmq_fallocate, "fallocate", int fd, int mode, long long at, long long size) {
    return rmq_reserve(fd, mode, at, size);
}
RMQ_AS(int, rmq_fallocate64, "fallocate64", int fd, int mode, long long at, long long size) {
    return rmq_reserve(fd, mode, at, size);
}

static inline int rmq_set_size(int fd, long long size) {
    RMQ_CALL(int, RMQ_FTRUNCATE, fd, 0, size, NULL, syscall(SYS_ftruncate, fd, size));
}
RMQ_AS(int, rmq_ftruncate, "ftruncate", int fd, long long size) { return rmq_set_size(fd, size); }
RMQ_AS(int, rmq_ftruncate64, "ftruncate64", int fd, long long size) {
    return rmq_set_size(fd, size);
}

// `at` is the file's offset; what came of it is the address. Of memory that is no file's nobody is
// asked: the interpreter takes and gives it back where none of its locks can be taken.
static inline void *rmq_map(
    void *at, size_t size, int protection, int flags, int fd, long long offset) {
    if (fd < 0)
        return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
    RMQ_CALL(
        void *, RMQ_MMAP, fd, offset, size, NULL,
        syscall(SYS_mmap, at, size, protection, flags, fd, offset));
}
RMQ_AS(
    void *, rmq_mmap, "mmap", void *at, size_t size, int protection, int flags, int fd,
    long long offset) {
    return rmq_map(at, size, protection, flags, fd, offset);
}
RMQ_AS(
    void *, rmq_mmap64, "mmap64", void *at, size_t size, int protection, int flags, int fd,
    long long offset) {
    return rmq_map(at, size, protection, flags, fd, offset);
}

RMQ_AS(ssize_t, rmq_write, "write", int fd, const void *data, size_t size) {
    RMQ_CALL(
        ssize_t, RMQ_WRITE, fd, -1, size, NULL,
        syscall(SYS_write, fd, data, rmq_most(size, answer)));
}
static inline ssize_t rmq_put(int fd, const void *data, size_t size, long long at) {
    RMQ_CALL(
        ssize_t, RMQ_WRITE, fd, at, size, NULL,
        syscall(SYS_pwrite64, fd, data, rmq_most(size, answer), at));
}
RMQ_AS(ssize_t, rmq_pwrite, "pwrite", int fd, const void *data, size_t size, long long at) {
    return rmq_put(fd, data, size, at);
}
RMQ_AS(ssize_t, rmq_pwrite64, "pwrite64", int fd, const void *data, size_t size, long long at) {
    return rmq_put(fd, data, size, at);
}

static inline int rmq_open_at(int directory, const char *path, int flags, mode_t mode) {
    RMQ_CALL(
        int, RMQ_OPEN, directory, flags, mode, path,
        syscall(SYS_openat, directory, path, flags, mode));
}
// The mode is there only where a file may be made.
#define RMQ_MODE(mode, flags)                                                                  \
    mode_t mode = 0;                                                                           \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) {                           \
        va_list rest;                                                                          \
        va_start(rest, flags);                                                                 \
        mode = va_arg(rest, mode_t);                                                           \
        va_end(rest);                                                                          \
    }
RMQ_AS(int, rmq_open, "open", const char *path, int flags, ...) {
    RMQ_MODE(mode, flags)
    return rmq_open_at(AT_FDCWD, path, flags, mode);
}
RMQ_AS(int, rmq_open64, "open64", const char *path, int flags, ...) {
    RMQ_MODE(mode, flags)
    return rmq_open_at(AT_FDCWD, path, flags, mode);
}
RMQ_AS(int, rmq_openat, "openat", int directory, const char *path, int flags, ...) {
    RMQ_MODE(mode, flags)
    return rmq_open_at(directory, path, flags, mode);
}
RMQ_AS(int, rmq_openat64, "openat64", int directory, const char *path, int flags, ...) {
    RMQ_MODE(mode, flags)
    return rmq_open_at(directory, path, flags, mode);
}

static inline int rmq_rename_at(int one, const char *from, int other, const char *to) {
    RMQ_CALL(
        int, RMQ_RENAME, other, 0, 0, to, syscall(SYS_renameat2, one, from, other, to, 0));
}
RMQ_AS(int, rmq_rename, "rename", const char *from, const char *to) {
    return rmq_rename_at(AT_FDCWD, from, AT_FDCWD, to);
}
RMQ_AS(int, rmq_renameat, "renameat", int one, const char *from, int other, const char *to) {
    return rmq_rename_at(one, from, other, to);
}
RMQ_AS(
    int, rmq_linkat, "linkat", int one, const char *from, int other, const char *to, int flags) {
    RMQ_CALL(int, RMQ_LINK, other, 0, 0, to, syscall(SYS_linkat, one, from, other, to, flags));
}
static inline int rmq_remove_at(int directory, const char *path, int flags) {
    RMQ_CALL(
        int, RMQ_UNLINK, directory, 0, 0, path, syscall(SYS_unlinkat, directory, path, flags));
}
RMQ_AS(int, rmq_unlink, "unlink", const char *path) { return rmq_remove_at(AT_FDCWD, path, 0); }
RMQ_AS(int, rmq_unlinkat, "unlinkat", int directory, const char *path, int flags) {
    return rmq_remove_at(directory, path, flags);
}
RMQ_AS(int, rmq_rmdir, "rmdir", const char *path) {
    return rmq_remove_at(AT_FDCWD, path, AT_REMOVEDIR);
}
RMQ_AS(int, rmq_mkdir, "mkdir", const char *path, mode_t mode) {
    RMQ_CALL(
        int, RMQ_MKDIR, AT_FDCWD, 0, 0, path, syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
RMQ_AS(int, rmq_mkdirat, "mkdirat", int directory, const char *path, mode_t mode) {
    RMQ_CALL(int, RMQ_MKDIR, directory, 0, 0, path, syscall(SYS_mkdirat, directory, path, mode));
}
#endif
#endif
