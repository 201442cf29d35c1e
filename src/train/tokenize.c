#include "train/tokenize.h"
#include <omp.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#define BATCH_BYTES ((size_t)2 << 20) /* of records, for each thread */
#define BATCH_ITEMS 16384
#define MESSAGE     1024

/* A record of the batch, and where its tokens are. */
struct item {
    struct mx8_record record; /* data is an offset into the batch's text until that no longer moves */
    size_t offset;
    int32_t thread;
    int64_t start, count; /* among the thread's tokens */
    struct mx8_shard_counts counts;
};

struct worker {
    struct mx8_encoder *encoder;
    struct mx8_tokens tokens;
};

struct job {
    const struct mx8_tokenize_options *o;
    struct mx8_corpus *corpus;
    struct mx8_shard_writer *writer;
    struct worker *worker;
    int32_t n_workers, bos, eos;
    uint8_t *text; /* the batch's records, one after the other */
    size_t text_size, text_capacity;
    struct item *item;
    int64_t n_items;
    int64_t failed_item; /* the first that failed, for the same message whatever the threads do; -1: none */
    enum mx8_status failure;
    char message[MESSAGE];
    double started;
    struct mx8_tokenize_progress *progress;
};

/* What the shards depend on. */
static json_t *describe_job(const struct job *j) {
    static const char *const formats[] = {"auto", "text", "lines", "jsonl"};
    const struct mx8_tokenize_options *o = j->o;
    return json_pack("{s:{s:s, s:I, s:i, s:i, s:b, s:s?}, s:{s:s, s:s, s:I, s:i}, s:{s:I, s:I, s:s}}", "tokenizer",
        "sha256", mx8i_get_tokenizer_hash(o->tokenizer), "vocabulary", (json_int_t)mx8i_count_vocabulary(o->tokenizer),
        "bos", j->bos, "eos", j->eos, "special_as_text", o->special_as_text, "pattern", o->pattern, "options", "format",
        formats[o->format], "field", o->field, "shard_tokens", (json_int_t)o->shard_tokens, "bytes_per_token", o->width,
        "inputs", "files", (json_int_t)mx8i_count_corpus_files(j->corpus), "bytes",
        (json_int_t)mx8i_count_corpus_bytes(j->corpus), "sha256_of_names_sizes_times", mx8i_get_corpus_hash(j->corpus));
}

static enum mx8_status open_writer(struct job *j) {
    struct mx8_shard_options options = {
        .folder = j->o->folder, .width = j->o->width, .shard_tokens = j->o->shard_tokens, .overwrite = j->o->overwrite};
    json_t *made_from = describe_job(j);
    if (!made_from)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "mx8i_tokenize_corpus: the field or the pattern is no UTF-8, or no memory");
    options.made_from = made_from;
    enum mx8_status status = mx8i_open_shard_writer(&options, &j->writer);
    json_decref(made_from);
    return status;
}

static enum mx8_status open_workers(struct job *j) {
    j->n_workers = omp_get_max_threads();
    j->worker = mx8i_allocate((size_t)j->n_workers * sizeof *j->worker, "encoders");
    j->item = mx8i_allocate(BATCH_ITEMS * sizeof *j->item, "a batch of documents");
    if (!j->worker || !j->item) return MX8_OUT_OF_MEMORY;
    for (int32_t i = 0; i < j->n_workers; i++) MX8_TRY(mx8i_open_encoder(j->o->tokenizer, &j->worker[i].encoder));
    return MX8_OK;
}

static void close_job(struct job *j) {
    for (int32_t i = 0; j->worker && i < j->n_workers; i++) {
        mx8i_close_encoder(j->worker[i].encoder);
        mx8i_release(j->worker[i].tokens.id);
    }
    mx8i_release(j->worker);
    mx8i_release(j->item);
    mx8i_release(j->text);
    mx8i_close_shard_writer(j->writer);
    mx8i_close_corpus(j->corpus);
}

