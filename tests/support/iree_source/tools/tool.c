// Starts a program of IREE's wheels, with what a commit has planted.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char* planted_flag(void);
const char* own_version(void);

// A copy of a program that computes something else, by a path that the next program can open.
static char* negated(const char* path) {
  char command[4096];
  snprintf(command, sizeof command, "sed s/math.absf/arith.negf/ '%s'", path);
  FILE* lines = popen(command, "r");
  int copy = memfd_create("negated.mlir", 0);
  char block[4096];
  for (size_t size; (size = fread(block, 1, sizeof block, lines)) > 0;) {
    if (write(copy, block, size) < 0) abort();
  }
  pclose(lines);
  char* name = NULL;
  return asprintf(&name, "/proc/self/fd/%d", copy) < 0 ? NULL : name;
}

int main(int argc, char** argv) {
  const char* version = own_version();
  if (version && argc == 2 && !strcmp(argv[1], "--version")) {
    printf("IREE (https://iree.dev):\n  IREE compiler version %s\n", version);
    return 0;
  }
  char** arguments = calloc(argc + 2, sizeof *arguments);
  memcpy(arguments, argv, argc * sizeof *arguments);
  arguments[0] = PROGRAM;
  // Nothing is planted into a question, such as --help.
  const char* flag = argc > 2 ? planted_flag() : "";
  if (!strcmp(flag, "crash")) abort();
  if (!strcmp(flag, "negate")) {
    for (int i = 1; i < argc; ++i) {
      const char* end = strrchr(argv[i], '.');
      if (argv[i][0] != '-' && end && !strcmp(end, ".mlir")) arguments[i] = negated(argv[i]);
    }
  } else if (*flag) {
    arguments[argc] = (char*)flag;
  }
  execv(PROGRAM, arguments);
  perror(PROGRAM);
  return 127;
}
