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

/* Scale bytes of MX8_VF blocks from the bits of their largest magnitudes. */
MX8_INLINE vi compute_scales(vi amax, int32_t rule, struct f8_format f) {
    const vi one = vi_set(1), zero = vi_set(0), largest_float = vi_set(0x7F7FFFFF);
    vm not_finite = vi_gt(amax, largest_float);
    vi bits = amax;
    if (rule == MX8_SCALE_EVEN) {
        bits = vi_add(amax, vi_set(1 << (22 - f.mantissa)));
        not_finite = vm_or(not_finite, vi_gt(bits, largest_float)); /* a NaN wraps here, but was caught above */
    }
    vi byte = vi_sub(vi_shr(bits, 23), vi_set(f.largest_exponent)), fraction = vi_and(bits, vi_set(0x7FFFFF));
    if (rule == MX8_SCALE_CEIL) byte = vi_add(byte, vi_select(vi_gt(fraction, zero), one, zero));
    if (rule == MX8_SCALE_RCEIL) {
        vi up = vi_select(vi_gt(fraction, vi_set(0x600000)), one, zero);
        byte = vi_add(byte, vi_select(vi_eq(bits, vi_set(f.rounded)), zero, up));
    }
    return vi_select(not_finite, vi_set(255), vi_max(byte, zero));
}

/* The factor 2^(127-byte) of a finite block; bytes end at 247, so it is a normal float. Meaningless for byte 255. */
MX8_INLINE vf invert_scales(vi bytes) { return vf_from_bits(vi_shl(vi_sub(vi_set(254), bytes), 23)); }

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

/* The same for bf16 in 16-bit lanes, twice as many at a time. Multiplying by the inverse scale adds to the exponent,
 * and rounding to the element's mantissa is an addition and a shift, as long as value and code are both normal. */
struct half_scale {
    vh offset;    /* added to a magnitude: inverse scale, change of bias, and half a unit less one for rounding */
    vh threshold; /* magnitudes above it are normal and have normal codes */
};

MX8_INLINE struct half_scale describe_half_scale(vh byte, struct f8_format f) {
    int half_less_one = (1 << (6 - f.mantissa)) - 1;
    vh least = vh_max(byte, vh_set(128 - f.smallest_normal)); /* keeps the threshold at normal bf16 numbers */
    return (struct half_scale){
        .offset = vh_sub(vh_set(((128 - f.smallest_normal) << 7) + half_less_one), vh_shl(byte, 7)),
        .threshold = vh_sub(vh_shl(vh_sub(least, vh_set(127 - f.smallest_normal)), 7), vh_set(1)),
    };
}

/* The same for one block in all lanes, reckoned beside the vectors. */
MX8_INLINE struct half_scale describe_block_scale(int byte, struct f8_format f) {
    int least = byte > 128 - f.smallest_normal ? byte : 128 - f.smallest_normal;
    return (struct half_scale){
        .offset = vh_set((128 - f.smallest_normal - byte) * 128 + (1 << (6 - f.mantissa)) - 1),
        .threshold = vh_set((least - 127 + f.smallest_normal) * 128 - 1),
    };
}

/* Codes of bf16 numbers of finite blocks. Lanes that are neither zero nor above the threshold give a wrong code and
 * leave bits in `missed`: the caller then takes the way over f32. */
MX8_INLINE vh encode_halves(vh value, struct half_scale scale, struct f8_format f, vh *missed) {
    vh magnitude = vh_and(value, vh_set(0x7FFF)), normal = vh_gt(magnitude, scale.threshold);
    *missed = vh_or(*missed, vh_andnot(normal, magnitude));
    vh kept = f.mantissa == 3 ? vh_shr(magnitude, 4) : vh_shr(magnitude, 5);
    vh rounded = vh_add(vh_add(magnitude, scale.offset), vh_and(kept, vh_set(1)));
    vh code = f.mantissa == 3 ? vh_shr(rounded, 4) : vh_shr(rounded, 5);
    return vh_or(vh_min(vh_and(code, normal), vh_set(f.largest_code)), vh_and(vh_shr(value, 8), vh_set(0x80)));
}

MX8_INLINE vi magnitude_bits(vf value) { return vi_and(vf_bits(value), vi_set(0x7FFFFFFF)); }

MX8_INLINE int64_t sum_lanes(vi v) {
    int32_t lanes[MX8_VF];
    int64_t sum = 0;
    vi_store(lanes, v);
    for (int i = 0; i < MX8_VF; i++) sum += lanes[i];
    return sum;
}
