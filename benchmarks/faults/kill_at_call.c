/* Kills its process at the n-th call that changes what lies below a directory, whoever makes it: Python or TensorFlow.

   cc -shared -fPIC -o kill_at_call.so kill_at_call.c -ldl
   LD_PRELOAD=./kill_at_call.so KILL_BELOW=/models KILL_LOG=calls.txt KILL_AT=7 KILL_WHEN=before python ...

   Calls are counted, and written to KILL_LOG, from start_counting() on; with KILL_FROM_START=1 from the beginning.
   Without KILL_AT nothing is killed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char below[PATH_MAX], when[16];
static int at, log_file = -1;
static atomic_int counting, calls;

__attribute__((constructor)) static void read_environment(void) {
  const char *text = getenv("KILL_BELOW");
  snprintf(below, sizeof below, "%s/", text ? text : "");
  text = getenv("KILL_WHEN");
  snprintf(when, sizeof when, "%s", text ? text : "before");
  text = getenv("KILL_AT");
  at = text ? atoi(text) : 0;
  text = getenv("KILL_LOG");
  if (text) log_file = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  counting = getenv("KILL_FROM_START") != NULL;
  unsetenv("LD_PRELOAD"); /* what this process starts is not killed */
}

void start_counting(void) { counting = 1; }

/* The number of a call, or 0 of one that does not count. */
static int count(const char *name, int directory, const char *path) {
  char whole[2 * PATH_MAX], link[64], line[3 * PATH_MAX];
  if (!counting || !path) return 0;
  if (path[0] != '/' && directory >= 0) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, whole, PATH_MAX);
    if (length < 0) return 0;
    snprintf(whole + length, sizeof whole - length, path[0] ? "/%s" : "", path);
  } else {
    snprintf(whole, sizeof whole, "%s", path);
  }
  if (strncmp(whole, below, strlen(below))) return 0;
  int number = ++calls;
  int length = snprintf(line, sizeof line, "%s %s\n", name, whole + strlen(below));
  if (log_file >= 0 && write(log_file, line, length) < 0) return number;
  return number;
}

static void maybe_kill(int number, const char *now) {
  if (number && number == at && !strcmp(now, when)) {
    kill(getpid(), SIGKILL);
    pause();
  }
}

#define HOOK(type, name, parameters, arguments, directory, path) \
  type name parameters {                                         \
    type(*next) parameters = dlsym(RTLD_NEXT, #name);            \
    int number = count(#name, directory, path);                  \
    maybe_kill(number, "before");                                \
    type result = next arguments;                                \
    maybe_kill(number, "after");                                 \
    return result;                                               \
  }
#define WRITES(mode) (strchr(mode, 'r') ? NULL : path)

HOOK(int, rename, (const char *from, const char *path), (from, path), -1, path)
HOOK(int, renameat, (int a, const char *from, int b, const char *path), (a, from, b, path), b, path)
HOOK(int, link, (const char *from, const char *path), (from, path), -1, path)
HOOK(int, linkat, (int a, const char *from, int b, const char *path, int flags), (a, from, b, path, flags), b, path)
HOOK(int, unlink, (const char *path), (path), -1, path)
HOOK(int, unlinkat, (int a, const char *path, int flags), (a, path, flags), a, path)
HOOK(int, remove, (const char *path), (path), -1, path)
HOOK(int, rmdir, (const char *path), (path), -1, path)
HOOK(int, mkdir, (const char *path, mode_t mode), (path, mode), -1, path)
HOOK(int, fsync, (int file), (file), file, "")
HOOK(int, fdatasync, (int file), (file), file, "")
HOOK(FILE *, fopen, (const char *path, const char *mode), (path, mode), -1, WRITES(mode))
HOOK(FILE *, fopen64, (const char *path, const char *mode), (path, mode), -1, WRITES(mode))
