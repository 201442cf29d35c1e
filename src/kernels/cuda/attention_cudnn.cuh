// Attention through cuDNN: which jobs it takes, and the graphs that describe them.
#pragma once
#include "attention.cuh"
#include "cudnn.cuh"

namespace attention {

// What a plan depends on. Rows of q and its like are `ls` apart, heads d; one sequence follows the other.
struct cudnn_shape {
    int64_t B, S, H, KV, d; // of one launch
    int64_t q_ls, k_ls, v_ls, o_ls, do_ls, dq_ls, dk_ls, dv_ls;
    int32_t backward, any_order; // any_order: dq is added up atomically, faster, in an order that varies
};

enum cudnn_id { // of the tensors a plan is given
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_O,
    ID_STATS, // log-sum-exp, B, H, S
    ID_SCALE,
    ID_HIDDEN, // minus infinity
    ID_ONE,
    ID_DO,
    ID_DQ,
    ID_DK,
    ID_DV,
    ID_ROW_TERMS, // sum(dout * o), B, H, S
    ID_DQ_SUM     // dq in f32, any_order only
};

void describe_forward(struct cudnn::graph *g, const struct cudnn_shape &s);
void describe_backward(struct cudnn::graph *g, const struct cudnn_shape &s);

} // namespace attention
