/* The operator table: its texts, what infer says of shapes good and bad, and what mx8_run_op refuses. Nothing here
 * looks at numbers. */
#include "ops_test.h"

/* ---- texts ---- */

/* Checks that `schema` lists `ports` in order, optional ones as "Tensor?"; returns what follows. */
static const char *follow_ports(const char *text, const struct mx8_port *ports, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        char item[64];
        int optional = (ports[i].takes & MX8I_OPTIONAL) != 0;
        int length = snprintf(item, sizeof item, "Tensor%s %s", optional ? "?" : "", ports[i].name);
        if (strncmp(text, item, (size_t)length) != 0) fail_msg("expected \"%s\" at \"%s\"", item, text);
        text += length;
        if (i + 1 < n) {
            assert_memory_equal(text, ", ", 2);
            text += 2;
        }
    }
    return text;
}

static void check_schema(const char *name, const char *suffix, const char *schema, const struct mx8_pass *pass) {
    char start[64];
    int length = snprintf(start, sizeof start, "%s%s(", name, suffix);
    assert_memory_equal(schema, start, (size_t)length);
    const char *text = follow_ports(schema + length, pass->in, pass->n_in);
    const char *arrow = pass->n_out > 1 ? ") -> (" : ") -> ";
    assert_memory_equal(text, arrow, strlen(arrow));
    text = follow_ports(text + strlen(arrow), pass->out, pass->n_out);
    assert_string_equal(text, pass->n_out > 1 ? ")" : "");
}

static void test_rows_and_schemas(void **state) {
    (void)state;
    assert_int_equal(mx8_get_op_count(), MX8_OP_COUNT);
    assert_null(mx8_get_op(-1));
    assert_null(mx8_get_op(MX8_OP_COUNT));
    assert_null(mx8_find_op("nothing"));
    assert_null(mx8_find_op(NULL));
    for (int32_t i = 0; i < MX8_OP_COUNT; i++) {
        const struct mx8_op *op = mx8_get_op(i);
        const struct mx8_op_row *row = mx8i_get_row(op);
        assert_ptr_equal(mx8_find_op(op->name), op);
        assert_true(strlen(op->description) > 60);
        check_schema(op->name, "", op->schema, &row->forward);
        assert_int_equal(!op->backward, !op->backward_schema);
        assert_int_equal(!op->backward, !op->infer_backward);
        if (op->backward) check_schema(op->name, "_backward", op->backward_schema, &row->backward);
    }
    assert_string_equal(mx8_get_op(MX8_OP_LINEAR)->name, "linear");
    assert_string_equal(mx8_get_op(MX8_OP_ADD)->name, "add");
}

/* ---- infer ---- */

#define F32   MX8_F32
#define BF16  MX8_BF16
#define I32   MX8_I32
#define CODE  MX8_F8_E4M3
#define SCALE MX8_F8_E8M0

struct shape {
    int32_t dtype, ndim;
    int64_t size[4];
};

/* One call: inputs by shape (ndim 0: absent), options, then either the outputs or the words of the message. */
struct infer_case {
    const char *op;
    int backward;
    struct shape in[9], out[8];
    struct mx8_op_options options;
    const char *words[3];
};

