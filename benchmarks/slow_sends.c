/* Preloaded into ranks: every message that gloo begins over TCP waits for SLOW_SENDS_US microseconds, as on a link with
   latency. gloo begins a message with one writev of its header and its content, and goes on with content alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static long delay_us(void) {
  static long delay = -1;
  if (delay < 0) {
    const char *text = getenv("SLOW_SENDS_US");
    delay = text ? atol(text) : 0;
  }
  return delay;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
  static ssize_t (*real)(int, const struct iovec *, int);
  if (!real) real = (ssize_t (*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
  if (count > 1 && parts[1].iov_len > 1024 && delay_us() > 0) usleep((useconds_t)delay_us());
  return real(file, parts, count);
}
