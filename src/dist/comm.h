/* The communicator table: one struct of function pointers that a transport fills (self, MPI, NCCL), as kernels.h is for
 * kernels. Everything starts at once and returns a ticket; until wait() returns, the buffers belong to the transport. All
 * ranks of a group start the same operations in the same order. Pointers are the transport's: host memory for MPI, device
 * memory for NCCL. Sums are fp32: of MPI in rising order of rank, whatever its library; of NCCL in the order that it picks,
 * the same in every run on the same machines. */
#ifndef MX8_DIST_COMM_H
#define MX8_DIST_COMM_H

#include <stddef.h>
#include <stdint.h>
#include "mx8/status.h"

/* What a transport in a shared object needs from the program that opened it. */
struct mx8_comm_host {
    enum mx8_status (*fail)(enum mx8_status status, const char *format, ...);
    void *(*allocate)(size_t size, const char *what);
    void (*release)(void *pointer);
};

/* Of one process, over all its groups. */
struct mx8_traffic {
    int64_t sent;   /* bytes handed to other ranks */
    double waited;  /* seconds inside wait() with nothing else to do */
};

/* A group of ranks, seen from one of them. */
struct mx8_comm {
    const struct mx8_comm_table *t; /* NULL: a group to plan with, that cannot communicate */
    void *backend;
    int32_t rank, size;             /* inside the group */
    struct mx8_traffic *traffic;    /* may be NULL */
};

/* One piece of an exchange. A peer's pieces arrive in the order in which they were started there; both sides know the
 * sizes. A piece to the own rank is a copy: send and receive are both given. */
struct mx8_part {
    int32_t peer;
    const void *send; size_t send_bytes;
    void *receive; size_t receive_bytes;
};

struct mx8_comm_table {
    const char *name;
    /* In place: rank r holds bytes [cut[r], cut[r+1]) of buffer on entry, all of them after wait. */
    enum mx8_status (*start_gather)(struct mx8_comm *c, void *buffer, const size_t *cut, int32_t *ticket);
    /* Reduce-scatter: out[i] = (accumulate: out[i] +) sum over the ranks of their in[cut[rank] + i]; cut counts floats.
     * scratch: mx8i_count_reduce_scratch bytes. */
    enum mx8_status (*start_reduce)(struct mx8_comm *c, float *out, const float *in, const size_t *cut,
                                    int32_t accumulate, void *scratch, int32_t *ticket);
    enum mx8_status (*start_exchange)(struct mx8_comm *c, const struct mx8_part *part, int32_t count, int32_t *ticket);
    /* MPI: returns when it is done. NCCL: later work on the context's stream comes after it. *ticket 0: at once; becomes 0.
     * A peer that lets the timeout pass is named in the error. */
    enum mx8_status (*wait)(struct mx8_comm *c, int32_t *ticket);
    /* Lets the transport get on; called between operators. */
    void (*poll)(struct mx8_comm *c);
    /* The host is about to wait for the device: returns when all that was started is done, or names who is missing. */
    enum mx8_status (*settle)(struct mx8_comm *c);
    /* Of the group of all: a group of some of its ranks (members: world ranks, rising), for every rank that is a member. */
    enum mx8_status (*make_group)(struct mx8_comm *world, const int32_t *members, int32_t count, struct mx8_comm *out);
    void (*set_timeout)(struct mx8_comm *world, double seconds);
    void (*abort)(struct mx8_comm *world, int code); /* ends every rank; returns only when it cannot */
    void (*close)(struct mx8_comm *c);               /* of the group of all, last: leaves the transport */
};

/* Bytes of scratch that a reduce of these cuts needs on this rank: a piece from every other rank. */
size_t mx8i_count_reduce_scratch(const struct mx8_comm *c, const size_t *cut);

/* dist/self.c: a group of one. */
void mx8i_open_self(struct mx8_comm *out, struct mx8_traffic *traffic);

/* The symbols of libmx8_mpi.so and libmx8_cuda.so. device: CUDA ordinal; stream: what the kernels run on; world: a host
 * transport of the same ranks, for the bootstrap. */
typedef enum mx8_status (*mx8_open_mpi_function)(const struct mx8_comm_host *host, double timeout, struct mx8_comm *out);
typedef enum mx8_status (*mx8_open_nccl_function)(const struct mx8_comm_host *host, struct mx8_comm *world, int32_t device,
                                                  void *stream, double timeout, struct mx8_comm *out);

#endif