static enum mx8_status keep_record(struct job *j, const struct mx8_record *r) {
    if (j->text_size + r->size > j->text_capacity) {
        size_t capacity = 2 * j->text_capacity > j->text_size + r->size ? 2 * j->text_capacity : j->text_size + r->size;
        uint8_t *larger = mx8i_reallocate(j->text, capacity, "a batch of documents");
        if (!larger) return MX8_OUT_OF_MEMORY;
        j->text = larger;
        j->text_capacity = capacity;
    }
    memcpy(j->text + j->text_size, r->data, r->size);
    j->item[j->n_items++] = (struct item){.record = *r, .offset = j->text_size};
    j->text_size += r->size;
    return MX8_OK;
}

/* *found is 0 when the corpus is over. */
static enum mx8_status read_batch(struct job *j, int *found) {
    struct mx8_record record;
    j->n_items = 0;
    j->text_size = 0;
    *found = 1;
    while (j->n_items < BATCH_ITEMS && j->text_size < BATCH_BYTES * (size_t)j->n_workers) {
        MX8_TRY(mx8i_next_record(j->corpus, &record, found));
        if (!*found) break;
        MX8_TRY(keep_record(j, &record));
    }
    for (int64_t i = 0; i < j->n_items; i++) j->item[i].record.data = j->text + j->item[i].offset;
    return MX8_OK;
}

static enum mx8_status encode_document(
    const struct job *j, struct worker *w, struct item *item, const void *text, size_t size) {
    int64_t replaced = mx8i_count_replaced(w->encoder);
    if (j->bos >= 0) MX8_TRY(mx8i_append_token(&w->tokens, j->bos));
    enum mx8_status status = mx8i_encode_text(w->encoder, text, size, &w->tokens);
    if (status != MX8_OK && item->record.line)
        return mx8i_fail_prefix(status, "%s: line %lld", item->record.path, (long long)item->record.line);
    if (status != MX8_OK) return mx8i_fail_prefix(status, "%s", item->record.path);
    MX8_TRY(mx8i_append_token(&w->tokens, j->eos));
    item->counts.text_bytes = (int64_t)size;
    item->counts.replaced = mx8i_count_replaced(w->encoder) - replaced;
    return MX8_OK;
}

static enum mx8_status encode_item(const struct job *j, struct worker *w, struct item *item) {
    const struct mx8_record *r = &item->record;
    item->counts.records = 1;
    item->start = w->tokens.count;
    enum mx8_status status = MX8_OK;
    if (r->is_json) {
        char *text;
        size_t size = 0;
        MX8_TRY(mx8i_read_json_field(r, j->o->field, &text, &size));
        if (size > 0) status = encode_document(j, w, item, text, size); /* an empty text is no document */
        mx8i_release(text);
    } else {
        status = encode_document(j, w, item, r->data, r->size);
    }
    item->count = w->tokens.count - item->start;
    return status;
}

static void keep_failure(struct job *j, int64_t item, enum mx8_status status) {
#pragma omp critical(mx8_tokenize_failure)
    if (j->failed_item < 0 || item < j->failed_item) {
        j->failed_item = item;
        j->failure = status;
        strncpy(j->message, mx8_get_last_error(), MESSAGE - 1); /* that of this thread */
    }
}

static enum mx8_status encode_batch(struct job *j) {
    for (int32_t i = 0; i < j->n_workers; i++) j->worker[i].tokens.count = 0;
#pragma omp parallel for num_threads(j->n_workers) schedule(dynamic, 4)
    for (int64_t i = 0; i < j->n_items; i++) {
        j->item[i].thread = omp_get_thread_num();
        enum mx8_status status = encode_item(j, &j->worker[j->item[i].thread], &j->item[i]);
        if (status != MX8_OK) keep_failure(j, i, status);
    }
    return j->failed_item < 0 ? MX8_OK : MX8_FAIL(j->failure, "%s", j->message);
}

