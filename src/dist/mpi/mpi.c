/* The MPI transport: libmx8_mpi.so, opened at run time. Every operation is made of point-to-point messages, for two
 * reasons: sums happen here, in rising order of rank, so that the bits do not depend on an MPI library's algorithm; and
 * a rank that does not answer is known by number. Bytes per rank are those of the ring algorithms, (n-1)/n of the data.
 *
 * wait() polls until a deadline. Whoever passes it asks all ranks for a sign of life; a rank that waits, too, answers,
 * one that is dead, hangs or computes far behind does not, and is named by all the others. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <mpi.h>
#include "dist/comm.h"

enum { TAG_DATA = 1, TAG_ALIVE = 1000, OPERATIONS = 64, MOST_BYTES = 1 << 30, SPINS = 64 };

/* An operation that was started. */
struct operation {
    int32_t used, requests, room;
    MPI_Request *request;
    int32_t *peer; /* world rank at the other end of each request */
    const struct group *group;
    float *out; /* of a reduce: what to sum when all pieces are there */
    const float *own, *pieces;
    size_t piece;
    int32_t accumulate;
};

struct world {
    const struct mx8_comm_host *host;
    int32_t rank, size, groups;
    double timeout;
    int32_t asked; /* another rank wants to know who is alive */
    struct operation operation[OPERATIONS];
};

struct group {
    struct world *w;
    int32_t size, rank, tag;
    int32_t member[]; /* world ranks */
};

