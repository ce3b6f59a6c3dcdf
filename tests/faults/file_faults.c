/* Loaded with LD_PRELOAD: counts the calls that change a file below one folder, whoever makes them
   (Python, Arrow, safetensors), and at the n-th kills processes or lets the disk be full. Processes
   that a watched one forks count on in the same memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, KILL_CALLER, KILL_OTHERS, FULL };
enum { MOST = 64 };

static struct {
  long met;
  int disk_is_full, processes;
  pid_t pids[MOST];
} *shared;
static char root[PATH_MAX];
static size_t root_length;
static long when;
static int mode = COUNT;

/* This process is one of those that die together. */
void fault_join(void) {
  int place = __atomic_fetch_add(&shared->processes, 1, __ATOMIC_SEQ_CST);
  if (place >= MOST) abort();
  shared->pids[place] = getpid();
}

void fault_arm(const char *folder, long n, int what) {
  when = n, mode = what;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) abort();
  fault_join();
  snprintf(root, sizeof root, "%s", folder);
  root_length = strlen(root);
}

long fault_met(void) { return shared ? shared->met : 0; }

static int below(const char *path) {
  return root_length && !strncmp(path, root, root_length) &&
         (path[root_length] == '/' || !path[root_length]);
}

static int file_is_watched(int fd) {
  char link[64], path[PATH_MAX];
  if (!root_length) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

static int path_is_watched(int folder, const char *path) {
  char at[PATH_MAX], link[64];
  if (!root_length || !path) return 0;
  if (path[0] == '/') return below(path);
  if (folder != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, at, sizeof at - 1);
    if (n < 0) return 0;
    at[n] = 0;
  } else if (!getcwd(at, sizeof at)) {
    return 0;
  }
  return below(at);
}

/* The call is the one: kills whom the mode says, the caller last; it returns where the caller
   lives on. */
static void strike(void) {
  if (mode == FULL) shared->disk_is_full = 1;
  if (mode == KILL || mode == KILL_OTHERS)
    for (int i = 0; i < shared->processes; i++)
      if (shared->pids[i] && shared->pids[i] != getpid()) kill(shared->pids[i], SIGKILL);
  if (mode == KILL || mode == KILL_CALLER) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
}

/* One more call that changes a file; whether it is the one. */
static int is_due(void) {
  long n = __atomic_add_fetch(&shared->met, 1, __ATOMIC_SEQ_CST);
  return mode != COUNT && n == when;
}

/* Before a call that needs no room, such as a deletion. */
static void passes(int watched) {
  if (watched && is_due()) strike();
}