static const struct infer_case infer_cases[] = {
    {"quantize_rows", 0, {{BF16, 2, {5, 70}}}, {{CODE, 2, {5, 70}}, {SCALE, 2, {5, 3}}}, {0}, {0}},
    {"quantize_rows", 0, {{BF16, 2, {0, 0}}}, {{CODE, 2, {0, 0}}, {SCALE, 2, {0, 0}}}, {0}, {0}},
    {"quantize_rows", 0, {{F32, 2, {5, 32}}}, {{MX8_F8_E5M2, 2, {5, 32}}, {SCALE, 2, {5, 1}}}, {.format = MX8_F8_E5M2},
        {0}},
    {"quantize_rows", 0, {{F32, 3, {2, 5, 32}}}, {{0}}, {0}, {"x has 3 dimensions (2,5,32)", "expected 2"}},
    {"quantize_rows", 0, {{I32, 2, {5, 32}}}, {{0}}, {0}, {"quantize_rows: x is i32, expected f32 or bf16"}},
    {"quantize_rows", 0, {{0}}, {{0}}, {0}, {"x is missing"}},
    {"quantize_rows", 0, {{F32, 2, {5, 32}}, {F32, 1, {3}}}, {{0}}, {0}, {"input 2 is given, expected at most 1"}},
    {"quantize_rows", 0, {{F32, 2, {5, 32}}}, {{0}}, {.scale_rule = 4}, {"scale_rule is 4, expected 0 to 3"}},
    {"quantize_rows", 0, {{F32, 2, {5, 32}}}, {{0}}, {.scale_group = 64}, {"scale_group is 64", "128 or 256"}},
    {"quantize_rows", 0, {{F32, 2, {5, 32}}}, {{0}}, {.tile_rows = 2}, {"tile_rows is 2"}},
    {"quantize_rows", 0, {{F32, 2, {5, 32}}}, {{0}}, {.format = MX8_BF16}, {"format is 1 (bf16)"}},
    {"quantize_rows", 0, {{F32, 2, {-5, 32}}}, {{0}}, {0}, {"x has size -5 in dimension 0"}},
    {"quantize_cols", 0, {{BF16, 2, {70, 5}}}, {{CODE, 2, {5, 70}}, {SCALE, 2, {5, 3}}}, {0}, {0}},
    {"quantize_cols", 0, {{BF16, 2, {70, 5}}, {I32, 1, {2}}}, {{CODE, 2, {5, 160}}, {SCALE, 2, {5, 5}}, {I32, 1, {2}}},
        {0}, {0}},
    {"quantize_cols", 0, {{BF16, 2, {70, 5}}, {I32, 1, {0}}}, {{0}}, {0}, {"at least one group"}},
    {"quantize_both", 0, {{F32, 2, {33, 4}}},
        {{CODE, 2, {33, 4}}, {SCALE, 2, {33, 1}}, {CODE, 2, {4, 33}}, {SCALE, 2, {4, 2}}}, {0}, {0}},
    {"quantize_3d", 0, {{F32, 3, {2, 40, 6}}}, {{CODE, 3, {2, 40, 6}}, {SCALE, 3, {2, 2, 6}}}, {0}, {0}},
    {"quantize_experts", 0, {{F32, 3, {2, 40, 6}}},
        {{CODE, 3, {2, 40, 6}}, {SCALE, 3, {2, 40, 1}}, {CODE, 3, {2, 40, 6}}, {SCALE, 3, {2, 2, 6}}}, {0}, {0}},
    {"quantize_experts", 0, {{F32, 2, {40, 6}}}, {{0}}, {0}, {"w has 2 dimensions (40,6)", "expected 3"}},
    {"dequantize", 0, {{CODE, 1, {40}}, {SCALE, 1, {2}}}, {{BF16, 1, {40}}}, {0}, {0}},
    {"dequantize", 0, {{CODE, 4, {2, 3, 4, 40}}, {SCALE, 4, {2, 3, 4, 2}}}, {{F32, 4, {2, 3, 4, 40}}},
        {.out_dtype = 1 + F32}, {0}},
    {"dequantize", 0, {{CODE, 2, {3, 40}}, {SCALE, 2, {3, 1}}}, {{0}}, {0},
        {"scales have size 1 in dimension 1, expected 2"}},
    {"dequantize", 0, {{CODE, 2, {3, 40}}, {SCALE, 2, {3, 2}}}, {{0}}, {.out_dtype = 1 + I32}, {"out_dtype is i32"}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}}, {{SCALE, 1, {256 * 8}}}, {0}, {0}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}, {I32, 1, {3}}}, {{SCALE, 2, {514, 8}}, {MX8_I64, 1, {4}}},
        {.layout = MX8_LAYOUT_M_GROUPS}, {0}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}, {I32, 1, {3}}}, {{SCALE, 2, {256, 17}}, {MX8_I64, 1, {4}}},
        {.layout = MX8_LAYOUT_K_GROUPS}, {0}},
    {"block_scales", 0, {{SCALE, 3, {3, 130, 5}}}, {{SCALE, 2, {3, 2048}}}, {.layout = MX8_LAYOUT_PER_EXPERT}, {0}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}}, {{0}}, {.layout = MX8_LAYOUT_K_GROUPS}, {"offsets are missing"}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}, {I32, 1, {3}}}, {{0}}, {0}, {"offsets are given", "no groups"}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}}, {{0}}, {.layout = MX8_LAYOUT_PER_EXPERT}, {"expected 3"}},
    {"block_scales", 0, {{SCALE, 2, {130, 5}}}, {{0}}, {.layout = 4}, {"layout is 4"}},
    {"unblock_scales", 0, {{SCALE, 1, {2048}}, {0}, {SCALE, 2, {130, 5}}}, {{SCALE, 2, {130, 5}}}, {0}, {0}},
    {"unblock_scales", 0, {{SCALE, 1, {2047}}, {0}, {SCALE, 2, {130, 5}}}, {{0}}, {0},
        {"blocked has 2047 bytes, expected 2048"}},
    {"group_pad", 0, {{BF16, 2, {70, 5}}, {I32, 1, {2}}}, {{BF16, 2, {160, 5}}, {I32, 1, {2}}, {I32, 1, {2}}}, {0},
        {0}},
    {"group_pad", 0, {{BF16, 2, {70, 5}}, {I32, 1, {2}}}, {{0}}, {.alignment = -1}, {"alignment is -1"}},
    {"group_pad", 1, {{BF16, 2, {160, 5}}, {I32, 1, {2}}, {I32, 1, {2}}, {BF16, 2, {70, 5}}}, {{BF16, 2, {70, 5}}}, {0},
        {0}},
    {"group_unpad", 0, {{BF16, 2, {159, 5}}, {I32, 1, {2}}, {I32, 1, {2}}, {BF16, 2, {70, 5}}}, {{0}}, {0},
        {"padded has 159 rows, expected 160"}},
    {"group_unpad", 0, {{BF16, 2, {160, 5}}, {I32, 1, {2}}, {I32, 1, {2}}, {F32, 2, {70, 5}}}, {{0}}, {0},
        {"like is f32, expected bf16"}},

    {"linear", 0, {{BF16, 2, {7, 100}}, {BF16, 2, {5, 100}}, {F32, 1, {5}}}, {{BF16, 2, {7, 5}}}, {0}, {0}},
    {"linear", 0, {{BF16, 2, {7, 100}}, {F32, 2, {5, 100}}}, {{F32, 2, {7, 5}}}, {.out_dtype = 1 + F32}, {0}},
    {"linear", 0, {{BF16, 2, {7, 100}}, {BF16, 2, {5, 96}}}, {{0}}, {0},
        {"linear: w has 96 columns, expected 100 (columns of x)"}},
    {"linear", 0, {{BF16, 2, {7, 64}}, {BF16, 2, {5, 64}}, {BF16, 1, {6}}}, {{0}}, {0},
        {"bias has 6 elements, expected 5 (rows of w)"}},
    {"linear", 0, {{BF16, 2, {7, 64}}}, {{0}}, {0}, {"linear: w is missing", "as they are"}},
    {"linear", 0, {{BF16, 2, {7, 64}}}, {{0}}, {.precision = 1}, {"w is missing and so are its codes wq"}},
    {"linear", 0, {{BF16, 2, {7, 100}}, {BF16, 2, {5, 100}}}, {{0}}, {.precision = 1},
        {"K is 100 (columns of x)", "multiple of 32"}},
    {"linear", 0, {{BF16, 2, {7, 64}}, {BF16, 2, {5, 64}}}, {{0}}, {.precision = 2}, {"precision is 2"}},
    {"linear", 0, {{BF16, 2, {7, 64}}, {BF16, 2, {5, 64}}}, {{0}}, {.weight_tile_rows = 64},
        {"weight_tile_rows is 64"}},
    {"linear", 0, {{0}, {0}, {0}, {CODE, 2, {7, 64}}, {SCALE, 2, {7, 2}}, {CODE, 2, {5, 64}}, {SCALE, 2, {5, 2}}},
        {{BF16, 2, {7, 5}}}, {.precision = 1}, {0}},
    {"linear", 0, {{F32, 2, {7, 64}}, {0}, {0}, {0}, {0}, {CODE, 2, {5, 64}}, {SCALE, 2, {5, 2}}}, {{F32, 2, {7, 5}}},
        {.precision = 1}, {0}},
    {"linear", 0, {{F32, 2, {7, 64}}, {0}, {0}, {0}, {0}, {CODE, 2, {5, 64}}}, {{0}}, {.precision = 1},
        {"wq is given without ws"}},
    {"linear", 0, {{F32, 2, {7, 64}}, {0}, {0}, {0}, {0}, {CODE, 2, {5, 64}}, {SCALE, 2, {5, 1}}}, {{0}},
        {.precision = 1}, {"ws has 1 columns, expected 2 (32-blocks in the columns of x)"}},
    {"linear", 1, {{BF16, 2, {7, 64}}, {BF16, 2, {7, 32}}, {F32, 2, {64, 32}}},
        {{BF16, 2, {7, 32}}, {F32, 2, {64, 32}}, {F32, 1, {64}}}, {.precision = 1}, {0}},
    {"linear", 1, {{BF16, 2, {7, 65}}, {BF16, 2, {7, 32}}, {F32, 2, {65, 32}}}, {{0}}, {.precision = 1},
        {"N is 65 (columns of dy)", "input gradient"}},
    {"linear", 1, {{BF16, 2, {7, 65}}, {BF16, 2, {7, 33}}}, {{0}, {F32, 2, {65, 33}}, {F32, 1, {65}}}, {.precision = 1},
        {0}},
    {"linear", 1, {{BF16, 2, {7, 64}}, {0}, {0}, {0}, {0}, {CODE, 2, {64, 33}}, {SCALE, 2, {64, 1}}}, {{0}},
        {.precision = 1}, {"dyq_t has 33 columns, expected 32 (M rounded up to 32)"}},
    {"linear", 1, {{BF16, 2, {7, 64}}}, {{0}, {0}, {F32, 1, {64}}}, {0}, {0}},

    {"grouped_linear", 0, {{BF16, 2, {7, 64}}, {BF16, 3, {3, 5, 64}}, {I32, 1, {3}}}, {{BF16, 2, {7, 5}}},
        {.precision = 1}, {0}},
    {"grouped_linear", 0, {{BF16, 2, {7, 64}}, {BF16, 3, {3, 5, 64}}, {I32, 1, {4}}}, {{0}}, {0},
        {"offsets has 4 elements, expected 3 (entries in dimension 0 of w)"}},
    {"grouped_linear", 0, {{BF16, 2, {7, 64}}, {BF16, 3, {0, 5, 64}}, {I32, 1, {0}}}, {{0}}, {0},
        {"expected one per expert, at least 1"}},
    {"grouped_linear", 0, {{BF16, 2, {7, 64}}, {BF16, 3, {3, 5, 64}}}, {{0}}, {0}, {"offsets is missing (input 3)"}},
    {"grouped_linear", 0, {{BF16, 2, {7, 100}}, {BF16, 3, {3, 5, 100}}, {I32, 1, {3}}}, {{0}}, {.precision = 1},
        {"grouped_linear: K is 100"}},
    {"grouped_linear", 1, {{BF16, 2, {7, 64}}, {BF16, 2, {7, 32}}, {F32, 3, {3, 64, 32}}, {I32, 1, {3}}},
        {{BF16, 2, {7, 32}}, {F32, 3, {3, 64, 32}}, {F32, 1, {64}}}, {.precision = 1}, {0}},
    {"grouped_linear", 1, {{BF16, 2, {7, 64}}, {BF16, 2, {7, 32}}, {F32, 3, {3, 60, 32}}, {I32, 1, {3}}}, {{0}}, {0},
        {"w has 60 entries in dimension 1, expected 64 (columns of dy)"}},

    {"embedding", 0, {{I32, 1, {7}}, {BF16, 2, {11, 4}}}, {{F32, 2, {7, 4}}}, {.out_dtype = 1 + F32}, {0}},
    {"embedding", 1, {{BF16, 2, {7, 4}}, {I32, 1, {7}}}, {{0}}, {0}, {"expected shape (V, 4) set by the caller"}},
    {"rmsnorm", 0, {{BF16, 2, {7, 4}}, {F32, 1, {4}}, {BF16, 2, {7, 4}}},
        {{BF16, 2, {7, 4}}, {F32, 1, {7}}, {BF16, 2, {7, 4}}}, {0}, {0}},
    {"rmsnorm", 0, {{BF16, 2, {7, 4}}, {F32, 1, {5}}}, {{0}}, {0}, {"w has 5 elements, expected 4 (columns of x)"}},
    {"rmsnorm", 0, {{BF16, 2, {7, 4}}, {F32, 1, {4}}, {F32, 2, {7, 4}}}, {{0}}, {0},
        {"add is f32, expected bf16 as the first input"}},
    {"rmsnorm", 0, {{BF16, 2, {7, 4}}, {F32, 1, {4}}}, {{0}}, {.eps = -1}, {"eps is -1"}},
    {"rope", 0, {{BF16, 2, {7, 12}}, {F32, 3, {8, 2, 2}}}, {{BF16, 2, {7, 12}}}, {.n_heads = 3}, {0}},
    {"rope", 0, {{BF16, 2, {7, 10}}, {F32, 3, {8, 2, 2}}}, {{0}}, {0}, {"x has 10 columns", "heads of 4"}},
    {"rope", 0, {{BF16, 2, {7, 12}}, {F32, 3, {8, 2, 3}}}, {{0}}, {0},
        {"table has 3 entries in dimension 2, expected 2"}},
    {"rope", 0, {{BF16, 2, {7, 12}}, {F32, 3, {8, 2, 2}}}, {{0}}, {.seq_len = 9}, {"seq_len is 9, expected 1 to 8"}},
    {"attention", 0, {{F32, 2, {8, 16}}, {F32, 2, {8, 8}}, {F32, 2, {8, 8}}}, {{F32, 2, {8, 16}}, {F32, 2, {8, 4}}},
        {.n_heads = 4, .n_kv_heads = 2}, {0}},
    {"attention", 0, {{F32, 2, {8, 16}}, {F32, 2, {8, 8}}, {F32, 2, {8, 8}}}, {{0}}, {.n_heads = 4, .n_kv_heads = 3},
        {"n_heads is 4 and n_kv_heads 3"}},
    {"attention", 0, {{F32, 2, {8, 16}}, {F32, 2, {8, 8}}, {F32, 2, {8, 8}}}, {{0}}, {.n_heads = 4},
        {"k has 8 columns, expected 16 (4 heads of 4)"}},
    {"attention", 0, {{F32, 2, {8, 16}}, {F32, 2, {8, 16}}, {F32, 2, {8, 16}}}, {{0}}, {.n_heads = 4, .seq_len = 3},
        {"q has 8 rows, expected a multiple of seq_len (3)"}},
    {"attention", 0, {{F32, 2, {8, 16}}, {F32, 2, {8, 16}}, {F32, 2, {8, 16}}}, {{0}}, {.n_heads = 4, .mask = 1},
        {"doc is missing"}},
    {"attention", 0, {{F32, 2, {8, 16}}, {F32, 2, {8, 16}}, {F32, 2, {8, 16}}}, {{0}}, {0}, {"n_heads is 0"}},
    {"router", 0, {{F32, 2, {7, 5}}, {F32, 1, {5}}},
        {{F32, 2, {7, 5}}, {I32, 2, {7, 2}}, {F32, 2, {7, 2}}, {I32, 1, {14}}, {I32, 2, {7, 2}}, {I32, 1, {5}}},
        {.top_k = 2}, {0}},
    {"router", 0, {{F32, 2, {7, 5}}}, {{0}}, {.top_k = 6}, {"top_k is 6, expected 1 to 5 (columns of logits)"}},
    {"router", 0, {{F32, 2, {7, 5}}}, {{0}}, {0}, {"top_k is 0"}},
    {"permute", 0, {{F32, 2, {7, 5}}, {I32, 1, {14}}, {I32, 2, {7, 2}}}, {{F32, 2, {14, 5}}}, {0}, {0}},
    {"permute", 0, {{F32, 2, {7, 5}}, {I32, 1, {13}}, {I32, 2, {7, 2}}}, {{0}}, {0},
        {"order has 13 elements, expected 14 (tokens times top_k)"}},
    {"permute", 1, {{F32, 2, {14, 5}}, {0}, {I32, 1, {14}}, {I32, 2, {7, 2}}, {F32, 2, {7, 2}}},
        {{F32, 2, {7, 5}}, {0}}, {0}, {0}},
    {"combine", 0, {{F32, 2, {14, 5}}, {I32, 1, {14}}, {I32, 2, {7, 2}}, {0}, {F32, 2, {6, 5}}}, {{0}}, {0},
        {"base has 6 rows, expected 7 (rows of positions)"}},
    {"clamp", 0, {{BF16, 2, {7, 5}}}, {{BF16, 2, {7, 5}}}, {.limit = 1}, {0}},
    {"clamp", 0, {{F32, 2, {7, 5}}}, {{0}}, {0}, {"limit is 0, expected a positive number"}},
    {"swiglu_quantize", 0, {{BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}},
        {{CODE, 2, {70, 5}}, {SCALE, 2, {70, 1}}, {CODE, 2, {5, 70}}, {SCALE, 2, {5, 3}}}, {0}, {0}},
    {"swiglu_quantize", 0, {{BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}, {I32, 1, {2}}},
        {{CODE, 2, {70, 5}}, {SCALE, 2, {70, 1}}, {CODE, 2, {5, 160}}, {SCALE, 2, {5, 5}}, {I32, 1, {2}}}, {0}, {0}},
    {"swiglu_quantize", 0, {{BF16, 2, {70, 5}}, {F32, 2, {70, 5}}}, {{0}}, {0}, {"up is f32, expected bf16"}},
    {"swiglu_quantize", 0, {{BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}, {I32, 1, {0}}}, {{0}}, {0}, {"at least one group"}},
    {"swiglu_backward_quantize", 0, {{BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}},
        {{CODE, 2, {70, 5}}, {SCALE, 2, {70, 1}}, {CODE, 2, {5, 70}}, {SCALE, 2, {5, 3}}, {CODE, 2, {70, 5}},
            {SCALE, 2, {70, 1}}, {CODE, 2, {5, 70}}, {SCALE, 2, {5, 3}}},
        {0}, {0}},
    {"swiglu_backward_quantize", 0, {{BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}, {BF16, 2, {70, 5}}, {I32, 1, {2}}},
        {{CODE, 2, {70, 5}}, {SCALE, 2, {70, 1}}, {CODE, 2, {5, 160}}, {SCALE, 2, {5, 5}}, {CODE, 2, {70, 5}},
            {SCALE, 2, {70, 1}}, {CODE, 2, {5, 160}}, {SCALE, 2, {5, 5}}},
        {0}, {0}},
    {"swiglu_backward_quantize", 0, {{BF16, 2, {70, 5}}, {BF16, 2, {70, 6}}, {BF16, 2, {70, 5}}}, {{0}}, {0},
        {"gate has 6 columns, expected 5 (columns of dh)"}},
    {"permute_quantize", 0, {{F32, 2, {7, 5}}, {I32, 1, {14}}, {I32, 2, {7, 2}}},
        {{CODE, 2, {14, 5}}, {SCALE, 2, {14, 1}}, {CODE, 2, {5, 14}}, {SCALE, 2, {5, 1}}}, {0}, {0}},
    {"permute_quantize", 0, {{F32, 2, {7, 5}}, {I32, 1, {13}}, {I32, 2, {7, 2}}}, {{0}}, {0},
        {"order has 13 elements, expected 14"}},
    {"rmsnorm_quantize", 0, {{BF16, 2, {7, 40}}, {F32, 1, {40}}},
        {{BF16, 2, {7, 40}}, {F32, 1, {7}}, {0}, {CODE, 2, {7, 40}}, {SCALE, 2, {7, 2}}}, {0}, {0}},
    {"rmsnorm_quantize", 0, {{BF16, 2, {7, 40}}, {F32, 1, {40}}}, {{0}}, {.scale_group = 64}, {"scale_group is 64"}},
    {"swiglu", 0, {{F32, 2, {7, 5}}, {F32, 2, {7, 6}}}, {{0}}, {0}, {"up has 6 columns, expected 5 (columns of gate)"}},
    {"add", 0, {{F32, 3, {7, 5, 2}}, {F32, 3, {7, 5, 2}}}, {{F32, 3, {7, 5, 2}}}, {0}, {0}},
    {"add", 0, {{F32, 2, {7, 5}}, {F32, 2, {5, 7}}}, {{0}}, {0}, {"expected the shape of a"}},
    {"add", 1, {{F32, 2, {7, 5}}}, {{0}}, {0}, {"add: a backward pass is asked for"}},
    {"lm_head_loss", 0, {{BF16, 2, {7, 64}}, {BF16, 2, {50, 64}}, {I32, 1, {7}}}, {{MX8_F64, 1, {1}}}, {.precision = 1},
        {0}},
    {"lm_head_loss", 1, {{BF16, 2, {7, 64}}, {BF16, 2, {50, 64}}, {I32, 1, {7}}},
        {{MX8_F64, 1, {1}}, {BF16, 2, {7, 64}}, {F32, 2, {50, 64}}}, {0}, {0}},
    {"lm_head_loss", 1, {{BF16, 2, {7, 64}}, {BF16, 2, {50, 64}}, {I32, 1, {7}}}, {{0}}, {.precision = 1},
        {"V is 50 (rows of w)", "input gradient"}},
    {"lm_head_loss", 0, {{BF16, 2, {7, 64}}, {0}, {I32, 1, {7}}}, {{0}}, {0}, {"w is missing"}},
    {"lm_head_loss", 0, {{BF16, 2, {7, 64}}, {BF16, 2, {50, 64}}, {I32, 1, {6}}}, {{0}}, {0},
        {"targets has 6 elements, expected 7 (rows of h)"}},
};
enum { INFER_CASES = sizeof infer_cases / sizeof infer_cases[0] };