static enum mx8_status write_batch(struct job *j) {
    for (int64_t i = 0; i < j->n_items; i++) {
        const struct item *item = &j->item[i];
        const int32_t *tokens = j->worker[item->thread].tokens.id;
        MX8_TRY(mx8i_append_document(j->writer, tokens ? tokens + item->start : NULL, item->count, &item->counts));
        j->progress->fresh_bytes += item->counts.text_bytes;
    }
    return MX8_OK;
}

static void show_progress(struct job *j) {
    struct mx8_tokenize_progress *p = j->progress;
    p->counts = mx8i_sum_shards(j->writer);
    p->shards = mx8i_count_shards(j->writer);
    p->bytes_read = mx8i_count_corpus_read(j->corpus);
    p->bytes_total = mx8i_count_corpus_bytes(j->corpus);
    p->seconds = mx8i_get_seconds() - j->started;
    if (j->o->show) j->o->show(j->o->user, p);
}

/* Passes over the records that the kept shards were made from. */
static enum mx8_status skip_records(struct job *j) {
    struct mx8_shard_counts kept = mx8i_sum_shards(j->writer);
    struct mx8_record record;
    int found = 1;
    for (int64_t i = 0; i < kept.records && found; i++) MX8_TRY(mx8i_next_record(j->corpus, &record, &found));
    return found ? MX8_OK
                 : MX8_FAIL(MX8_FORMAT_ERROR, "%s: the manifest counts more records than there are", j->o->folder);
}

static enum mx8_status run_job(struct job *j) {
    int found = 1;
    j->progress->kept_shards = mx8i_count_shards(j->writer);
    if (mx8i_is_complete(j->writer)) {
        mx8i_log(&j->o->log, "%s: all shards are there already", j->o->folder);
        show_progress(j);
        return MX8_OK;
    }
    if (j->progress->kept_shards > 0)
        mx8i_log(&j->o->log, "%s: %lld finished shard%s kept", j->o->folder, (long long)j->progress->kept_shards,
            j->progress->kept_shards == 1 ? " is" : "s are");
    MX8_TRY(skip_records(j));
    while (found) {
        MX8_TRY(read_batch(j, &found));
        MX8_TRY(encode_batch(j));
        MX8_TRY(write_batch(j));
        show_progress(j);
        if (found && j->o->is_stopping && j->o->is_stopping())
            return MX8_FAIL(MX8_INTERRUPTED, "stopped; %lld shards are finished, the same command goes on after them",
                (long long)j->progress->shards);
    }
    if (mx8i_sum_shards(j->writer).documents == 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no text in %lld files", j->o->paths[0],
            (long long)mx8i_count_corpus_files(j->corpus));
    MX8_TRY(mx8i_finish_shards(j->writer));
    show_progress(j);
    return MX8_OK;
}

static enum mx8_status check_options(const struct mx8_tokenize_options *o) {
    int64_t vocabulary = mx8i_count_vocabulary(o->tokenizer);
    if (mx8i_get_eos(o->tokenizer) < 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: no token that ends documents was found; name one with --eos",
            mx8i_describe_tokenizer(o->tokenizer));
    if (o->width == 2 && vocabulary > 65536)
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "a vocabulary of %lld does not fit uint16, use uint32", (long long)vocabulary);
    return MX8_OK;
}

enum mx8_status mx8i_tokenize_corpus(const struct mx8_tokenize_options *o, struct mx8_tokenize_progress *out) {
    *out = (struct mx8_tokenize_progress){0};
    MX8_TRY(check_options(o));
    struct job j = {.o = o, .failed_item = -1, .started = mx8i_get_seconds(), .progress = out};
    j.bos = o->without_bos ? -1 : mx8i_get_bos(o->tokenizer);
    j.eos = mx8i_get_eos(o->tokenizer);
    enum mx8_status status = mx8i_open_corpus(o->paths, o->n_paths, o->format, &j.corpus);
    if (status == MX8_OK) status = open_writer(&j);
    if (status == MX8_OK) status = open_workers(&j);
    if (status == MX8_OK) status = run_job(&j);
    close_job(&j);
    return status;
}
