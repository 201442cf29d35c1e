/* The arithmetic of the quantizers on vectors: block scales from largest magnitudes, and values to 8-bit codes. The
 * bits are those of src/formats, which explains the rules. */

/* What depends on the element format alone. */
struct f8_format {
    int32_t largest_exponent; /* of the format's largest power of two */
    int32_t mantissa;         /* bits */
    int32_t smallest_normal;  /* exponent, as a float's exponent field */
    int32_t largest_code;     /* finite, without sign */
    int32_t rounded;          /* the float whose RCEIL scale is rounded down (src/formats/scale.c) */
};

MX8_INLINE struct f8_format f8_describe(int32_t format) {
    return format == MX8_F8_E5M2 ? (struct f8_format){15, 2, 113, 0x7B, 0x07E00001}
                                 : (struct f8_format){8, 3, 121, 0x7E, 0x04600001};
}

/* A scale byte as large as this gives values their own exponent in the code; smaller bytes are left to f32. */
MX8_INLINE int32_t half_bias(struct f8_format f) {
    return 128 - f.smallest_normal;
}
/* Bits that a value's upper half has and its code has not. */
MX8_INLINE int32_t half_spare(struct f8_format f) {
    return 7 - f.mantissa;
}

/* A rule for scales: what is added to a largest magnitude, and the largest of finite blocks. Every rule is an addition
 * that carries into the exponent where it rounds up: nothing, half a unit of the code's last place, anything, more than
 * 0.75. */
struct scale_rule {
    vh up, finite;
};

MX8_INLINE struct scale_rule describe_rule(int32_t rule, struct f8_format f) {
    int32_t up = rule == MX8_SCALE_EVEN    ? 1 << (6 - f.mantissa)
                 : rule == MX8_SCALE_CEIL  ? 0x7F
                 : rule == MX8_SCALE_RCEIL ? 0x1F
                                           : 0;
    return (struct scale_rule){vh_set(up), vh_set(rule == MX8_SCALE_EVEN ? 0x7F7F - up : 0x7F7F)};
}

/* Scales of blocks from the upper halves of their largest magnitudes: their bytes, and what encode_halves takes from
 * magnitudes. `hard` becomes more than zero where a block is NaN, or so small that halves cannot have its codes; blocks
 * of zeros get zeros for codes whatever is taken. */
MX8_INLINE vh compute_scales(vh amax, struct scale_rule rule, struct f8_format f, vh *offset, vh *hard) {
    vh nan = vh_gt(amax, rule.finite), bias = vh_set(half_bias(f));
    vh byte = vh_subs(vh_shr(vh_add(amax, rule.up), 7), vh_set(f.largest_exponent));
    *hard = vh_or(*hard, vh_or(nan, vh_min(amax, vh_subs(vh_add(bias, vh_set(1)), byte))));
    *offset = vh_sub(vh_shl(vh_subs(byte, bias), 7), vh_set(1 << (half_spare(f) - 1)));
    return vh_and(vh_or(byte, nan), vh_set(0xFF));
}

/* The factor 2^(127-byte) of a finite block; bytes end at 247, so it is a normal float. Meaningless for byte 255. */
MX8_INLINE vf invert_scales(vi bytes) {
    return vf_from_bits(vi_shl(vi_sub(vi_set(254), bytes), 23));
}

/* Codes without sign, before saturation, of |value| < 2^(largest exponent + 1).
 *
 * Adding 2^(23 - mantissa) times the value's power of two pushes all but its mantissa bits out of the sum, rounded to
 * nearest even; what stays at the sum's low end counts code steps inside the binade. Values below the smallest normal
 * take that one's power instead and so land on the subnormal grid. */
MX8_INLINE vi encode_magnitudes(vf value, struct f8_format f) {
    vi magnitude = vi_and(vf_bits(value), vi_set(0x7FFFFFFF));
    vi power = vi_max(vi_and(magnitude, vi_set(0x7F800000)), vi_set(f.smallest_normal << 23));
    vi magic = vi_add(power, vi_set((23 - f.mantissa) << 23));
    vi steps = vi_sub(vf_bits(vf_add(vf_from_bits(magic), vf_from_bits(magnitude))), magic);
    vi binades = f.mantissa == 3 ? vi_shr(power, 20) : vi_shr(power, 21);
    return vi_add(steps, vi_sub(binades, vi_set(f.smallest_normal << f.mantissa)));
}

