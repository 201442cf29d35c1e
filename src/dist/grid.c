/* The grid: rank = r * shard + s for replica r and shard s; inside a shard group the expert index moves fastest. */
#include "base/error.h"
#include "dist/dist.h"

enum mx8_status mx8i_make_grid(
    int32_t world, int32_t rank, int64_t replicate, int64_t shard, int64_t expert, struct mx8_grid *out) {
    *out = (struct mx8_grid){0};
    if (replicate < 1 || world % replicate) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "parallelism.data_parallel_replicate_degree is %lld, expected a divisor of the %d process%s",
            (long long)replicate, (int)world, world == 1 ? "" : "es");
    }
    if (shard == -1) shard = world / replicate;
    if (shard < 1) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "parallelism.data_parallel_shard_degree is %lld, expected -1 or at least 1", (long long)shard);
    }
    if (world == 1 && shard > 1) {
        return MX8_FAIL(MX8_UNSUPPORTED,
            "parallelism.data_parallel_shard_degree is %lld, but there is one process: start %lld with \"mpirun -n "
            "%lld "
            "mx8 train ...\", or give 1, or -1 for what is there",
            (long long)shard, (long long)shard, (long long)shard);
    }
    if (shard > world || replicate * shard != world) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "parallelism.data_parallel_replicate_degree %lld x data_parallel_shard_degree %lld is %lld, but there are "
            "%d "
            "processes",
            (long long)replicate, (long long)shard, (long long)(replicate * shard), (int)world);
    }
    if (expert < 1 || shard % expert) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "parallelism.expert_parallel_degree is %lld, expected a divisor of the shard degree, which is %lld",
            (long long)expert, (long long)shard);
    }
    *out = (struct mx8_grid){world, rank, (int32_t)replicate, (int32_t)shard, (int32_t)expert};
    return MX8_OK;
}

int32_t mx8i_list_group(const struct mx8_grid *g, enum mx8_group group, int32_t *members, int32_t *own) {
    const int32_t s = g->rank % g->shard, e = s % g->expert, replica = g->rank - s;
    const struct {
        int32_t first, stride, count;
    } groups[MX8_GROUP_COUNT] = {[MX8_GROUP_WORLD] = {0, 1, g->world},
        [MX8_GROUP_SHARD] = {replica, 1, g->shard},
        [MX8_GROUP_REPLICATE] = {s, g->shard, g->replicate},
        [MX8_GROUP_EXPERT] = {replica + s - e, 1, g->expert},
        [MX8_GROUP_EXPERT_SHARD] = {replica + e, g->expert, g->shard / g->expert}};
    *own = (g->rank - groups[group].first) / groups[group].stride;
    for (int32_t i = 0; i < groups[group].count; i++) members[i] = groups[group].first + i * groups[group].stride;
    return groups[group].count;
}
