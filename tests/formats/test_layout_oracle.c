/* Scale layouts and group padding against torchao's bytes, and back again. */
#include "fixtures.h"
#include "formats/jobs.h"

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

struct expected {
    const struct mx8_st_entry *scales, *offsets, *blocked, *starts; /* offsets and starts only with groups */
    int32_t layout;
};

/* Unblocking must give the plain scales again, through strides that are not the ones blocking read. */
static void check_way_back(const struct mx8_layout_job *forward, const uint8_t *plain) {
    int64_t E = forward->E, R = forward->R, C = forward->C, pitch = E * (R + 3);
    uint8_t *back = make_bytes((size_t)(C * pitch));
    struct mx8_layout_job job = *forward;
    job.plain = back;
    job.starts = NULL;
    job.plain_stride[0] = R + 3;
    job.plain_stride[1] = 1;
    job.plain_stride[2] = pitch;
    mx8i_reference_unblock_scales(&job);
    for (int64_t e = 0; e < E; e++) {
        for (int64_t c = 0; c < C; c++) {
            for (int64_t r = 0; r < R + 3; r++) {
                int want = r < R ? plain[(e * R + r) * C + c] : 0xA5;
                assert_int_equal(back[e * (R + 3) + r + c * pitch], want);
            }
        }
    }
    free(back);
}

static void check_layout(const struct expected *x) {
    const struct mx8_st_entry *s = x->scales;
    int64_t E = s->ndim == 3 ? s->shape[0] : 1, R = s->shape[s->ndim - 2], C = s->shape[s->ndim - 1];
    int32_t G = x->offsets ? (int32_t)x->offsets->shape[0] : 0;
    uint8_t *plain = make_bytes(s->size), *blocked = make_bytes(x->blocked->size);
    int64_t *starts = make_bytes((size_t)(G + 1) * sizeof *starts);
    memcpy(plain, s->data, s->size);
    struct mx8_layout_job job = {.plain = plain,
        .blocked = blocked,
        .E = E,
        .R = R,
        .C = C,
        .layout = x->layout,
        .offsets = x->offsets ? x->offsets->data : NULL,
        .n_groups = G,
        .starts = x->starts ? starts : NULL,
        .plain_stride = {R * C, C, 1}};
    mx8i_reference_block_scales(&job);
    check_bytes(x->blocked, blocked);
    if (x->starts) {
        assert_int_equal(x->starts->shape[0], G + 1);
        check_bytes(x->starts, starts);
    }
    check_way_back(&job, plain);
    free(plain);
    free(blocked);
    free(starts);
}

static void plain_matrices(void **state) {
    (void)state;
    static const int sizes[][2] = {{128, 4}, {256, 8}, {100, 3}, {4, 4}, {50, 10}, {384, 12}, {1, 1}, {300, 9}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int r = sizes[i][0], c = sizes[i][1];
        struct expected x = {.scales = get_fixture("plain.%dx%d.s", r, c),
            .blocked = get_fixture("plain.%dx%d.blocked", r, c),
            .layout = MX8_LAYOUT_PLAIN};
        assert_int_equal(x.blocked->size, round_up(r, 128) * round_up(c, 4));
        check_layout(&x);
    }
}

static void groups_of_rows_and_columns(void **state) {
    (void)state;
    for (const char *name = "abc"; *name; name++) {
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            char axis = by_rows ? 'm' : 'k';
            struct expected x = {.scales = get_fixture("%c.%c.s", axis, *name),
                .offsets = get_fixture("%c.%c.offs", axis, *name),
                .blocked = get_fixture("%c.%c.blocked", axis, *name),
                .starts = get_fixture("%c.%c.starts", axis, *name),
                .layout = by_rows ? MX8_LAYOUT_M_GROUPS : MX8_LAYOUT_K_GROUPS};
            /* The upper bounds that mx8_block_scales promises are torchao's. */
            int64_t R = x.scales->shape[0], C = x.scales->shape[1], G = x.offsets->shape[0];
            assert_int_equal(x.blocked->shape[0], by_rows ? R + 128 * G : round_up(R, 128));
            assert_int_equal(x.blocked->shape[1], by_rows ? round_up(C, 4) : C + 4 * G);
            check_layout(&x);
        }
    }
}