static struct mx8_op_call make_call(const struct infer_case *c) {
    struct mx8_op_call call = {.options = c->options};
    for (int i = 0; i < 9; i++)
        if (c->in[i].ndim > 0) call.in[i] = mx8_make_tensor(NULL, c->in[i].dtype, c->in[i].ndim, c->in[i].size);
    return call;
}

static void check_shape(const struct infer_case *c, int index, const struct mx8_tensor *t) {
    const struct shape *s = &c->out[index];
    if (s->ndim == 0) {
        if (mx8i_is_present(t)) fail_msg("%s: output %d is there", c->op, index);
        return;
    }
    assert_int_equal(t->dtype, s->dtype);
    assert_int_equal(t->ndim, s->ndim);
    assert_null(t->data);
    for (int i = 0; i < s->ndim; i++) assert_int_equal(t->shape[i], s->size[i]);
}

static void test_infer(void **state) {
    (void)state;
    for (int i = 0; i < INFER_CASES; i++) {
        const struct infer_case *c = &infer_cases[i];
        struct mx8_op_call call = make_call(c);
        enum mx8_status status = mx8_infer_op(mx8_find_op(c->op), c->backward, &call);
        if (c->words[0]) {
            if (status != MX8_INVALID_ARGUMENT)
                fail_msg("%s (case %d) was accepted, expected: %s", c->op, i, c->words[0]);
            for (int w = 0; w < 3 && c->words[w]; w++) assert_message(c->words[w]);
        } else {
            if (status != MX8_OK) fail_msg("%s (case %d): %s", c->op, i, mx8_get_last_error());
            for (int o = 0; o < 8; o++) check_shape(c, o, &call.out[o]);
        }
    }
}

