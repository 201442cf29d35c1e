/* Opening and closing what a job's processes talk through. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/error.h"
#include "base/library.h"
#include "base/memory.h"
#include "dist/dist.h"

static const struct mx8_comm_host host = {mx8i_fail, mx8i_allocate, mx8i_release};

/* MPI is linked to its own shared object, not to mx8: the same program runs where no MPI is installed, and another MPI
 * needs that object built again and nothing else. */
static enum mx8_status open_mpi(const struct mx8_launch *launch, double timeout, struct mx8_comm *out) {
    char why[512];
    void *library = mx8i_open_library("libmx8_mpi.so", "MX8_MPI_LIBRARY", 1, why, sizeof why);
    if (!library) {
        return MX8_FAIL(MX8_UNSUPPORTED,
            "%s is %d, but more than one process needs MPI, and its library does not load: %s (install libopenmpi-dev "
            "and build mx8 again)",
            launch->variable, (int)launch->size, why);
    }
    mx8_open_mpi_function open;
    *(void **)&open = dlsym(library, "mx8_open_mpi");
    if (!open) return MX8_FAIL(MX8_LIBRARY_ERROR, "libmx8_mpi.so has no mx8_open_mpi: %s", dlerror());
    MX8_TRY(open(&host, timeout, out));
    if (out->size == launch->size && out->rank == launch->rank) return MX8_OK;
    return MX8_FAIL(MX8_COMM_ERROR,
        "%s says rank %d of %d, MPI says rank %d of %d: start the processes with this MPI's own mpirun, or with srun",
        launch->variable, (int)launch->rank, (int)launch->size, (int)out->rank, (int)out->size);
}

enum mx8_status mx8i_open_dist(const struct mx8_launch *launch, double timeout, struct mx8_dist *out) {
    *out = (struct mx8_dist){.grid = {launch->size, launch->rank, 1, launch->size, 1}};
    if (launch->size == 1) {
        mx8i_open_self(&out->host, &out->traffic);
        return MX8_OK;
    }
    return open_mpi(launch, timeout, &out->host);
}

static enum mx8_status open_nccl(
    struct mx8_dist *d, int32_t device, void *stream, double timeout, struct mx8_comm *out) {
    char why[512];
    void *library = mx8i_open_library("libmx8_cuda.so", "MX8_CUDA_LIBRARY", 0, why, sizeof why);
    mx8_open_nccl_function open = NULL;
    if (library) *(void **)&open = dlsym(library, "mx8_open_nccl");
    if (!open) {
        return MX8_FAIL(MX8_UNSUPPORTED,
            "more than one process on GPUs needs NCCL, which this build's CUDA backend lacks%s%s", library ? "" : ": ",
            library ? "" : why);
    }
    return open(&host, &d->host, device, stream, timeout, out);
}

enum mx8_status mx8i_open_groups(
    struct mx8_dist *d, const struct mx8_grid *grid, int32_t device, void *stream, double timeout) {
    d->grid = *grid;
    d->host.traffic = NULL; /* control messages are not the job's traffic */
    struct mx8_comm *world = &d->group[MX8_GROUP_WORLD];
    if (device >= 0 && grid->world > 1) {
        MX8_TRY(open_nccl(d, device, stream, timeout, world));
    } else {
        *world = d->host;
    }
    world->traffic = &d->traffic;
    int32_t *members = mx8i_allocate((size_t)grid->world * sizeof *members, "groups of ranks");
    enum mx8_status status = members ? MX8_OK : MX8_OUT_OF_MEMORY;
    for (int32_t g = MX8_GROUP_WORLD + 1; g < MX8_GROUP_COUNT && status == MX8_OK; g++) {
        struct mx8_comm *group = &d->group[g];
        const int32_t count = mx8i_list_group(grid, (enum mx8_group)g, members, &group->rank);
        if (count == 1 && device < 0) {
            mx8i_open_self(group, &d->traffic);
        } else {
            status = world->t->make_group(world, members, count, group);
            group->traffic = &d->traffic;
        }
    }
    mx8i_release(members);
    return status;
}

void mx8i_imagine_dist(const struct mx8_grid *grid, struct mx8_dist *out) {
    *out = (struct mx8_dist){.grid = *grid, .host = {.rank = grid->rank, .size = grid->world}};
    const int32_t s = grid->rank % grid->shard, e = s % grid->expert;
    out->group[MX8_GROUP_WORLD] = out->host;
    out->group[MX8_GROUP_SHARD] = (struct mx8_comm){.rank = s, .size = grid->shard};
    out->group[MX8_GROUP_REPLICATE] = (struct mx8_comm){.rank = grid->rank / grid->shard, .size = grid->replicate};
    out->group[MX8_GROUP_EXPERT] = (struct mx8_comm){.rank = e, .size = grid->expert};
    out->group[MX8_GROUP_EXPERT_SHARD] =
        (struct mx8_comm){.rank = s / grid->expert, .size = grid->shard / grid->expert};
}

void mx8i_set_dist_timeout(struct mx8_dist *d, double seconds) {
    for (int32_t g = 0; g < MX8_GROUP_COUNT; g++) {
        if (d->group[g].t) d->group[g].t->set_timeout(&d->group[g], seconds);
    }
    if (d->host.t) d->host.t->set_timeout(&d->host, seconds);
}

void mx8i_close_dist(struct mx8_dist *d) {
    const int is_host = d->group[MX8_GROUP_WORLD].t == d->host.t; /* the same transport twice */
    for (int32_t g = MX8_GROUP_COUNT - 1; g >= is_host; g--) {
        if (d->group[g].t) d->group[g].t->close(&d->group[g]);
    }
    if (d->host.t) d->host.t->close(&d->host);
    *d = (struct mx8_dist){0};
}

void mx8i_abort_dist(struct mx8_dist *d, int code) {
    if (!d->host.t || d->host.size == 1) return;
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); /* the others have something to say, too */
    d->host.t->abort(&d->host, code);
}