/* Before a call that needs room; whether there is none. */
static int no_room(int watched) {
  passes(watched);
  if (!watched || !shared->disk_is_full) return 0;
  errno = ENOSPC;
  return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

/* Half of the bytes reach the file before the process dies or the disk is full. */
#define WRITING(call_half, call_all)                     \
  if (!file_is_watched(fd)) return call_all;             \
  int due = is_due();                                    \
  if (due && (mode == KILL || mode == KILL_CALLER)) {    \
    if (call_half < 0) { }                               \
  }                                                      \
  if (due) strike();                                     \
  if (due && mode == FULL && n > 1) return call_half;    \
  if (shared->disk_is_full) {                            \
    errno = ENOSPC;                                      \
    return -1;                                           \
  }                                                      \
  return call_all;

ssize_t write(int fd, const void *data, size_t n) {
  REAL(write);
  WRITING(real(fd, data, n / 2), real(fd, data, n))
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
  REAL(pwrite);
  WRITING(real(fd, data, n / 2, at), real(fd, data, n, at))
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
  REAL(pwrite64);
  WRITING(real(fd, data, n / 2, at), real(fd, data, n, at))
}
ssize_t writev(int fd, const struct iovec *data, int n) {
  REAL(writev);
  WRITING(real(fd, data, n / 2), real(fd, data, n))
}

static int creates(int flags) { return flags & (O_CREAT | O_TRUNC); }

#define OPENING(name, folder, path, ...)                               \
  mode_t access = 0;                                                   \
  if (flags & O_CREAT) {                                               \
    va_list rest;                                                      \
    va_start(rest, flags);                                             \
    access = va_arg(rest, mode_t);                                     \
    va_end(rest);                                                      \
  }                                                                    \
  REAL(name);                                                          \
  if (no_room(creates(flags) && path_is_watched(folder, path))) return -1; \
  return real(__VA_ARGS__, flags, access);

int open(const char *path, int flags, ...) { OPENING(open, AT_FDCWD, path, path) }
int open64(const char *path, int flags, ...) { OPENING(open64, AT_FDCWD, path, path) }
int openat(int folder, const char *path, int flags, ...) {
  OPENING(openat, folder, path, folder, path)
}
int openat64(int folder, const char *path, int flags, ...) {
  OPENING(openat64, folder, path, folder, path)
}
int creat(const char *path, mode_t access) {
  REAL(creat);
  return no_room(path_is_watched(AT_FDCWD, path)) ? -1 : real(path, access);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  return no_room(path_is_watched(AT_FDCWD, to)) ? -1 : real(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
  REAL(renameat);
  return no_room(path_is_watched(b, to)) ? -1 : real(a, from, b, to);
}
int mkdir(const char *path, mode_t access) {
  REAL(mkdir);
  return no_room(path_is_watched(AT_FDCWD, path)) ? -1 : real(path, access);
}
int mkdirat(int folder, const char *path, mode_t access) {
  REAL(mkdirat);
  return no_room(path_is_watched(folder, path)) ? -1 : real(folder, path, access);
}
int symlink(const char *to, const char *path) {
  REAL(symlink);
  return no_room(path_is_watched(AT_FDCWD, path)) ? -1 : real(to, path);
}
int link(const char *from, const char *path) {
  REAL(link);
  return no_room(path_is_watched(AT_FDCWD, path)) ? -1 : real(from, path);
}
int ftruncate(int fd, off_t size) {
  REAL(ftruncate);
  return no_room(file_is_watched(fd)) ? -1 : real(fd, size);
}
int ftruncate64(int fd, off64_t size) {
  REAL(ftruncate64);
  return no_room(file_is_watched(fd)) ? -1 : real(fd, size);
}
int truncate(const char *path, off_t size) {
  REAL(truncate);
  return no_room(path_is_watched(AT_FDCWD, path)) ? -1 : real(path, size);
}
int posix_fallocate(int fd, off_t at, off_t size) {
  REAL(posix_fallocate);
  return no_room(file_is_watched(fd)) ? ENOSPC : real(fd, at, size);
}
int fallocate(int fd, int how, off_t at, off_t size) {
  REAL(fallocate);
  return no_room(file_is_watched(fd)) ? -1 : real(fd, how, at, size);
}
int fallocate64(int fd, int how, off64_t at, off64_t size) {
  REAL(fallocate64);
  return no_room(file_is_watched(fd)) ? -1 : real(fd, how, at, size);
}
ssize_t copy_file_range(int in, off64_t *a, int fd, off64_t *b, size_t n, unsigned how) {
  REAL(copy_file_range);
  return no_room(file_is_watched(fd)) ? -1 : real(in, a, fd, b, n, how);
}

int unlink(const char *path) {
  REAL(unlink);
  passes(path_is_watched(AT_FDCWD, path));
  return real(path);
}
int unlinkat(int folder, const char *path, int how) {
  REAL(unlinkat);
  passes(path_is_watched(folder, path));
  return real(folder, path, how);
}
int rmdir(const char *path) {
  REAL(rmdir);
  passes(path_is_watched(AT_FDCWD, path));
  return real(path);
}
int chmod(const char *path, mode_t access) {
  REAL(chmod);
  passes(path_is_watched(AT_FDCWD, path));
  return real(path, access);
}
int fchmod(int fd, mode_t access) {
  REAL(fchmod);
  passes(file_is_watched(fd));
  return real(fd, access);
}