static void test_every_row_has_good_and_bad_cases(void **state) {
    (void)state;
    for (int32_t r = 0; r < MX8_OP_COUNT; r++) {
        int good = 0, bad = 0;
        for (int i = 0; i < INFER_CASES; i++) {
            if (strcmp(infer_cases[i].op, mx8_get_op(r)->name) != 0) continue;
            good += !infer_cases[i].words[0];
            bad += infer_cases[i].words[0] != NULL;
        }
        /* these fail by the checks that are theirs in common with a neighbour */
        int shared = r == MX8_OP_QUANTIZE_BOTH || r == MX8_OP_QUANTIZE_3D;
        int mirrored = r == MX8_OP_GROUP_UNPAD || r == MX8_OP_COMBINE || r == MX8_OP_SWIGLU;
        if ((!good && !mirrored) || (!bad && !shared)) fail_msg("%s has no case", mx8_get_op(r)->name);
    }
}

static void test_sizes_that_overflow_are_refused(void **state) {
    (void)state;
    struct mx8_op_call call = {.in = {mx8_make_tensor(NULL, MX8_BF16, SHAPE(1, 32))}};
    call.in[0].shape[0] = INT64_MAX / 4;
    assert_status(mx8_infer_op(mx8_get_op(MX8_OP_QUANTIZE_ROWS), 0, &call), MX8_INVALID_ARGUMENT);
    assert_message("x has more elements than memory can hold");
}

