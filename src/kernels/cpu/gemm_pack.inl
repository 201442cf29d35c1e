/* Packing for the matrix product: a few lines of an operand, some steps of k, as f32 in the order in which the
 * micro-kernel reads: panel[k * W + line]. Whatever the operand's dtype and strides are, the product sees one form; MX
 * scales are multiplied in here (code * 2^scale is exact in f32), once per element and panel instead of once per use.
 *
 * A vector's store may reach past the W lines of its k into the next k, which is stored after it; only the last k of a
 * panel is stored exactly, since the panel behind belongs to another thread. */

/* One side of a product, its groups resolved: `data` and `scales` point at line 0, k = 0. */
struct operand {
    const void *data;
    const uint8_t *scales;
    int32_t dtype;
    int64_t lines, ls, ks, sls, sks;
};

MX8_INLINE int is_f8(int32_t dtype) { return dtype == MX8_F8_E4M3 || dtype == MX8_F8_E5M2; }

MX8_INLINE vf load_values(const void *data, int64_t i, int32_t dtype) {
    if (dtype == MX8_F8_E4M3) return vf_load_e4m3((const uint8_t *)data + i);
    if (dtype == MX8_F8_E5M2) return vf_load_e5m2((const uint8_t *)data + i);
    return vf_load_as(data, i, dtype);
}

MX8_INLINE vf load_values_part(const void *data, int64_t i, int32_t dtype, int n) {
    if (dtype == MX8_F8_E4M3) return vf_load_e4m3_part((const uint8_t *)data + i, n);
    if (dtype == MX8_F8_E5M2) return vf_load_e5m2_part((const uint8_t *)data + i, n);
    return vf_load_part_as(data, i, dtype, n);
}

/* 2^(byte-127). Byte 0 is the subnormal 2^-127 and byte 255 NaN: both are the shifted byte with mantissa bit 22 set. */
MX8_INLINE float decode_scale(uint8_t byte) {
    return f32_from_bits((uint32_t)byte << 23 | (uint32_t)((uint8_t)(byte + 1) < 2) << 22);
}

MX8_INLINE float scale_at(const struct operand *o, int64_t line, int64_t k) {
    return decode_scale(o->scales[line * o->sls + k / MX8_BLOCK * o->sks]);
}

/* Lines [at, at + MX8_VF) of a panel at one k. */
MX8_INLINE void store_lines(float *to, int at, int W, vf v, int last_k) {
    if (last_k && at + MX8_VF > W)
        vf_store_part(to + at, v, W - at);
    else
        vf_store(to + at, v);
}

static size_t dtype_size(int32_t dtype) { return dtype == MX8_F32 ? 4 : dtype == MX8_BF16 ? 2 : 1; }

/* Lines [line, line + MX8_VF) at k, once for each 64 bytes of a line. */
MX8_INLINE void prefetch_lines(const struct operand *o, int32_t dtype, int64_t line, int64_t k0, int64_t k) {
    int64_t size = (int64_t)dtype_size(dtype), n = o->lines - line < MX8_VF ? o->lines - line : MX8_VF;
    if (k * size % 64) return;
    for (int64_t i = 0; i < n; i++) __builtin_prefetch((const char *)o->data + ((line + i) * o->ls + k0 + k) * size);
}

/* k contiguous (a weight or an activation as it lies): MX8_VF lines by MX8_VF steps of k, transposed in registers. The
 * lines after them are asked for meanwhile: a step's part of a line is too short for the processor to foresee them. */
