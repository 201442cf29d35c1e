/* Shared objects that are looked for at run time, so that one program runs with and without what they need. */
#ifndef MX8_BASE_LIBRARY_H
#define MX8_BASE_LIBRARY_H

#include <stddef.h>

/* Opens `name` at the path in the environment variable `variable` when that is set, else beside this program or library,
 * else where the loader looks. NULL: `why` says what the loader said. `global`: its own libraries' symbols are for all. */
void *mx8i_open_library(const char *name, const char *variable, int global, char *why, size_t why_size);

#endif