static void test_strides_of_3d_codes(void **state) {
    (void)state;
    struct mx8_op_call call = {.in = {mx8_make_tensor(NULL, MX8_BF16, SHAPE(3, 64, 10))}};
    assert_ok(mx8_infer_op(mx8_get_op(MX8_OP_QUANTIZE_3D), 0, &call));
    assert_int_equal(call.out[0].stride[0], 640);
    assert_int_equal(call.out[0].stride[1], 1);
    assert_int_equal(call.out[0].stride[2], 64);
}

/* ---- workspace ---- */

static size_t size_linear(int backward, struct mx8_tensor in[11], struct mx8_op_options options) {
    struct mx8_op_call call = {.options = options};
    for (int i = 0; i < 11; i++) call.in[i] = in[i];
    assert_ok(mx8_infer_op(mx8_get_op(MX8_OP_LINEAR), backward, &call));
    return call.workspace_size;
}

static void test_workspace_shrinks_with_given_codes(void **state) {
    (void)state;
    struct mx8_op_options mxfp8 = {.precision = MX8_PRECISION_MXFP8}, high = {0};
    struct mx8_tensor x = mx8_make_tensor(NULL, MX8_BF16, SHAPE(64, 128)),
                      w = mx8_make_tensor(NULL, MX8_BF16, SHAPE(96, 128));
    struct mx8_tensor xq = mx8_make_tensor(NULL, MX8_F8_E4M3, SHAPE(64, 128)),
                      xs = mx8_make_tensor(NULL, MX8_U8, SHAPE(64, 4));
    struct mx8_tensor wq = mx8_make_tensor(NULL, MX8_F8_E4M3, SHAPE(96, 128)),
                      ws = mx8_make_tensor(NULL, MX8_U8, SHAPE(96, 4));
    size_t both = size_linear(0, (struct mx8_tensor[11]){x, w}, mxfp8);
    size_t one = size_linear(0, (struct mx8_tensor[11]){[0] = x, [5] = wq, [6] = ws}, mxfp8);
    assert_int_equal(size_linear(0, (struct mx8_tensor[11]){x, w}, high), 0);
    assert_int_equal(size_linear(0, (struct mx8_tensor[11]){[3] = xq, [4] = xs, [5] = wq, [6] = ws}, mxfp8), 0);
    assert_true(both >= 64 * 128 + 64 * 4 + 96 * 128 + 96 * 4);
    assert_true(one >= 64 * 128 + 64 * 4 && one < both);
    struct mx8_tensor dy = mx8_make_tensor(NULL, MX8_BF16, SHAPE(64, 96));
    mxfp8.wgrad_hp = 1;
    assert_true(size_linear(1, (struct mx8_tensor[11]){dy, x}, mxfp8) == 0);
}