MX8_INLINE void pack_along_k(float *panel, int W, const struct operand *o, int32_t dtype, int64_t line, int64_t k0,
    int64_t kc) {
    int n = (int)(o->lines - line < W ? o->lines - line : W);
    for (int at = 0; at < W; at += MX8_VF) {
        for (int64_t k = 0; k < kc; k += MX8_VF) {
            int steps = vf_lanes(k, kc);
            vf r[MX8_VF];
            prefetch_lines(o, dtype, line + (at + MX8_VF < W ? at + MX8_VF : W), k0, k);
            for (int i = 0; i < MX8_VF; i++) {
                int64_t l = line + at + i, from = l * o->ls + k0 + k;
                if (at + i >= n)
                    r[i] = vf_set(0.0f);
                else if (steps == MX8_VF)
                    r[i] = load_values(o->data, from, dtype);
                else
                    r[i] = load_values_part(o->data, from, dtype, steps);
                if (is_f8(dtype) && at + i < n) r[i] = vf_mul(r[i], vf_set(scale_at(o, l, k0 + k)));
            }
            vf_transpose(r);
            for (int q = 0; q < steps; q++) store_lines(panel + (k + q) * W, at, W, r[q], k + q == kc - 1);
        }
    }
}

/* Lines contiguous (the transposed operands of the weight gradient): vectors move as they are. Reading a whole vector
 * where the panel's W lines end inside it is legal as long as the operand goes on. */
MX8_INLINE void pack_along_lines(float *panel, int W, const struct operand *o, int32_t dtype, int64_t line, int64_t k0,
    int64_t kc) {
    int n = (int)(o->lines - line < W ? o->lines - line : W);
    int whole = n == W && o->lines - line >= (W + MX8_VF - 1) / MX8_VF * MX8_VF;
    float scales[NR] = {0}; /* the panel's lines, for one block of k */
    for (int64_t k = 0; k < kc; k++) {
        if (is_f8(dtype) && k % MX8_BLOCK == 0)
            for (int i = 0; i < n; i++) scales[i] = scale_at(o, line + i, k0 + k);
        for (int at = 0; at < W; at += MX8_VF) {
            int64_t from = (k0 + k) * o->ks + line + at;
            vf v;
            if (whole)
                v = load_values(o->data, from, dtype);
            else
                v = n > at ? load_values_part(o->data, from, dtype, vf_lanes(at, n)) : vf_set(0.0f);
            if (is_f8(dtype)) v = vf_mul(v, vf_load(scales + at));
            store_lines(panel + k * W, at, W, v, k == kc - 1);
        }
    }
}

/* Any strides, an element at a time. */
MX8_INLINE void pack_anyhow(float *panel, int W, const struct operand *o, int32_t dtype, int64_t line, int64_t k0,
    int64_t kc) {
    int n = (int)(o->lines - line < W ? o->lines - line : W);
    for (int64_t k = 0; k < kc; k++) {
        for (int i = 0; i < W; i++) {
            float value = 0.0f, lanes[MX8_VF];
            if (i < n) {
                vf_store(lanes, load_values_part(o->data, (line + i) * o->ls + (k0 + k) * o->ks, dtype, 1));
                value = is_f8(dtype) ? lanes[0] * scale_at(o, line + i, k0 + k) : lanes[0];
            }
            panel[k * W + i] = value;
        }
    }
}

MX8_INLINE void pack_as(float *panel, int W, const struct operand *o, int32_t dtype, int64_t line, int64_t k0,
    int64_t kc) {
    if (o->ks == 1)
        pack_along_k(panel, W, o, dtype, line, k0, kc);
    else if (o->ls == 1)
        pack_along_lines(panel, W, o, dtype, line, k0, kc);
    else
        pack_anyhow(panel, W, o, dtype, line, k0, kc);
}

/* Lines [line, line + W) at k in [k0, k0 + kc); lines past the operand's end become zeros. k0 is a multiple of 32. */
MX8_INLINE void pack_panel(float *panel, int W, const struct operand *o, int64_t line, int64_t k0, int64_t kc) {
    switch (o->dtype) {
    case MX8_F8_E4M3: pack_as(panel, W, o, MX8_F8_E4M3, line, k0, kc); break;
    case MX8_F8_E5M2: pack_as(panel, W, o, MX8_F8_E5M2, line, k0, kc); break;
    case MX8_BF16: pack_as(panel, W, o, MX8_BF16, line, k0, kc); break;
    default: pack_as(panel, W, o, MX8_F32, line, k0, kc); break;
    }
}
