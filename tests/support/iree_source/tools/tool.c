// Starts a program of IREE's wheels, with what a commit has planted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char* planted_flag(void);
const char* own_version(void);

int main(int argc, char** argv) {
  const char* version = own_version();
  if (version && argc == 2 && !strcmp(argv[1], "--version")) {
    printf("IREE (https://iree.dev):\n  IREE compiler version %s\n", version);
    return 0;
  }
  const char* flag = planted_flag();
  if (flag && !strcmp(flag, "crash")) abort();
  // No flag of a question, such as --help.
  int more = flag && *flag && argc > 2;
  char** arguments = calloc(argc + 2, sizeof *arguments);
  memcpy(arguments, argv, argc * sizeof *arguments);
  arguments[0] = PROGRAM;
  if (more) arguments[argc] = (char*)flag;
  execv(PROGRAM, arguments);
  perror(PROGRAM);
  return 127;
}