/* ---- mx8_run_op ---- */

/* A linear product that would succeed; each refusal spoils one thing. */
static struct mx8_op_call make_linear(void) {
    struct mx8_op_call call = {.n_in = 2, .n_out = 1};
    call.options.precision = MX8_PRECISION_MXFP8;
    call.in[0] = new_normal(MX8_F32, 1, SHAPE(3, 32));
    call.in[1] = new_normal(MX8_F32, 1, SHAPE(5, 32));
    call.out[0] = new_tensor(MX8_F32, SHAPE(3, 5));
    call.workspace_size = 4096;
    call.workspace = take_aligned(call.workspace_size);
    return call;
}

static void refuse(const struct mx8_op_call *call, enum mx8_status status, const char *words) {
    assert_status(mx8_run_op(shelf.ctx, mx8_find_op("linear"), 0, call), status);
    assert_message(words);
}

static void test_run_refuses_bad_calls(void **state) {
    (void)state;
    struct mx8_op_call good = make_linear(), bad = good;
    assert_ok(mx8_run_op(shelf.ctx, mx8_find_op("linear"), 0, &good));
    assert_status(mx8_run_op(shelf.ctx, NULL, 0, &good), MX8_INVALID_ARGUMENT);
    assert_status(mx8_run_op(NULL, mx8_find_op("linear"), 0, &good), MX8_INVALID_ARGUMENT);
    assert_status(mx8_run_op(shelf.ctx, mx8_find_op("linear"), 0, NULL), MX8_INVALID_ARGUMENT);

    bad.workspace_size = 100;
    refuse(&bad, MX8_WORKSPACE_TOO_SMALL, "the workspace has 100 bytes, expected ");
    bad = good, bad.workspace = NULL;
    refuse(&bad, MX8_WORKSPACE_TOO_SMALL, "the workspace has 0 bytes");
    bad = good, bad.workspace = (char *)bad.workspace + 32, bad.workspace_size -= 32;
    refuse(&bad, MX8_INVALID_ARGUMENT, "not aligned to 64");
    bad = good, bad.out[0].shape[1] = 4;
    refuse(&bad, MX8_INVALID_ARGUMENT, "output y has shape (3,4), expected (3,5)");
    bad = good, bad.out[0].ndim = 1;
    refuse(&bad, MX8_INVALID_ARGUMENT, "output y has shape (3), expected (3,5)");
    bad = good, bad.out[0].dtype = MX8_BF16;
    refuse(&bad, MX8_INVALID_ARGUMENT, "output y is bf16, expected f32");
    bad = good, bad.out[0].data = NULL;
    refuse(&bad, MX8_INVALID_ARGUMENT, "y has 15 elements but its data pointer is NULL");
    bad = good, memset(&bad.out[0], 0, sizeof bad.out[0]);
    refuse(&bad, MX8_INVALID_ARGUMENT, "output y is missing");
    bad = good, bad.out[1] = bad.out[0];
    refuse(&bad, MX8_INVALID_ARGUMENT, "output 2 is given, expected at most 1");
    bad = good, bad.out[0].stride[0] = 1, bad.out[0].stride[1] = 3;
    refuse(&bad, MX8_INVALID_ARGUMENT, "y has stride 3 in its last dimension");
    bad = good, bad.in[1].data = NULL;
    refuse(&bad, MX8_INVALID_ARGUMENT, "w has 160 elements but its data pointer is NULL");
    bad = good, bad.in[1].dtype = 77;
    refuse(&bad, MX8_INVALID_ARGUMENT, "w is unknown");
    bad = good, bad.in[1].ndim = 5;
    refuse(&bad, MX8_INVALID_ARGUMENT, "w has 5 dimensions, expected at most 4");
    bad = good, bad.n_in = 17;
    refuse(&bad, MX8_INVALID_ARGUMENT, "n_in is 17");
    bad = good, bad.options.size = 12;
    refuse(&bad, MX8_INVALID_ARGUMENT, "options.size is 12");
}