/* Codes of values already multiplied by the inverse scale; `clipped` counts those that saturate, where it is wanted. */
MX8_INLINE vi encode_values(vf value, struct f8_format f, vi *clipped) {
    vi code = encode_magnitudes(value, f), largest = vi_set(f.largest_code);
    if (clipped) *clipped = vi_add(*clipped, vi_select(vi_gt(code, largest), vi_set(1), vi_set(0)));
    return vi_or(vi_min(code, largest), vi_and(vi_shr(vf_bits(value), 24), vi_set(0x80)));
}

/* The same in 16-bit lanes, twice as many at a time, for bf16 and for floats that were cut to 16 bits and made odd
 * where that lost something: rounding to 4 or fewer bits afterwards gives what rounding at once gives.
 *
 * Multiplying by the inverse scale takes from the exponent, and rounding to the element's mantissa is an addition and a
 * shift, as long as value and code are both normal. Halves are rounded up, and those that should have gone to an even
 * code below lose one afterwards, when they are bytes. Codes below the first normal one are wrong, except where the
 * value is zero: the caller has to look at them again, and take the way over f32 (is_missed). */
struct halves {
    vh magnitude[VB_HALVES];
    vb sign, tie; /* 0x80 or 0, and 255 or 0 to add where rounding up would be wrong; in the order of vb_lane */
};

/* Constants of this. */
struct half_masks {
    vh magnitude, low;
    vb half, sign, largest;
};

MX8_INLINE struct half_masks make_masks(struct f8_format f) {
    return (struct half_masks){
        .magnitude = vh_set(0x7FFF),
        .low = vh_set((2 << half_spare(f)) - 1),
        .half = vb_set(1 << (half_spare(f) - 1)),
        .sign = vb_set(0x80),
        .largest = vb_set(f.largest_code),
    };
}

/* The same for a loop with calls that seldom happen: compilers would make constants anew behind each. */
MX8_INLINE struct half_masks keep_masks(struct half_masks k) {
    return (struct half_masks){
        vh_keep(k.magnitude), vh_keep(k.low), vb_keep(k.half), vb_keep(k.sign), vb_keep(k.largest)};
}

MX8_INLINE struct halves load_halves(const uint16_t *at, const struct half_masks *k) {
    vh value[VB_HALVES], low[VB_HALVES];
    struct halves h;
#pragma GCC unroll 2
    for (int v = 0; v < VB_HALVES; v++) {
        value[v] = vh_load(at + v * 2 * MX8_VF);
        h.magnitude[v] = vh_and(value[v], k->magnitude);
        low[v] = vh_and(value[v], k->low);
    }
    h.tie = vb_equal(vb_pack(low), k->half);
    h.sign = vb_pack_signs(value, k->sign);
    return h;
}

/* Codes of 32 values. `least` keeps the smallest of a lane. */
MX8_INLINE vb encode_halves(
    const struct halves *h, const vh *offset, struct f8_format f, const struct half_masks *k, vb *least) {
    vh made[VB_HALVES];
#pragma GCC unroll 2
    for (int v = 0; v < VB_HALVES; v++) {
        vh above = vh_subs(h->magnitude[v], offset[v]);
        made[v] = f.mantissa == 3 ? vh_shr(above, 4) : vh_shr(above, 5);
    }
    vb packed = vb_pack(made);
    *least = vb_min(*least, packed);
    return vb_or(vb_min(vb_add(packed, h->tie), k->largest), h->sign);
}

/* Whether some lane's code may be wrong, and whether one of these is. */
MX8_INLINE int may_miss(vb least, struct f8_format f) {
    return !vb_is_zero(vb_subs(vb_set(1 << f.mantissa), least));
}

MX8_INLINE int is_missed(const struct halves *h, vb least, struct f8_format f) {
    return !vb_is_zero(vb_min(vb_subs(vb_set(1 << f.mantissa), least), vb_pack(h->magnitude)));
}

MX8_INLINE int64_t sum_lanes(vi v) {
    int32_t lanes[MX8_VF];
    int64_t sum = 0;
    vi_store(lanes, v);
    for (int i = 0; i < MX8_VF; i++) sum += lanes[i];
    return sum;
}