static double get_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_a_little(int32_t spins) {
    if (spins < SPINS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static enum mx8_status check(const struct world *w, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return MX8_OK;
    MPI_Error_string(code, text, &length);
    return w->host->fail(MX8_COMM_ERROR, "MPI %s: %s", what, text);
}

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        enum mx8_status try_status_ = (expression);                                                                    \
        if (try_status_ != MX8_OK) return try_status_;                                                                 \
    } while (0)

/* ---- starting ---- */

static enum mx8_status take_operation(const struct group *g, int32_t *ticket, struct operation **out) {
    for (int32_t i = 0; i < OPERATIONS; i++) {
        struct operation *o = &g->w->operation[i];
        if (o->used) continue;
        o->used = 1;
        o->requests = 0;
        o->group = g;
        o->out = NULL;
        *ticket = i + 1;
        *out = o;
        return MX8_OK;
    }
    return g->w->host->fail(MX8_INTERNAL, "the MPI transport has %d operations under way, expected fewer", OPERATIONS);
}

static enum mx8_status make_room(struct world *w, struct operation *o) {
    if (o->requests < o->room) return MX8_OK;
    const int32_t room = o->room ? 2 * o->room : 64;
    MPI_Request *request = w->host->allocate((size_t)room * sizeof *request, "MPI requests");
    int32_t *peer = w->host->allocate((size_t)room * sizeof *peer, "MPI requests");
    if (!request || !peer) {
        w->host->release(request);
        w->host->release(peer);
        return MX8_OUT_OF_MEMORY;
    }
    if (o->requests) {
        memcpy(request, o->request, (size_t)o->requests * sizeof *request);
        memcpy(peer, o->peer, (size_t)o->requests * sizeof *peer);
    }
    w->host->release(o->request);
    w->host->release(o->peer);
    o->request = request;
    o->peer = peer;
    o->room = room;
    return MX8_OK;
}

/* One direction of a piece; MPI counts in int, so large ones go in parts. */
static enum mx8_status start_message(
    struct mx8_comm *c, struct operation *o, int32_t peer, const void *send, void *receive, size_t bytes) {
    const struct group *g = c->backend;
    for (size_t at = 0; at < bytes; at += MOST_BYTES) {
        const int n = (int)(bytes - at < MOST_BYTES ? bytes - at : MOST_BYTES);
        TRY(make_room(g->w, o));
        MPI_Request *request = &o->request[o->requests];
        o->peer[o->requests] = g->member[peer];
        o->requests++;
        *request = MPI_REQUEST_NULL;
        if (receive) {
            TRY(check(g->w,
                MPI_Irecv((char *)receive + at, n, MPI_BYTE, g->member[peer], g->tag, MPI_COMM_WORLD, request),
                "Irecv"));
        } else {
            TRY(check(g->w,
                MPI_Isend((const char *)send + at, n, MPI_BYTE, g->member[peer], g->tag, MPI_COMM_WORLD, request),
                "Isend"));
        }
    }
    if (send && c->traffic) c->traffic->sent += (int64_t)bytes;
    return MX8_OK;
}

static enum mx8_status start_gather(struct mx8_comm *c, void *buffer, const size_t *cut, int32_t *ticket) {
    struct operation *o = NULL;
    TRY(take_operation(c->backend, ticket, &o));
    for (int32_t i = 1; i < c->size; i++) { /* everyone begins with another one */
        const int32_t from = (c->rank + c->size - i) % c->size;
        TRY(start_message(c, o, from, NULL, (char *)buffer + cut[from], cut[from + 1] - cut[from]));
    }
    for (int32_t i = 1; i < c->size; i++) {
        TRY(start_message(
            c, o, (c->rank + i) % c->size, (char *)buffer + cut[c->rank], NULL, cut[c->rank + 1] - cut[c->rank]));
    }
    return MX8_OK;
}

static enum mx8_status start_reduce(struct mx8_comm *c, float *out, const float *in, const size_t *cut,
    int32_t accumulate, void *scratch, int32_t *ticket) {
    struct operation *o = NULL;
    TRY(take_operation(c->backend, ticket, &o));
    o->piece = cut[c->rank + 1] - cut[c->rank];
    o->out = out;
    o->own = in + cut[c->rank];
    o->pieces = scratch;
    o->accumulate = accumulate;
    float *place = scratch;
    for (int32_t r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        TRY(start_message(c, o, r, NULL, place, o->piece * sizeof *place));
        place += o->piece;
    }
    for (int32_t i = 1; i < c->size; i++) {
        const int32_t to = (c->rank + i) % c->size;
        TRY(start_message(c, o, to, in + cut[to], NULL, (cut[to + 1] - cut[to]) * sizeof *in));
    }
    return MX8_OK;
}

static enum mx8_status start_exchange(struct mx8_comm *c, const struct mx8_part *part, int32_t count, int32_t *ticket) {
    struct operation *o = NULL;
    TRY(take_operation(c->backend, ticket, &o));
    for (int32_t i = 0; i < count; i++) {
        if (part[i].peer == c->rank) {
            if (part[i].receive_bytes) memcpy(part[i].receive, part[i].send, part[i].receive_bytes);
        } else if (part[i].receive_bytes) {
            TRY(start_message(c, o, part[i].peer, NULL, part[i].receive, part[i].receive_bytes));
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (part[i].peer == c->rank || !part[i].send_bytes) continue;
        TRY(start_message(c, o, part[i].peer, part[i].send, NULL, part[i].send_bytes));
    }
    return MX8_OK;
}

/* ---- waiting ---- */

static const double STOOD_STILL = 1; /* seconds between two looks: this process was stopped, or the machine slept */

/* Progress, and whether another rank asks who is alive. */
static void look_around(struct world *w) {
    int found = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ALIVE, MPI_COMM_WORLD, &found, &status) == MPI_SUCCESS && found) w->asked = 1;
}

static void poll(struct mx8_comm *c) {
    const struct group *g = c->backend;
    look_around(g->w);
}

