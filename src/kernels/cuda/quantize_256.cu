// Quantizers of a stored matrix with scale groups of 256: see quantize_256.cuh.
// Prototype (H200, 65,536 x 5120, both orientations): 3.63 TB/s, where a copy reaches 4.15. Lost: clusters that exchange
// maxima (3.12), four CTAs of quantize_128 on an SM (spills), column halves side by side instead of one below the other,
// bounds checked in every tile (3.15).
#include "quantize_256.cuh"

enum mx8_status fused::run_256(const struct mx8_exec *x, const Job &p) {
    CUtensorMap map;
    if (!map_source(x, p, &map)) return MX8_UNSUPPORTED;
    const Stored s;
    if (!p.col_codes) return counts(p) ? launch_256<true, false, true>(x, p, map, s) : launch_256<true, false, false>(x, p, map, s);
    if (!p.row_codes) return counts(p) ? launch_256<false, true, true>(x, p, map, s) : launch_256<false, true, false>(x, p, map, s);
    return counts(p) ? launch_256<true, true, true>(x, p, map, s) : launch_256<true, true, false>(x, p, map, s);
}
