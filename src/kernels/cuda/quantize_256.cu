// Quantizers of a stored matrix with scale groups of 256: see quantize_256.cuh.
// Prototype (H200, 65,536 x 5120, both orientations): 3.63 TB/s, where a copy reaches 4.15. Lost: clusters that exchange
// maxima (3.12), four CTAs of quantize_128 on an SM (spills), column halves side by side instead of one below the other,
// rows of tiles fastest instead of columns (2.77).
#include "quantize_256.cuh"

enum mx8_status fused::run_256(const struct mx8_exec *x, const Job &p) {
    CUtensorMap map;
    if (!fits_256(p) || !map_matrix(x, p, p.src, p.src_row, &map)) return MX8_UNSUPPORTED;
    return choose_256(x, p, map, map, Stored());
}