static void test_run_refuses_gradients_without_operands(void **state) {
    (void)state;
    struct mx8_op_call call = {.in = {new_normal(MX8_F32, 1, SHAPE(3, 5))}};
    call.out[0] = new_tensor(MX8_F32, SHAPE(3, 4));
    assert_status(mx8_run_op(shelf.ctx, mx8_find_op("linear"), 1, &call), MX8_INVALID_ARGUMENT);
    assert_message("output dx is asked for, but the inputs that it needs are absent");
}

static void test_packed_inputs_are_checked(void **state) {
    (void)state;
    struct mx8_tensor x = new_normal(MX8_F32, 1, SHAPE(3, 4)), w = new_normal(MX8_F32, 1, SHAPE(4));
    struct mx8_op_call call = {.in = {copy_transposed(&x), w}};
    assert_status(try_call("rmsnorm", 0, &call, 0), MX8_INVALID_ARGUMENT);
    assert_message("x has gaps or another order, expected row-major strides");
}

/* Sizes of 0 go through every row's forward. */
static void test_empty_sizes_run(void **state) {
    (void)state;
    static const struct infer_case empty[] = {
        {"quantize_rows", 0, {{BF16, 2, {0, 64}}}, {{0}}, {0}, {0}},
        {"quantize_cols", 0, {{BF16, 2, {4, 0}}}, {{0}}, {0}, {0}},
        {"quantize_3d", 0, {{BF16, 3, {0, 4, 4}}}, {{0}}, {0}, {0}},
        {"dequantize", 0, {{CODE, 3, {2, 0, 4}}, {SCALE, 3, {2, 0, 1}}}, {{0}}, {0}, {0}},
        {"block_scales", 0, {{SCALE, 2, {0, 4}}}, {{0}}, {0}, {0}},
        {"linear", 0, {{F32, 2, {0, 32}}, {F32, 2, {4, 32}}}, {{0}}, {.precision = 1}, {0}},
        {"linear", 0, {{F32, 2, {4, 32}}, {F32, 2, {0, 32}}}, {{0}}, {.precision = 1}, {0}},
        {"linear", 0, {{F32, 2, {4, 0}}, {F32, 2, {5, 0}}}, {{0}}, {.precision = 1}, {0}},
        {"linear", 1, {{F32, 2, {0, 32}}, {F32, 2, {0, 32}}, {F32, 2, {32, 32}}}, {{0}}, {.precision = 1}, {0}},
        {"embedding", 0, {{I32, 1, {0}}, {F32, 2, {4, 4}}}, {{0}}, {0}, {0}},
        {"rmsnorm", 0, {{F32, 2, {0, 4}}, {F32, 1, {4}}}, {{0}}, {0}, {0}},
        {"rope", 0, {{F32, 2, {0, 4}}, {F32, 3, {8, 2, 2}}}, {{0}}, {0}, {0}},
        {"attention", 0, {{F32, 2, {0, 16}}, {F32, 2, {0, 16}}, {F32, 2, {0, 16}}}, {{0}}, {.n_heads = 2}, {0}},
        {"router", 0, {{F32, 2, {0, 5}}}, {{0}}, {.top_k = 2}, {0}},
        {"permute", 0, {{F32, 2, {0, 5}}, {I32, 1, {0}}, {I32, 2, {0, 2}}}, {{0}}, {0}, {0}},
        {"combine", 0, {{F32, 2, {0, 5}}, {I32, 1, {0}}, {I32, 2, {0, 2}}}, {{0}}, {0}, {0}},
        {"swiglu", 0, {{F32, 2, {0, 5}}, {F32, 2, {0, 5}}}, {{0}}, {0}, {0}},
        {"add", 0, {{F32, 1, {0}}, {F32, 1, {0}}}, {{0}}, {0}, {0}},
        {"lm_head_loss", 1, {{F32, 2, {0, 32}}, {F32, 2, {32, 32}}, {I32, 1, {0}}}, {{0}}, {.precision = 1}, {0}},
    };
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        struct mx8_op_call call = make_call(&empty[i]);
        for (int n = 0; n < 9; n++)
            if (call.in[n].ndim > 0) call.in[n] = new_tensor(call.in[n].dtype, call.in[n].ndim, call.in[n].shape);
        run_call(empty[i].op, empty[i].backward, &call);
        int product = !strcmp(empty[i].op, "linear") || !strcmp(empty[i].op, "lm_head_loss");
        for (int o = 0; product && o < 3 && call.out[o].ndim > 0; o++)
            assert_zero(&call.out[o]); /* sums over nothing */
    }
}

