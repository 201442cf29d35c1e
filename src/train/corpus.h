/* Raw text as a sequence of records, always in the same order: paths as given, the files of a folder by the bytes of
 * their names. A record is a file ("text"), a line ("lines") or a line of JSON ("jsonl", whose text is one of its
 * fields). Files may be compressed with gzip or zstd, which their first bytes tell. */
#ifndef MX8_TRAIN_CORPUS_H
#define MX8_TRAIN_CORPUS_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

/* AUTO: by name, *.jsonl, *.ndjson and *.json (also before .gz, .zst) are JSON lines, others text. */
enum mx8_corpus_format { MX8_CORPUS_AUTO, MX8_CORPUS_TEXT, MX8_CORPUS_LINES, MX8_CORPUS_JSONL };

struct mx8_record {
    const uint8_t *data; /* borrowed until the next record */
    size_t size;
    const char *path; /* lives as long as the corpus */
    int64_t line;     /* from 1; 0: the whole file */
    int32_t is_json;
};

struct mx8_corpus;

enum mx8_status mx8i_open_corpus(
    const char *const *paths, int64_t n_paths, enum mx8_corpus_format format, struct mx8_corpus **out);
void mx8i_close_corpus(struct mx8_corpus *c);
int64_t mx8i_count_corpus_files(const struct mx8_corpus *c);
int64_t mx8i_count_corpus_bytes(const struct mx8_corpus *c); /* on disk */
int64_t mx8i_count_corpus_read(const struct mx8_corpus *c);  /* bytes on disk that lie behind */
/* SHA-256 of the files' names, sizes and times of change: a corpus that may have changed has another. */
const char *mx8i_get_corpus_hash(const struct mx8_corpus *c);
/* *found is 0 at the end. Blank lines are no records. */
enum mx8_status mx8i_next_record(struct mx8_corpus *c, struct mx8_record *out, int *found);
/* The text of a JSON record; release with mx8i_release. Reads nothing but the record: threads may call it at will. */
enum mx8_status mx8i_read_json_field(const struct mx8_record *r, const char *field, char **text, size_t *size);

#endif
