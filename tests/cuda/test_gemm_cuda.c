/* CUDA matrix products against a double reference, within a derived bound, for every mode, operand and output; the FP8
 * tensor-core path also bit for bit against its emulator. */
#include "gemm_testing.h"

#define F8(group, tile)                                                                                                \
    { MX8_F8_E4M3, group, tile, 0, 0 }

static const struct operands {
    struct style a, b;
} kinds[] = {
    {F8(256, 1), F8(256, 32)},
    {F8(256, 1), F8(256, 1)},
    {F8(256, 1), F8(256, 128)},
    {F8(32, 1), F8(32, 1)},
    {F8(128, 1), F8(128, 128)},
    {{MX8_F8_E5M2, 32, 1, 0, 0}, {MX8_F8_E5M2, 32, 1, 0, 0}},
    {{MX8_BF16, 0, 0, 0, 0}, {MX8_BF16, 0, 0, 0, 0}},
    {{MX8_F32, 0, 0, 0, 0}, {MX8_F32, 0, 0, 0, 0}},
};
enum { FAST_KINDS = 3 }; /* the first ones run in the FP8 tensor core where there is one */

/* Outputs in turn, so that each kind meets all of them. f32 operands give f32. */
static void set_output(struct problem *p, int turn) {
    static const struct {
        int32_t dtype, accumulate, bias;
    } outputs[] = {
        {MX8_BF16, 0, 0}, {MX8_F32, 0, 0}, {MX8_F32, 1, 0}, {MX8_BF16, 1, 0}, {MX8_BF16, 0, 1}, {MX8_F32, 0, 2}};
    p->c_dtype = p->a.dtype == MX8_F32 ? MX8_F32 : outputs[turn % 6].dtype;
    p->accumulate = outputs[turn % 6].accumulate;
    p->bias = p->mode == MX8_GEMM_K_GROUPS ? 0 : outputs[turn % 6].bias;
}

static void dense_products_are_right(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t shapes[][3] = {{1, 1, 1}, {1, 33, 32}, {44, 16, 64}, {127, 130, 96}, {128, 128, 256},
        {129, 100, 320}, {300, 264, 512}, {257, 31, 33}, {130, 2880, 96}, {140, 136, 2880}, {600, 48, 130}};
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int k = 0; k < COUNT(kinds); k++) {
            for (int turn = 0; turn < 6; turn++) {
                if (s > 5 && (turn + s + k) % 3) continue;
                struct problem p = {.mode = MX8_GEMM_DENSE,
                    .M = shapes[s][0],
                    .N = shapes[s][1],
                    .K = shapes[s][2],
                    .a = kinds[k].a,
                    .b = kinds[k].b};
                set_output(&p, turn);
                run_problem(&p);
            }
        }
    }
}

static const struct sizes {
    int32_t G, size[12];
} group_lists[] = {
    {1, {300}},
    {1, {0}},
    {8, {1, 44, 127, 128, 129, 255, 0, 256}},
    {4, {0, 130, 0, 31}}, /* first empty */
    {3, {200, 70, 0}},    /* last empty */
    {5, {0, 0, 0, 0, 0}}, /* all empty */
    {6, {7, 300, 0, 0, 513, 1}},
    {8, {63, 64, 65, 192, 193, 320, 384, 32}}, /* around a warpgroup's 64 rows */
    {33, {0}}, /* sizes by rule */
    {128, {0}},
};

static void set_groups(struct problem *p, const struct sizes *list) {
    p->G = list->G;
    for (int32_t g = 0; g < p->G; g++) p->sizes[g] = p->G > 12 ? g * 37 % 41 : list->size[g];
}

static void row_groups_are_right(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t NK[][2] = {{130, 96}, {264, 512}, {100, 32}, {72, 288}, {33, 64}};
    for (int l = 0; l < COUNT(group_lists); l++) {
        for (int k = 0; k < COUNT(kinds); k++) {
            for (int turn = 0; turn < 6; turn++) {
                const int64_t *nk = NK[(turn + l) % COUNT(NK)];
                if (l > 2 && (turn + k) % 3) continue;
                struct problem p = {.mode = MX8_GEMM_M_GROUPS,
                    .N = nk[0],
                    .K = nk[1],
                    .tail = l % 3 * 50,
                    .a = kinds[k].a,
                    .b = kinds[k].b};
                set_groups(&p, &group_lists[l]);
                set_output(&p, turn);
                run_problem(&p);
            }
        }
    }
}

