/* Two slots. The thread fills one while the caller holds the other: batch n lives in slot n % 2, and asking for batch
 * n + 1 gives batch n's slot back. Without the thread there is one slot, filled when it is asked for. */
#include "train/prefetch.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

enum { SLOTS = 2, MESSAGE = 1024 };

struct slot {
    int32_t *tokens, *targets, *docs;
    enum mx8_status status;
    char message[MESSAGE]; /* errors are kept by thread: this carries one over to the caller's */
};

struct mx8_prefetch {
    struct mx8_data *data;
    struct mx8_prefetch_options o;
    struct slot slot[SLOTS];
    int64_t taken; /* batches that the caller has asked for */
    int32_t running;
    pthread_t thread;
    pthread_mutex_t lock; /* of the two below, and of taken */
    pthread_cond_t changed;
    int64_t filled; /* batches that have been read, or failed */
    int32_t stop;
};

static int64_t count_slots(const struct mx8_prefetch_options *o) {
    return o->threaded ? SLOTS : 1;
}

size_t mx8i_count_prefetch_bytes(const struct mx8_prefetch_options *o, int64_t seq_len) {
    size_t arrays = o->docs ? 3 : 2;
    return (size_t)count_slots(o) * arrays * sizeof(int32_t) * (size_t)o->rows * (size_t)seq_len;
}

static int64_t get_position(const struct mx8_prefetch *p, int64_t batch) {
    return p->o.first + batch * p->o.stride;
}

/* Allocates nothing, so that memory running out is always the caller's to see. */
static void fill_slot(struct mx8_prefetch *p, struct slot *s, int64_t batch) {
    int64_t S = mx8i_get_sample_length(p->data), position = get_position(p, batch);
    s->status = MX8_OK;
    for (int64_t b = 0; b < p->o.rows && s->status == MX8_OK; b++)
        s->status = mx8i_read_sample(
            p->data, position + b, s->tokens + b * S, s->targets + b * S, s->docs ? s->docs + b * S : NULL);
    if (s->status != MX8_OK) snprintf(s->message, sizeof s->message, "%s", mx8_get_last_error());
}

static void *read_ahead(void *user) {
    struct mx8_prefetch *p = user;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        /* batch `filled` takes the slot of batch filled - 2, which the caller gave back by asking for filled - 1 */
        while (!p->stop && p->filled > p->taken) pthread_cond_wait(&p->changed, &p->lock);
        if (p->stop) break;
        int64_t batch = p->filled;
        pthread_mutex_unlock(&p->lock);
        fill_slot(p, &p->slot[batch % SLOTS], batch);
        pthread_mutex_lock(&p->lock);
        p->filled++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Signals are for the thread that started the job. */
static enum mx8_status start_thread(struct mx8_prefetch *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p->thread, NULL, read_ahead, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return MX8_FAIL(MX8_LIBRARY_ERROR,
            "the thread that reads data ahead cannot be started: %s; --training.prefetch=false does without",
            strerror(failed));
    p->running = 1;
    return MX8_OK;
}

static enum mx8_status allocate_slots(struct mx8_prefetch *p) {
    size_t bytes = (size_t)p->o.rows * (size_t)mx8i_get_sample_length(p->data) * sizeof(int32_t);
    for (int64_t i = 0; i < count_slots(&p->o); i++) {
        struct slot *s = &p->slot[i];
        s->tokens = mx8i_allocate(bytes, "tokens");
        s->targets = mx8i_allocate(bytes, "targets");
        s->docs = p->o.docs ? mx8i_allocate(bytes, "document ids") : NULL;
        if (!s->tokens || !s->targets || (p->o.docs && !s->docs)) return MX8_OUT_OF_MEMORY;
    }
    return MX8_OK;
}

enum mx8_status mx8i_open_prefetch(
    struct mx8_data *d, const struct mx8_prefetch_options *o, struct mx8_prefetch **out) {
    *out = NULL;
    if (o->rows < 1 || o->first < 0 || o->stride < 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_open_prefetch: %lld rows from sample %lld on, stride %lld",
            (long long)o->rows, (long long)o->first, (long long)o->stride);
    struct mx8_prefetch *p = mx8i_allocate(sizeof *p, "batches");
    if (!p) return MX8_OUT_OF_MEMORY;
    p->data = d;
    p->o = *o;
    if (!p->o.stride) p->o.stride = o->rows;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    enum mx8_status status = allocate_slots(p);
    if (status == MX8_OK && o->threaded) status = start_thread(p);
    if (status != MX8_OK) {
        mx8i_close_prefetch(p);
        return status;
    }
    *out = p;
    return MX8_OK;
}

/* Waits until batch `taken` is there; it counts as taken only when it could be read. */
static struct slot *take_slot(struct mx8_prefetch *p) {
    struct slot *s = &p->slot[p->taken % count_slots(&p->o)];
    if (!p->running) {
        fill_slot(p, s, p->taken);
        return s;
    }
    pthread_mutex_lock(&p->lock);
    while (p->filled <= p->taken) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return s;
}

enum mx8_status mx8i_next_batch(struct mx8_prefetch *p, struct mx8_batch *out) {
    struct slot *s = take_slot(p);
    if (s->status != MX8_OK) return MX8_FAIL(s->status, "%s", s->message);
    *out = (struct mx8_batch){s->tokens, s->targets, s->docs, get_position(p, p->taken)};
    pthread_mutex_lock(&p->lock);
    p->taken++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return MX8_OK;
}

void mx8i_close_prefetch(struct mx8_prefetch *p) {
    if (!p) return;
    if (p->running) {
        pthread_mutex_lock(&p->lock);
        p->stop = 1;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    for (int i = 0; i < SLOTS; i++) {
        mx8i_release(p->slot[i].tokens);
        mx8i_release(p->slot[i].targets);
        mx8i_release(p->slot[i].docs);
    }
    mx8i_release(p);
}