static void experts(void **state) {
    (void)state;
    static const int sizes[][3] = {{2, 96, 6}, {3, 128, 4}, {1, 160, 5}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int e = sizes[i][0], n = sizes[i][1], c = sizes[i][2];
        struct expected x = {.scales = get_fixture("e.%dx%dx%d.s", e, n, c),
            .blocked = get_fixture("e.%dx%dx%d.blocked", e, n, c),
            .layout = MX8_LAYOUT_PER_EXPERT};
        assert_int_equal(x.blocked->shape[1], round_up(n, 128) * round_up(c, 4));
        check_layout(&x);
    }
}

/* Scales past the last group have no place in the blocked form: zero bytes there, and zeros on the way back. */
static void tails_become_zero(void **state) {
    (void)state;
    static const int32_t ends[] = {0, 5, 5, 9};
    uint8_t plain[12 * 12], back[12 * 12], blocked[(12 + 4 * 128) * 12 + 128 * (12 + 4 * 4)];
    for (int by_rows = 0; by_rows < 2; by_rows++) {
        int32_t layout = by_rows ? MX8_LAYOUT_M_GROUPS : MX8_LAYOUT_K_GROUPS;
        size_t size = by_rows ? (12 + 4 * 128) * 12 : 128 * (12 + 4 * 4), used = 0;
        for (int i = 0; i < 12 * 12; i++) plain[i] = (uint8_t)(i + 1);
        memset(blocked, 0xA5, sizeof blocked);
        memset(back, 0xA5, sizeof back);
        struct mx8_layout_job job = {.plain = plain,
            .blocked = blocked,
            .E = 1,
            .R = 12,
            .C = 12,
            .layout = layout,
            .offsets = ends,
            .n_groups = 4,
            .plain_stride = {144, 12, 1}};
        mx8i_reference_block_scales(&job);
        for (size_t i = 0; i < size; i++) used += blocked[i] != 0;
        assert_int_equal(used, 9 * 12);
        assert_int_equal(blocked[size], 0xA5);
        job.plain = back;
        mx8i_reference_unblock_scales(&job);
        for (int i = 0; i < 12 * 12; i++) assert_int_equal(back[i], (by_rows ? i / 12 : i % 12) < 9 ? plain[i] : 0);
    }
}

static void nothing_to_block(void **state) {
    (void)state;
    static const int32_t none[] = {0, 0};
    uint8_t blocked[2 * 128 * 4];
    int64_t starts[3] = {-1, -1, -1};
    memset(blocked, 0xA5, sizeof blocked);
    struct mx8_layout_job job = {.blocked = blocked,
        .E = 1,
        .R = 0,
        .C = 4,
        .layout = MX8_LAYOUT_M_GROUPS,
        .offsets = none,
        .n_groups = 2,
        .starts = starts,
        .plain_stride = {0, 4, 1}};
    mx8i_reference_block_scales(&job);
    mx8i_reference_unblock_scales(&job);
    for (size_t i = 0; i < sizeof blocked; i++) assert_int_equal(blocked[i], 0);
    for (int i = 0; i < 3; i++) assert_int_equal(starts[i], 0);
    job.layout = MX8_LAYOUT_PER_EXPERT;
    job.E = 0;
    job.n_groups = 0;
    mx8i_reference_block_scales(&job);
    mx8i_reference_unblock_scales(&job);
}

