#include "runtime/planted.h"

const char* own_version(void) { return 0; }

const char* planted_flag(void) { return PLANTED_RUNTIME; }
