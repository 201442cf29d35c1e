/* Codes and scales back to numbers: code * 2^(scale-127), exact in f32, rounded once where the output is bf16. A block
 * of 32 at a time; blocks that are short or whose elements are not contiguous pass through a buffer of that size. Bytes
 * moved: 1 + 1/32 in, 2 or 4 out. */

MX8_INLINE void dequantize_block(
    const struct mx8_dequant_job *j, int64_t row, int64_t col, int32_t format, int32_t dtype) {
    const uint8_t *codes = j->codes + row * j->code_stride[0] + col * j->code_stride[1];
    vf scale = vf_set(decode_scale(j->scales[row * j->scale_stride[0] + col / MX8_BLOCK * j->scale_stride[1]]));
    int64_t n = j->cols - col < MX8_BLOCK ? j->cols - col : MX8_BLOCK;
    int64_t at = row * j->dst_stride[0] + col * j->dst_stride[1];
    uint8_t gathered[MX8_BLOCK] = {0};
    float values[MX8_BLOCK];
    int whole_in = n == MX8_BLOCK && j->code_stride[1] == 1, whole_out = n == MX8_BLOCK && j->dst_stride[1] == 1;

    for (int64_t i = 0; i < n && !whole_in; i++) gathered[i] = codes[i * j->code_stride[1]];
    for (int i = 0; i < MX8_BLOCK; i += MX8_VF) {
        vf value = vf_mul(load_values(whole_in ? codes : gathered, i, format), scale);
        if (whole_out)
            vf_store_as(j->dst, at + i, dtype, value);
        else
            vf_store(values + i, value);
    }
    for (int64_t i = 0; i < n && !whole_out; i++) f32_store_as(j->dst, at + i * j->dst_stride[1], dtype, values[i]);
}

/* Blocks [begin, end) of the order row, column. */
MX8_INLINE void dequantize_range(const struct mx8_dequant_job *j, int64_t begin, int64_t end, int32_t format,
    int32_t dtype) {
    int64_t across = blocks_of(j->cols), row = begin / across, block = begin % across;
    for (int64_t i = begin; i < end; i++) {
        dequantize_block(j, row, block * MX8_BLOCK, format, dtype);
        if (++block == across) {
            block = 0;
            row++;
        }
    }
}

static enum mx8_status dequantize(const struct mx8_exec *x, const struct mx8_dequant_job *j) {
    int64_t blocks = j->rows * blocks_of(j->cols);
    if (blocks == 0) return MX8_OK;
#pragma omp parallel num_threads(x->threads) if (blocks > 512)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t begin = blocks * thread / threads, end = blocks * (thread + 1) / threads;
        if (j->format == MX8_F8_E5M2)
            dequantize_range(j, begin, end, MX8_F8_E5M2, j->dst_dtype);
        else if (j->dst_dtype == MX8_F32)
            dequantize_range(j, begin, end, MX8_F8_E4M3, MX8_F32);
        else
            dequantize_range(j, begin, end, MX8_F8_E4M3, MX8_BF16);
    }
    return MX8_OK;
}
