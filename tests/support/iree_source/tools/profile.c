// Starts the wheel's iree-profile, which no commit changes.
#include <unistd.h>

int main(int argc, char** argv) {
  (void)argc;
  return execv(PROGRAM, argv);
}
