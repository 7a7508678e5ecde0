#include "compiler/planted.h"
#include "llvm.h"

const char* own_version(void) { return PLANTED_VERSION; }

const char* planted_flag(void) { return PLANTED_COMPILER; }

int llvm_revision(void) { return LLVM_REVISION; }
