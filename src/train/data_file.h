/* Files that are read in place, anywhere in them, for as long as a run lasts. They are read by pread and not through a
 * map: like a map that loads nothing ahead and shares the page cache, but a file that is cut under the run, or a disk
 * that fails, is an error with the file's name instead of a SIGBUS. */
#ifndef MX8_TRAIN_DATA_FILE_H
#define MX8_TRAIN_DATA_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "mx8/status.h"

#define MX8_OPEN_FILES 128 /* at most so many are open at a time; the one that was not read for longest is closed */

struct mx8_data_file {
    char *path;
    int64_t size;
    struct timespec modified;
    int32_t fd; /* < 0: closed at the moment */
    uint64_t used;
};

struct mx8_data_files {
    struct mx8_data_file *file;
    int64_t count, capacity;
    int64_t open[MX8_OPEN_FILES], n_open; /* indices of the open ones */
    uint64_t clock;
};

/* *index is the file's place in the table: the last. */
enum mx8_status mx8i_add_data_file(struct mx8_data_files *f, const char *path, int64_t *index);
/* Takes the last file out of the table again. */
void mx8i_drop_data_file(struct mx8_data_files *f);
/* The bytes [offset, offset + size), which lie in the file as it was added. A file that has another size or time of
 * change since then is an IO_ERROR. Allocates nothing. */
enum mx8_status mx8i_read_data_file(
    struct mx8_data_files *f, int64_t index, int64_t offset, void *out, size_t size);
void mx8i_close_data_files(struct mx8_data_files *f);

#endif
