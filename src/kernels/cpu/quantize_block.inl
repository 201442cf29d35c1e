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

/* The same in 16-bit lanes, twice as many at a time, for bf16 and for floats that were cut to 16 bits and made odd
 * where that lost something: rounding to 4 or fewer bits afterwards gives what rounding at once gives.
 *
 * Multiplying by the inverse scale takes from the exponent, and rounding to the element's mantissa is an addition and a
 * shift, as long as value and code are both normal. Codes are first made for an exponent four larger, so that what is
 * too small for a normal code can be told from what is zero: among `made` codes those below one binade become zero, as
 * do zeros, those from there to the first normal one are wrong, and the caller has to take the way over f32. */
enum { BELOW = 4 }; /* binades under the normal codes: half the smallest subnormal of e4m3 is 4 under, of e5m2 3 */

struct halves {
    vh magnitude[VB_HALVES]; /* plus one where the code's last bit would be odd, for rounding to even */
    vb sign;                 /* 0x80 or 0, in the order of vb_lane */
};

MX8_INLINE struct halves load_halves(const uint16_t *at, struct f8_format f) {
    vh value[VB_HALVES];
    struct halves h;
    for (int v = 0; v < VB_HALVES; v++) {
        value[v] = vh_load(at + v * 2 * MX8_VF);
        vh magnitude = vh_and(value[v], vh_set(0x7FFF));
        vh odd = vh_and(f.mantissa == 3 ? vh_shr(magnitude, 4) : vh_shr(magnitude, 5), vh_set(1));
        h.magnitude[v] = vh_add(magnitude, odd);
    }
    h.sign = vb_pack_signs(value);
    return h;
}

/* A scale byte as large as this gives values their own exponent in the codes that are made first. */
MX8_INLINE int32_t half_bias(struct f8_format f) { return 128 - f.smallest_normal + BELOW; }
/* Half a unit of the code's last place less one. */
MX8_INLINE int32_t half_rounding(struct f8_format f) { return (1 << (6 - f.mantissa)) - 1; }

/* What to take from magnitudes, from scale bytes in 16-bit lanes. Scales up to the bias make every code zero: right for
 * blocks of zeros, and the others are hard (find_scales). */
MX8_INLINE vh half_offset(vh byte, struct f8_format f) {
    return vh_sub(vh_shl(vh_subs(byte, vh_set(half_bias(f))), 7), vh_set(half_rounding(f)));
}

/* The same in both halves of 32-bit lanes. */
MX8_INLINE vi pair_offset(vi byte, struct f8_format f) {
    vi above = vi_max(vi_sub(byte, vi_set(half_bias(f))), vi_set(0));
    vi offset = vi_and(vi_sub(vi_shl(above, 7), vi_set(half_rounding(f))), vi_set(0xFFFF));
    return vi_or(offset, vi_shl(offset, 16));
}

/* Codes of 32 values. `least` keeps the smallest code but zero of a lane, less a binade. */
MX8_INLINE vb encode_halves(const struct halves *h, const vh *offset, struct f8_format f, vb *least) {
    vh made[VB_HALVES];
    for (int v = 0; v < VB_HALVES; v++) {
        vh above = vh_subs(h->magnitude[v], offset[v]);
        made[v] = f.mantissa == 3 ? vh_shr(above, 4) : vh_shr(above, 5);
    }
    vb packed = vb_pack(made);
    *least = vb_min(*least, vb_sub(packed, vb_set(1 << f.mantissa)));
    return vb_or(vb_min(vb_subs(packed, vb_set(BELOW << f.mantissa)), vb_set(f.largest_code)), h->sign);
}

/* Whether some lane's code was wrong. */
MX8_INLINE int is_missed(vb least, struct f8_format f) {
    return !vb_is_zero(vb_subs(vb_set(BELOW << f.mantissa), least));
}

MX8_INLINE vi magnitude_bits(vf value) { return vi_and(vf_bits(value), vi_set(0x7FFFFFFF)); }

MX8_INLINE int64_t sum_lanes(vi v) {
    int32_t lanes[MX8_VF];
    int64_t sum = 0;
    vi_store(lanes, v);
    for (int i = 0; i < MX8_VF; i++) sum += lanes[i];
    return sum;
}
