/* What can be known without other processes: cuts, grids, launchers' variables, a group of one, and what is said when a
 * library is missing. */
#include "test.h"
#include "dist/dist.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ---- cuts ---- */

static int is_edge(const struct mx8_run_of *run, int64_t runs, size_t size, size_t cut) {
    if (cut == 0 || cut == size) return 1;
    for (int64_t i = 0; i < runs; i++) {
        if (cut >= run[i].at && cut < run[i].at + run[i].count) return (cut - run[i].at) % run[i].granule == 0;
    }
    return 0; /* between two tensors: a cut there belongs to the next one's start */
}

static void test_cuts_are_edges_and_even(void **state) {
    (void)state;
    const struct {
        struct mx8_run_of run[4];
        int64_t runs;
        size_t size;
    } cases[] = {
        {{{0, 64, 64}}, 1, 64},      /* smaller than most worlds */
        {{{0, 4096, 256}}, 1, 4096}, /* even */
        {{{0, 4000, 256}}, 1, 4032}, /* the last granule is short */
        {{{0, 64, 64}, {64, 8192, 1024}, {8256, 100, 64}, {8384, 96 * 320, 32 * 96}}, 4, 39104}, /* gaps, mixed */
        {{{0, 5, 64}, {64, 7, 64}}, 2, 128},
        {{{0, 0, 64}}, 0, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t largest = 0;
        for (int64_t k = 0; k < cases[i].runs; k++) {
            if (largest < cases[i].run[k].granule) largest = cases[i].run[k].granule;
        }
        for (int32_t parts = 1; parts <= 9; parts++) {
            size_t cut[10];
            mx8i_split(cases[i].run, cases[i].runs, cases[i].size, parts, cut);
            assert_int_equal(cut[0], 0);
            assert_int_equal(cut[parts], cases[i].size);
            for (int32_t p = 0; p < parts; p++) {
                assert_true(cut[p] <= cut[p + 1]);
                assert_true(is_edge(cases[i].run, cases[i].runs, cases[i].size, cut[p]));
                /* each end moved by half a granule at most, or over a gap */
                assert_true(cut[p + 1] - cut[p] <= cases[i].size / (size_t)parts + 1 + largest + 128);
            }
        }
    }
    size_t cut[5];
    mx8i_split(cases[1].run, 1, 4096, 4, cut);
    for (int32_t p = 0; p <= 4; p++) assert_int_equal(cut[p], (size_t)p * 1024);
}

/* ---- grids ---- */

static void test_grids(void **state) {
    (void)state;
    const struct {
        int32_t world, rank;
        int64_t replicate, shard, expert;
        enum mx8_status status;
        const char *message;
    } cases[] = {
        {1, 0, 1, -1, 1, MX8_OK, NULL},
        {8, 5, 2, -1, 4, MX8_OK, NULL},
        {8, 5, 1, 8, 1, MX8_OK, NULL},
        {1, 0, 1, 2, 1, MX8_UNSUPPORTED, "mpirun -n 2 mx8 train"},
        {4, 0, 3, -1, 1, MX8_INVALID_ARGUMENT, "replicate_degree is 3, expected a divisor of the 4 processes"},
        {4, 0, 0, -1, 1, MX8_INVALID_ARGUMENT, "replicate_degree is 0"},
        {4, 0, 1, 0, 1, MX8_INVALID_ARGUMENT, "expected -1 or at least 1"},
        {4, 0, 1, 2, 1, MX8_INVALID_ARGUMENT, "there are 4"},
        {4, 0, 2, 4, 1, MX8_INVALID_ARGUMENT, "is 8, but there are 4"},
        {4, 0, 1, 1ll << 40, 1, MX8_INVALID_ARGUMENT, "there are 4"},
        {4, 0, 2, 2, 4, MX8_INVALID_ARGUMENT, "expert_parallel_degree is 4, expected a divisor of the shard degree"},
        {4, 0, 1, 4, 3, MX8_INVALID_ARGUMENT, "expert_parallel_degree is 3"},
        {1, 0, 1, 1, 2, MX8_INVALID_ARGUMENT, "expert_parallel_degree is 2"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_grid g;
        assert_status(
            mx8i_make_grid(cases[i].world, cases[i].rank, cases[i].replicate, cases[i].shard, cases[i].expert, &g),
            cases[i].status);
        if (cases[i].message) assert_message(cases[i].message);
    }
}

/* Every group's lists agree from whichever member they are asked, and cover the world once. */
static void test_groups(void **state) {
    (void)state;
    const int32_t shapes[][3] = {{1, 1, 1}, {1, 4, 1}, {1, 4, 2}, {1, 4, 4}, {2, 2, 2}, {2, 4, 2}, {3, 6, 3}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const int32_t world = shapes[i][0] * shapes[i][1];
        for (int32_t group = 0; group < MX8_GROUP_COUNT; group++) {
            for (int32_t rank = 0; rank < world; rank++) {
                int32_t mine[32], theirs[32], own, their_own;
                struct mx8_grid g = {world, rank, shapes[i][0], shapes[i][1], shapes[i][2]};
                const int32_t n = mx8i_list_group(&g, (enum mx8_group)group, mine, &own);
                assert_int_equal(mine[own], rank);
                for (int32_t k = 0; k < n; k++) {
                    g.rank = mine[k];
                    assert_int_equal(mx8i_list_group(&g, (enum mx8_group)group, theirs, &their_own), n);
                    assert_int_equal(their_own, k);
                    assert_memory_equal(mine, theirs, (size_t)n * sizeof *mine);
                }
            }
        }
    }
    int32_t members[8], own;
    const struct mx8_grid g = {8, 5, 2, 4, 2}; /* replica 1, shard 1, expert index 1 */
    assert_int_equal(mx8i_list_group(&g, MX8_GROUP_EXPERT, members, &own), 2);
    assert_int_equal(members[0], 4);
    assert_int_equal(mx8i_list_group(&g, MX8_GROUP_EXPERT_SHARD, members, &own), 2);
    assert_int_equal(members[1], 7);
    assert_int_equal(mx8i_list_group(&g, MX8_GROUP_REPLICATE, members, &own), 2);
    assert_int_equal(members[0], 1);
}

/* ---- launchers ---- */

static void clear_variables(void) {
    const char *const all[] = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_SIZE",
        "PMI_RANK", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "WORLD_SIZE", "RANK",
        "LOCAL_RANK"};
    for (size_t i = 0; i < COUNT(all); i++) unsetenv(all[i]);
}

static void test_launchers(void **state) {
    (void)state;
    const struct {
        const char *set[8]; /* name, value, ... */
        int32_t rank, size, local;
    } cases[] = {
        {{NULL}, 0, 1, 0},
        {{"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_LOCAL_RANK", "1"}, 3, 4, 1},
        {{"PMI_SIZE", "2", "PMI_RANK", "1"}, 1, 2, 0},
        {{"WORLD_SIZE", "8", "RANK", "7", "LOCAL_RANK", "3"}, 7, 8, 3},
        {{"SLURM_NTASKS", "8", "SLURM_PROCID", "0"}, 0, 1, 0}, /* sbatch without srun */
        {{"SLURM_NTASKS", "8", "SLURM_PROCID", "2", "SLURM_STEP_ID", "0"}, 2, 8, 0},
        {{"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "1", "WORLD_SIZE", "16", "RANK", "9"}, 1, 2, 0},
        {{"WORLD_SIZE", "many"}, 0, 1, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_launch launch;
        clear_variables();
        for (int k = 0; k < 8 && cases[i].set[k]; k += 2) setenv(cases[i].set[k], cases[i].set[k + 1], 1);
        assert_ok(mx8i_find_launch(&launch));
        assert_int_equal(launch.rank, cases[i].rank);
        assert_int_equal(launch.size, cases[i].size);
        assert_int_equal(launch.local_rank, cases[i].local);
    }
    struct mx8_launch launch;
    clear_variables();
    setenv("WORLD_SIZE", "4", 1);
    setenv("RANK", "4", 1);
    assert_status(mx8i_find_launch(&launch), MX8_INVALID_ARGUMENT);
    assert_message("RANK is \"4\": expected 0 to 3");
    clear_variables();
}

static void test_missing_library(void **state) {
    (void)state;
    struct mx8_dist d;
    setenv("MX8_MPI_LIBRARY", "/nowhere/libmx8_mpi.so", 1);
    assert_status(mx8i_open_dist(&(struct mx8_launch){0, 2, 0, "WORLD_SIZE"}, 1, &d), MX8_UNSUPPORTED);
    assert_message("WORLD_SIZE is 2");
    assert_message("libopenmpi-dev");
    unsetenv("MX8_MPI_LIBRARY");
}

/* ---- a group of one ---- */

static void test_self(void **state) {
    (void)state;
    struct mx8_dist d;
    const struct mx8_grid grid = {1, 0, 1, 1, 1};
    assert_ok(mx8i_open_dist(&(struct mx8_launch){.size = 1}, 1, &d));
    assert_ok(mx8i_open_groups(&d, &grid, -1, NULL, 1));
    struct mx8_comm *c = &d.group[MX8_GROUP_SHARD];
    const size_t cut[2] = {0, 3};
    float in[3] = {1, 2, 3}, out[3] = {10, 10, 10};
    int32_t ticket;
    assert_ok(c->t->start_reduce(c, out, in, cut, 1, NULL, &ticket));
    assert_ok(c->t->wait(c, &ticket));
    assert_true(out[0] == 11 && out[2] == 13);
    char to[2] = "";
    struct mx8_part part = {.send = "ab", .send_bytes = 2, .receive = to, .receive_bytes = 2};
    assert_ok(c->t->start_exchange(c, &part, 1, &ticket));
    assert_memory_equal(to, "ab", 2);
    double x = 4;
    assert_ok(mx8i_sum_doubles(&d.host, &x, 1));
    assert_ok(mx8i_sum_floats(c, in, 3, NULL, 0));
    assert_ok(mx8i_barrier(&d.host));
    assert_true(x == 4 && in[1] == 2);
    mx8i_abort_dist(&d, 1); /* nobody to end */
    mx8i_close_dist(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts_are_edges_and_even), cmocka_unit_test(test_grids),
        cmocka_unit_test(test_groups), cmocka_unit_test(test_launchers), cmocka_unit_test(test_missing_library),
        cmocka_unit_test(test_self)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
