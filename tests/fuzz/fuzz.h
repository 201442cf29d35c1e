/* A fuzz target is a file with LLVMFuzzerTestOneInput, run by libFuzzer or by driver.c. It returns 0 for any input; a
 * crash, a sanitizer's report or abort() is a finding. */
#ifndef MX8_FUZZ_H
#define MX8_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mx8/mx8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A condition that no input may break. */
#define ALWAYS(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition, mx8_get_last_error());       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* For code that takes a path: files in memory (fuzz_files.c), below a folder that holds nothing else. `data` is read
 * until the files are forgotten, which every target does before it returns; by then nothing may be open or mapped, and
 * the first file must have been opened. */
#define FUZZ_FOLDER "/fuzz"
const char *fuzz_file(const char *name, const void *data, size_t size);
void fuzz_forget_files(void);

/* Takes numbers off the input's front; 0 when it is used up. */
struct fuzz_reader {
    const uint8_t *at, *end;
};
static inline uint32_t fuzz_byte(struct fuzz_reader *r) {
    return r->at < r->end ? *r->at++ : 0;
}

#endif