/* 2880 is the width of a real model, and no multiple of 128. */
static void wide_row_groups_are_right(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int k = 0; k < COUNT(kinds); k++) {
        struct problem p = {.mode = MX8_GEMM_M_GROUPS, .N = 2880, .K = 96, .tail = 3, .a = kinds[k].a, .b = kinds[k].b};
        set_groups(&p, &(struct sizes){3, {45, 0, 100}});
        set_output(&p, k);
        run_problem(&p);
        p.N = 96;
        p.K = 2880;
        run_problem(&p);
    }
}

/* Groups of MXFP8 begin where the quantizer put them, multiples of 32; those of the fast path of 128. Others begin
 * anywhere. */
static void contraction_groups_are_right(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t MN[][2] = {{130, 96}, {264, 136}, {300, 33}, {64, 256}};
    for (int l = 0; l < COUNT(group_lists); l++) {
        for (int k = 0; k < COUNT(kinds); k++) {
            for (int turn = 0; turn < 4; turn++) {
                const int64_t *mn = MN[(turn + l) % COUNT(MN)];
                if (l > 2 && (turn + k) % 2) continue;
                struct problem p = {.mode = MX8_GEMM_K_GROUPS,
                    .M = mn[0],
                    .N = mn[1],
                    .tail = l % 3 * 64,
                    .a = kinds[k].a,
                    .b = kinds[k].b};
                p.padding = !is_f8(p.a.dtype) ? 1 : p.a.scale_group == 256 ? 128 : 32;
                set_groups(&p, &group_lists[l]);
                set_output(&p, turn);
                run_problem(&p);
            }
        }
    }
}

/* Transposed and oddly placed operands, mixed dtypes, and `exact`. */
static void other_operands_are_right(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const struct operands others[] = {
        {{MX8_BF16, 0, 0, 1, 0}, {MX8_BF16, 0, 0, 1, 0}}, /* what a bf16 weight gradient reads */
        {{MX8_BF16, 0, 0, 0, 0}, {MX8_BF16, 0, 0, 1, 0}},
        {{MX8_F32, 0, 0, 1, 0}, {MX8_F32, 0, 0, 0, 0}},
        {{MX8_BF16, 0, 0, 0, 1}, {MX8_BF16, 0, 0, 0, 1}},
        {{MX8_F32, 0, 0, 0, 1}, {MX8_F32, 0, 0, 1, 1}},
        {{MX8_F8_E4M3, 32, 1, 1, 0}, {MX8_F8_E4M3, 32, 1, 0, 0}},
        {{MX8_F8_E4M3, 256, 1, 0, 1}, {MX8_F8_E4M3, 256, 32, 0, 1}},
        {{MX8_F8_E4M3, 256, 1, 1, 0}, {MX8_F8_E4M3, 256, 32, 1, 0}},
        {{MX8_F8_E4M3, 32, 1, 0, 0}, {MX8_F8_E4M3, 256, 32, 0, 0}},
        {{MX8_F8_E4M3, 256, 1, 0, 0}, {MX8_BF16, 0, 0, 0, 0}},
        {{MX8_F8_E4M3, 32, 1, 0, 0}, {MX8_F8_E5M2, 32, 1, 0, 0}},
        {{MX8_F32, 0, 0, 0, 0}, {MX8_BF16, 0, 0, 0, 0}},
    };
    for (int i = 0; i < COUNT(others) + COUNT(kinds); i++) {
        for (int mode = 0; mode < 3; mode++) {
            for (int turn = 0; turn < 3; turn++) {
                struct problem p = {.mode = (enum mx8_gemm_mode)mode, .M = 200, .N = 136, .K = 288, .tail = 20};
                p.a = i < COUNT(others) ? others[i].a : kinds[i - COUNT(others)].a;
                p.b = i < COUNT(others) ? others[i].b : kinds[i - COUNT(others)].b;
                p.exact = i >= COUNT(others);
                p.padding = is_f8(p.a.dtype) || is_f8(p.b.dtype) ? 128 : 1;
                if (mode != MX8_GEMM_DENSE) set_groups(&p, &(struct sizes){4, {45, 0, 130, 64}});
                set_output(&p, turn);
                run_problem(&p);
            }
        }
    }
}

