/* Files: whole reads, maps, and writes that either happen whole or not at all. */
#ifndef MX8_BASE_FILE_H
#define MX8_BASE_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

/* A read-only map. A file of 0 bytes maps to data == NULL, size 0. */
struct mx8_map { const uint8_t *data; size_t size; };
enum mx8_status mx8i_map_file(const char *path, struct mx8_map *out);
void mx8i_unmap_file(struct mx8_map *map);

/* Whole file into memory with a 0 byte after it (not counted); release with mx8i_release. max_size guards. */
enum mx8_status mx8i_read_file(const char *path, size_t max_size, char **data, size_t *size);

/* Atomic write: bytes go to PATH.tmp-PID, are fsynced, renamed over PATH, and the folder is fsynced. */
struct mx8_writer { char *path, *tmp_path; int fd; uint64_t written; void *buffer; size_t buffered; };
enum mx8_status mx8i_open_writer(const char *path, struct mx8_writer *w);
enum mx8_status mx8i_write(struct mx8_writer *w, const void *data, size_t size);
enum mx8_status mx8i_commit_writer(struct mx8_writer *w);  /* closes in every case */
void mx8i_abandon_writer(struct mx8_writer *w);            /* removes the temporary file; safe after commit */
/* All of a file at once, by such a writer. A text gets a line's end. */
enum mx8_status mx8i_write_file(const char *path, const void *data, size_t size);
enum mx8_status mx8i_write_text(const char *path, const char *text);

enum mx8_status mx8i_make_folders(const char *path);       /* mkdir -p */
int mx8i_is_folder(const char *path);
int mx8i_is_file(const char *path);
/* Every regular file below path (or path itself), sorted by name bytes, names joined to path; symbolic links to files
 * are followed, to folders are not. Release with mx8i_release_list. suffix NULL: all. */
enum mx8_status mx8i_list_files(const char *path, const char *suffix, char ***files, int64_t *count);
void mx8i_release_list(char **files, int64_t count);
#endif