/* ---- contexts ---- */

static void test_contexts(void **state) {
    (void)state;
    struct mx8_context *ctx = NULL;
    struct mx8_context_options o = {.threads = 3, .isa = "scalar"};
    assert_ok(mx8_create_context(&o, &ctx));
    assert_string_equal(mx8_get_backend_name(ctx), "cpu-scalar");
    assert_true(strlen(mx8_get_backend_reason(ctx)) > 0);
    assert_int_equal(mx8_get_thread_count(ctx), 3);
    int64_t all = -1, fast = -1;
    mx8_count_products(ctx, &all, &fast);
    assert_int_equal(all, 0);
    assert_int_equal(fast, 0);
    assert_ok(mx8_set_stream(ctx, &o));
    assert_ptr_equal(ctx->exec.stream, &o);
    assert_ok(mx8_synchronize_context(ctx));
    mx8_destroy_context(ctx);
    mx8_destroy_context(NULL);
}

static void refuse_context(struct mx8_context_options o, enum mx8_status status, const char *words) {
    struct mx8_context *ctx = (struct mx8_context *)&o;
    assert_status(mx8_create_context(&o, &ctx), status);
    assert_null(ctx);
    assert_message(words);
}

static void *allocate_nothing(void *user, size_t size, size_t alignment) {
    (void)size;
    (void)alignment;
    ++*(int *)user;
    return NULL;
}
static void release_nothing(void *user, void *pointer) {
    (void)user;
    (void)pointer;
}

static void test_contexts_refuse(void **state) {
    (void)state;
    int asked = 0;
    refuse_context((struct mx8_context_options){.device = 2}, MX8_INVALID_ARGUMENT, "device is 2");
    refuse_context((struct mx8_context_options){.threads = -1}, MX8_INVALID_ARGUMENT, "threads is -1");
    refuse_context((struct mx8_context_options){.isa = "mmx"}, MX8_INVALID_ARGUMENT, "mmx");
    refuse_context((struct mx8_context_options){.size = 4096}, MX8_INVALID_ARGUMENT, "options.size is 4096");
    refuse_context((struct mx8_context_options){.allocate = allocate_nothing}, MX8_INVALID_ARGUMENT, "without release");
    refuse_context(
        (struct mx8_context_options){.allocate = allocate_nothing, .release = release_nothing, .user = &asked},
        MX8_OUT_OF_MEMORY, "scratch");
    assert_int_equal(asked, 1);
    assert_status(mx8_create_context(NULL, NULL), MX8_INVALID_ARGUMENT);
    assert_status(mx8_set_stream(NULL, NULL), MX8_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_schemas),
        cmocka_unit_test(test_infer),
        cmocka_unit_test(test_every_row_has_good_and_bad_cases),
        cmocka_unit_test(test_sizes_that_overflow_are_refused),
        cmocka_unit_test(test_strides_of_3d_codes),
        cmocka_unit_test(test_workspace_shrinks_with_given_codes),
        cmocka_shelf_test(test_run_refuses_bad_calls),
        cmocka_shelf_test(test_run_refuses_gradients_without_operands),
        cmocka_shelf_test(test_packed_inputs_are_checked),
        cmocka_shelf_test(test_empty_sizes_run),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_contexts_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