/* A NaN reaches what is computed from it and nothing else. */
static void nans_stay_where_they_belong(void **state) {
    (void)state;
    NEEDS_CUDA();
    for (int k = 0; k < COUNT(kinds); k++) {
        for (int mode = 0; mode < 3; mode++) {
            struct problem p = {.mode = (enum mx8_gemm_mode)mode,
                .M = 200,
                .N = 136,
                .K = 512,
                .tail = 20,
                .nan_line = 41,
                .a = kinds[k].a,
                .b = kinds[k].b};
            p.padding = is_f8(p.a.dtype) ? 128 : 64;
            if (mode != MX8_GEMM_DENSE) set_groups(&p, &(struct sizes){3, {100, 40, 150}});
            set_output(&p, k);
            run_problem(&p);
        }
    }
}

static void empty_products_do_nothing(void **state) {
    (void)state;
    NEEDS_CUDA();
    static const int64_t shapes[][3] = {{0, 64, 64}, {64, 0, 64}, {64, 64, 0}, {0, 0, 0}};
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int k = 0; k < COUNT(kinds); k++) {
            for (int turn = 0; turn < 6; turn++) {
                struct problem p = {.mode = MX8_GEMM_DENSE,
                    .M = shapes[s][0],
                    .N = shapes[s][1],
                    .K = shapes[s][2],
                    .a = kinds[k].a,
                    .b = kinds[k].b};
                set_output(&p, turn);
                run_problem(&p);
            }
        }
    }
}

/* The FP8 path, every mode and output without an addend: the emulator's bits. */
static void tensor_core_is_emulated(void **state) {
    (void)state;
    NEEDS_CUDA();
    if (cuda.info.capability != 90) skip();
    static const int64_t NK[][2] = {{136, 2880}, {264, 512}, {2880, 128}, {64, 96}, {48, 1040}};
    for (int i = 0; i < COUNT(NK) * FAST_KINDS * 3 * 2; i++) {
        if (is_left_out()) continue;
        const int64_t *nk = NK[i % COUNT(NK)];
        int k = i / COUNT(NK) % FAST_KINDS, mode = i / (COUNT(NK) * FAST_KINDS) % 3;
        struct problem p = {.mode = (enum mx8_gemm_mode)mode,
            .M = mode == MX8_GEMM_DENSE ? 150 : 70,
            .N = nk[0],
            .K = nk[1],
            .padding = 128,
            .a = kinds[k].a,
            .b = kinds[k].b};
        p.c_dtype = i % 2 ? MX8_F32 : MX8_BF16;
        if (mode != MX8_GEMM_DENSE) set_groups(&p, &(struct sizes){5, {1, 60, 0, 270, 29}});
        struct product c;
        build_product(&c, &p);
        assert_ok(cuda.exec.k->gemm(&cuda.exec, &c.job));
        void *got = fetch_buffer(c.job.c, c.c_bytes, c.name);
        int64_t products = c.outputs * c.problem.M * c.problem.N * (mode == MX8_GEMM_K_GROUPS ? 128 : c.problem.K);
        check_emulated(&c, got, 1 + products / 10000000);
        free(got);
        drop_product(&c);
    }
}

/* A bias runs on the fast path too, and is added in fp32 before the output is rounded: the emulator's bits. Lines whose
 * bytes are no multiple of 16 take another path. */
static void bias_is_emulated(void **state) {
    (void)state;
    NEEDS_CUDA();
    if (cuda.info.capability != 90) skip();
    static const int64_t NK[][2] = {{136, 2880}, {264, 512}, {2880, 128}, {64, 96}, {128, 1040}, {8, 256}};
    for (int i = 0; i < COUNT(NK) * FAST_KINDS * 2 * 4; i++) {
        if (is_left_out()) continue;
        const int64_t *nk = NK[i % COUNT(NK)];
        const int k = i / COUNT(NK) % FAST_KINDS, turn = i / (COUNT(NK) * FAST_KINDS) % 4;
        const int grouped = i / (COUNT(NK) * FAST_KINDS * 4);
        struct problem p = {.mode = grouped ? MX8_GEMM_M_GROUPS : MX8_GEMM_DENSE,
            .M = 300,
            .N = nk[0],
            .K = nk[1],
            .tail = grouped ? 21 : 0,
            .a = kinds[k].a,
            .b = kinds[k].b,
            .c_dtype = turn % 2 ? MX8_F32 : MX8_BF16,
            .bias = 1 + turn / 2};
        if (grouped) set_groups(&p, &(struct sizes){6, {1, 60, 0, 270, 29, 64}});
        struct product c;
        build_product(&c, &p);
        assert_ok(cuda.exec.k->gemm(&cuda.exec, &c.job));
        void *got = fetch_buffer(c.job.c, c.c_bytes, c.name);
        check_product(&c, got);
        check_emulated(&c, got, 1 + c.problem.M * c.problem.N * c.problem.K / 10000000);
        free(got);
        drop_product(&c);
    }
}