static void pads_like_torchao(void **state) {
    (void)state;
    for (const char *name = "ab"; *name; name++) {
        const struct mx8_st_entry *x = get_fixture("pad.%c.x", *name), *want = get_fixture("pad.%c.padded", *name);
        const struct mx8_st_entry *offsets = get_fixture("pad.%c.offs", *name);
        int64_t rows = x->shape[0], cols = x->shape[1];
        int32_t G = (int32_t)offsets->shape[0], starts[8], ends[8];
        assert_int_equal(want->shape[0], round_up(rows + 32 * G, 32));
        void *padded = make_bytes(want->size), *copy = make_bytes(x->size);
        memcpy(copy, x->data, x->size);
        struct mx8_pad_job job = {.padded = padded,
            .x = copy,
            .rows = rows,
            .padded_rows = want->shape[0],
            .cols = cols,
            .elem_size = 2,
            .x_stride = cols,
            .padded_stride = cols,
            .offsets = offsets->data,
            .n_groups = G,
            .alignment = 32,
            .starts = starts,
            .ends = ends};
        mx8i_reference_pad_groups(&job);
        check_bytes(want, padded);
        check_bytes(get_fixture("pad.%c.start", *name), starts);
        check_bytes(get_fixture("pad.%c.end", *name), ends);
        memset(copy, 0xA5, x->size);
        mx8i_reference_unpad_groups(&job);
        check_bytes(x, copy);
        free(padded);
        free(copy);
    }
}

/* 3 columns of a pitch of 5 and of 4, groups of 0, 3, 0, 8, 1 and 0 rows, two rows left over, aligned to 8. */
static void pads_any_group(void **state) {
    (void)state;
    enum { ROWS = 14, PADDED = 64, G = 6 };
    static const int32_t offsets[G] = {0, 3, 3, 11, 12, 12}, want_starts[G] = {0, 0, 8, 8, 16, 24};
    static const int32_t want_ends[G] = {0, 8, 8, 16, 24, 24};
    int32_t x[ROWS * 5], padded[PADDED * 4], starts[G], ends[G], poison;
    memset(&poison, 0xA5, sizeof poison);
    memset(padded, 0xA5, sizeof padded);
    for (int i = 0; i < ROWS * 5; i++) x[i] = i + 1;
    struct mx8_pad_job job = {.padded = padded,
        .x = x,
        .rows = ROWS,
        .padded_rows = PADDED,
        .cols = 3,
        .elem_size = 4,
        .x_stride = 5,
        .padded_stride = 4,
        .offsets = offsets,
        .n_groups = G,
        .alignment = 8,
        .starts = starts,
        .ends = ends};
    mx8i_reference_pad_groups(&job);
    assert_memory_equal(starts, want_starts, sizeof starts);
    assert_memory_equal(ends, want_ends, sizeof ends);
    for (int r = 0; r < PADDED; r++) {
        int from = r < 3 ? r : r >= 8 && r < 16 ? r - 5 : r == 16 ? 11 : -1;
        for (int c = 0; c < 3; c++) assert_int_equal(padded[r * 4 + c], from < 0 ? 0 : from * 5 + c + 1);
        assert_int_equal(padded[r * 4 + 3], poison);
    }
    memset(x, 0xA5, sizeof x);
    mx8i_reference_unpad_groups(&job);
    for (int r = 0; r < ROWS; r++) {
        for (int c = 0; c < 5; c++) assert_int_equal(x[r * 5 + c], c > 2 ? poison : r < 12 ? r * 5 + c + 1 : 0);
    }
}

static void no_fixture_is_left_over(void **state) {
    (void)state;
    assert_int_equal(fixtures.count, 8 * 2 + 3 * 4 + 3 * 4 + 3 * 2 + 2 * 5);
}

static int open_layouts(void **state) {
    (void)state;
    return open_fixtures("layouts.safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_matrices),
        cmocka_unit_test(groups_of_rows_and_columns),
        cmocka_unit_test(experts),
        cmocka_unit_test(tails_become_zero),
        cmocka_unit_test(nothing_to_block),
        cmocka_unit_test(pads_like_torchao),
        cmocka_unit_test(pads_any_group),
        cmocka_unit_test(no_fixture_is_left_over),
    };
    return cmocka_run_group_tests_name("formats.layout_oracle", tests, open_layouts, close_fixtures);
}