/* Marks the ranks that say they are alive, for a while that suits the timeout. */
static void collect_signs_of_life(struct world *w, char *alive) {
    static char word = 1; /* outlives the sends, which nobody waits for */
    const double grace = w->timeout * 0.25 < 5 ? w->timeout * 0.25 : 5, until = get_seconds() + grace;
    /* freed, not waited for: NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker) */
    for (int32_t r = 0; r < w->size; r++) {
        MPI_Request request;
        if (r == w->rank) continue;
        if (MPI_Isend(&word, 1, MPI_BYTE, r, TAG_ALIVE, MPI_COMM_WORLD, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
    for (int32_t spins = SPINS; get_seconds() < until; pause_a_little(spins)) {
        int found = 0;
        char answer;
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ALIVE, MPI_COMM_WORLD, &found, &status) != MPI_SUCCESS || !found) continue;
        MPI_Recv(&answer, 1, MPI_BYTE, status.MPI_SOURCE, TAG_ALIVE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        alive[status.MPI_SOURCE] = 1;
    }
}

static enum mx8_status name_silent_ranks(struct world *w, const struct operation *o, double waited) {
    char silent[256] = "", pending[128] = "";
    char *alive = w->host->allocate((size_t)w->size, "signs of life");
    if (!alive) return MX8_OUT_OF_MEMORY;
    alive[w->rank] = 1;
    collect_signs_of_life(w, alive);
    for (int32_t r = 0; r < w->size; r++) {
        const size_t used = strlen(silent);
        if (!alive[r] && used < sizeof silent - 16)
            snprintf(silent + used, sizeof silent - used, "%s%d", used ? ", " : "", (int)r);
    }
    w->host->release(alive);
    for (int32_t i = 0; i < o->requests; i++) {
        const size_t used = strlen(pending);
        int done = 0;
        if (o->request[i] != MPI_REQUEST_NULL) MPI_Test(&((struct operation *)o)->request[i], &done, MPI_STATUS_IGNORE);
        if (done || o->request[i] == MPI_REQUEST_NULL || used > sizeof pending - 16) continue;
        snprintf(pending + used, sizeof pending - used, "%s%d", used ? ", " : "", (int)o->peer[i]);
    }
    if (!silent[0]) {
        return w->host->fail(MX8_COMM_ERROR,
            "waited %.1f s for rank %s, but every rank answers: they wait for different things, or the network "
            "is slow (comm.train_timeout_seconds, comm.init_timeout_seconds)",
            waited, pending);
    }
    return w->host->fail(MX8_COMM_ERROR,
        "waited %.1f s; no sign of life from rank %s: dead, stuck, or far behind (the limits are "
        "comm.train_timeout_seconds and comm.init_timeout_seconds)",
        waited, silent);
}

static void sum_pieces(const struct operation *o) {
    const int32_t size = o->group->size, rank = o->group->rank;
    enum { STRIP = 2048 }; /* floats at a time stay in the cache while all ranks' pieces are added */
    float sum[STRIP];
    for (size_t at = 0; at < o->piece; at += STRIP) {
        const size_t n = o->piece - at < STRIP ? o->piece - at : STRIP;
        const float *next = o->pieces;
        for (int32_t r = 0; r < size; r++) {
            const float *from = r == rank ? o->own + at : next + at;
            if (r != rank) next += o->piece;
            if (r == 0) {
                memcpy(sum, from, n * sizeof *sum);
            } else {
                for (size_t i = 0; i < n; i++) sum[i] += from[i];
            }
        }
        float *out = o->out + at;
        if (o->accumulate) {
            for (size_t i = 0; i < n; i++) out[i] += sum[i]; /* rank 0 set it: NOLINT(clang-analyzer-core.*) */
        } else {
            memcpy(out, sum, n * sizeof *sum);
        }
    }
}

static enum mx8_status wait(struct mx8_comm *c, int32_t *ticket) {
    if (*ticket <= 0) return MX8_OK;
    const struct group *g = c->backend;
    struct world *w = g->w;
    struct operation *o = &w->operation[*ticket - 1];
    int done = 0;
    double begin = get_seconds(), last = begin;
    for (int32_t spins = 0;; spins++) {
        TRY(check(w, MPI_Testall(o->requests, o->request, &done, MPI_STATUSES_IGNORE), "Testall"));
        if (done) break;
        const double now = get_seconds();
        if (now - last > STOOD_STILL) begin += now - last; /* the others may have been stopped with this process */
        last = now;
        const double waited = now - begin;
        look_around(w);
        if (waited > w->timeout || w->asked) return name_silent_ranks(w, o, waited);
        pause_a_little(spins);
    }
    if (c->traffic) c->traffic->waited += get_seconds() - begin;
    if (o->out) sum_pieces(o);
    o->used = 0;
    *ticket = 0;
    return MX8_OK;
}

/* What was started is waited for where it is used. */
static enum mx8_status settle(struct mx8_comm *c) {
    (void)c;
    return MX8_OK;
}

/* ---- groups, beginning and end ---- */

static const struct mx8_comm_table table;

static enum mx8_status make_group(struct mx8_comm *world, const int32_t *members, int32_t count, struct mx8_comm *out) {
    const struct group *all = world->backend;
    struct world *w = all->w;
    struct group *g = w->host->allocate(sizeof *g + (size_t)count * sizeof *g->member, "a group of ranks");
    if (!g) return MX8_OUT_OF_MEMORY;
    g->w = w;
    g->size = count;
    g->tag = TAG_DATA + w->groups++;
    for (int32_t i = 0; i < count; i++) {
        g->member[i] = members[i];
        if (members[i] == w->rank) g->rank = i;
    }
    *out = (struct mx8_comm){.t = &table, .backend = g, .rank = g->rank, .size = count};
    return MX8_OK;
}

static void set_timeout(struct mx8_comm *c, double seconds) {
    const struct group *g = c->backend;
    g->w->timeout = seconds;
}

static void abort_all(struct mx8_comm *c, int code) {
    (void)c;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void finalize(void) {
    MPI_Finalize();
}

/* The group of all, which is closed last, owns the operations. */
static void close(struct mx8_comm *c) {
    struct group *g = c->backend;
    struct world *w = g->w;
    const int is_world = g->tag == TAG_DATA;
    w->host->release(g);
    if (!is_world) return;
    for (int32_t i = 0; i < OPERATIONS; i++) {
        w->host->release(w->operation[i].request);
        w->host->release(w->operation[i].peer);
    }
    w->host->release(w);
}

static const struct mx8_comm_table table = {.name = "mpi",
    .start_gather = start_gather,
    .start_reduce = start_reduce,
    .start_exchange = start_exchange,
    .wait = wait,
    .poll = poll,
    .settle = settle,
    .make_group = make_group,
    .set_timeout = set_timeout,
    .abort = abort_all,
    .close = close};

__attribute__((visibility("default"))) enum mx8_status mx8_open_mpi(
    const struct mx8_comm_host *host, double timeout, struct mx8_comm *out);

enum mx8_status mx8_open_mpi(const struct mx8_comm_host *host, double timeout, struct mx8_comm *out) {
    int started = 0, rank = 0, size = 0;
    MPI_Initialized(&started);
    if (!started) {
        int level; /* OpenMP threads compute; MPI is called from the first one alone */
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
            return host->fail(MX8_COMM_ERROR, "MPI_Init_thread fails");
        atexit(finalize); /* MPI starts once in a process, jobs may follow one another */
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    struct world *w = host->allocate(sizeof *w, "the MPI transport");
    struct group *g = w ? host->allocate(sizeof *g + (size_t)size * sizeof *g->member, "the MPI transport") : NULL;
    if (!g) {
        host->release(w);
        return MX8_OUT_OF_MEMORY;
    }
    *w = (struct world){.host = host, .rank = rank, .size = size, .groups = 1, .timeout = timeout};
    *g = (struct group){.w = w, .size = size, .rank = rank, .tag = TAG_DATA};
    for (int32_t r = 0; r < size; r++) g->member[r] = r;
    *out = (struct mx8_comm){.t = &table, .backend = g, .rank = rank, .size = size};
    return MX8_OK;
}