/* A product whose scales do not fit the scratch is made by pieces of rows: the same bits, by the same path. */
static void pieces_are_the_product(void **state) {
    (void)state;
    NEEDS_CUDA();
    int64_t fast = 0;
    const size_t scratch = cuda.exec.scratch_bytes;
    for (int i = 0; i < FAST_KINDS * 6; i++) {
        struct problem p = {.M = 2000, .N = 520, .K = 768, .a = kinds[i / 6].a, .b = kinds[i / 6].b};
        set_output(&p, i % 6);
        if (p.c_dtype == MX8_BF16 && p.accumulate) continue; /* no fast path */
        struct product c;
        build_product(&c, &p);
        if (is_fast(&c)) {
            uint8_t *got[2];
            cuda.exec.fast_products = &fast;
            for (int pieces = 0; pieces < 2; pieces++) {
                fast = 0;
                cuda.exec.scratch_bytes = !pieces ? scratch : p.b.tile >= 32 ? 14000 : 26000; /* for 512 to 1,024 rows */
                assert_ok(cuda.exec.k->upload(&cuda.exec, c.job.c, c.c_start, c.c_bytes));
                assert_ok(cuda.exec.k->gemm(&cuda.exec, &c.job));
                got[pieces] = fetch_buffer(c.job.c, c.c_bytes, c.name);
                assert_int_equal(fast, 1);
            }
            cuda.exec.fast_products = NULL;
            cuda.exec.scratch_bytes = scratch;
            expect_same_bytes(c.name, "in pieces", got[1], got[0], c.c_bytes);
            free(got[0]);
            free(got[1]);
        }
        drop_product(&c);
    }
}

/* The same bits every time, whatever order the blocks happen to run in. MX8_TEST_REPEATS: how often (50). MX8_TEST_ONLY=repeats*: nothing
 * else of this program. */
static void repeats_are_identical(void **state) {
    (void)state;
    NEEDS_CUDA();
    const char *text = getenv("MX8_TEST_REPEATS");
    const long repeats = text ? strtol(text, NULL, 10) : 50;
    for (int i = 0; i < COUNT(kinds) * 3 * 3; i++) {
        if (is_left_out()) continue;
        int k = i % COUNT(kinds), mode = i / COUNT(kinds) % 3, turn = i / COUNT(kinds) / 3;
        struct problem p = {.mode = (enum mx8_gemm_mode)mode,
            .M = 1024,
            .N = 520,
            .K = 768,
            .tail = 128,
            .a = kinds[k].a,
            .b = kinds[k].b};
        p.padding = is_f8(p.a.dtype) ? 128 : 64;
        if (mode != MX8_GEMM_DENSE) set_groups(&p, &(struct sizes){4, {255, 0, 383, 127}});
        set_output(&p, turn);
        struct product c;
        build_product(&c, &p);
        uint8_t *first = NULL;
        for (long repeat = 0; repeat < repeats; repeat++) {
            assert_ok(cuda.exec.k->upload(&cuda.exec, c.job.c, c.c_start, c.c_bytes));
            assert_ok(cuda.exec.k->gemm(&cuda.exec, &c.job));
            uint8_t *got = fetch_buffer(c.job.c, c.c_bytes, c.name);
            if (first) expect_same_bytes(c.name, "repeated", got, first, c.c_bytes);
            if (first)
                free(got);
            else
                first = got;
        }
        free(first);
        drop_product(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cuda_unit_test(dense_products_are_right),
        cuda_unit_test(row_groups_are_right),
        cuda_unit_test(wide_row_groups_are_right),
        cuda_unit_test(contraction_groups_are_right),
        cuda_unit_test(other_operands_are_right),
        cuda_unit_test(nans_stay_where_they_belong),
        cuda_unit_test(empty_products_do_nothing),
        cuda_unit_test(tensor_core_is_emulated),
        cuda_unit_test(bias_is_emulated),
        cuda_unit_test(pieces_are_the_product),
        cuda_unit_test(repeats_are_identical),
    };
    cmocka_set_test_filter(getenv("MX8_TEST_ONLY")); /* NULL: all */
    return cmocka_run_group_tests_name("cuda.gemm", tests, open_cuda, close_cuda);
}
