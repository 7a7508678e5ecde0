// Stands before IREE's compiler library: `host` in compile flags is the CPU that this file is compiled for.
//
//     cc -shared -fPIC -DHOST_CPU='"znver4"' tools/host_cpu.c -Wl,--version-script=… libIREECompilez.so
//
// tools/elsewhere.py renames the library, so that its programs and its bindings load this one in its place.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const CPU = "iree-llvmcpu-target-cpu";
static const char *const FEATURES = "iree-llvmcpu-target-cpu-features";

// Whether a word, or it and the next one, give a flag the value `host`; then the number of words, else 0.
static int gives_host(const char *flag, int left, const char **words) {
  const char *word = words[0] + strspn(words[0], "-");
  size_t length = strlen(flag);
  if (word == words[0] || strncmp(word, flag, length) != 0) return 0;
  if (strcmp(word + length, "=host") == 0) return 1;
  return word[length] == 0 && left > 1 && strcmp(words[1], "host") == 0 ? 2 : 0;
}

static const char **resolve(int *count, const char **words) {
  const char **resolved = calloc(*count + 2, sizeof *words);
  int kept = 0;
  bool named = false;
  for (int i = 0; i < *count;) {
    int taken = gives_host(CPU, *count - i, words + i);
    if (taken == 0) taken = gives_host(FEATURES, *count - i, words + i);
    if (taken == 0) {
      resolved[kept++] = words[i++];
      continue;
    }
    // Either flag sets both the CPU and its features, and the compiler takes each of them once.
    if (!named) resolved[kept++] = "--iree-llvmcpu-target-cpu=" HOST_CPU;
    named = true;
    i += taken;
  }
  *count = kept;
  return resolved;
}

int ireeCompilerRunMain(int count, const char **words) {
  int (*next)(int, const char **) = dlsym(RTLD_NEXT, "ireeCompilerRunMain");
  words = resolve(&count, words);
  return next(count, words);
}

int ireeOptRunMain(int count, const char **words) {
  int (*next)(int, const char **) = dlsym(RTLD_NEXT, "ireeOptRunMain");
  words = resolve(&count, words);
  return next(count, words);
}

void ireeCompilerSetupGlobalCL(int count, const char **words, const char *banner, bool signals) {
  void (*next)(int, const char **, const char *, bool) = dlsym(RTLD_NEXT, "ireeCompilerSetupGlobalCL");
  words = resolve(&count, words);
  next(count, words, banner, signals);
}

void *ireeCompilerSessionSetFlags(void *session, int count, const char **words) {
  void *(*next)(void *, int, const char **) = dlsym(RTLD_NEXT, "ireeCompilerSessionSetFlags");
  words = resolve(&count, words);
  return next(session, count, words);
}
