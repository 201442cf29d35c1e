// cuDNN's graph interface without cuDNN: the library is opened at run time if there is one, the few constants used are
// declared here with the values that cuDNN 9 publishes, and graphs are put together from tensors and operations. A
// failure is kept in the graph, with what was being described, until someone asks.
#pragma once
#include "backend.h"

namespace cudnn {

typedef void *descriptor;

enum descriptor_type {
    POINTWISE = 0,
    ENGINE = 2,
    ENGINE_CONFIG = 3,
    ENGINE_HEURISTICS = 4,
    EXECUTION_PLAN = 5,
    OPERATION_POINTWISE = 13,
    OPERATION_GRAPH = 15,
    VARIANT_PACK = 16,
    TENSOR = 17,
    MATMUL = 18,
    OPERATION_MATMUL = 19,
    REDUCTION = 21,
    OPERATION_REDUCTION = 22,
    OPERATION_RESHAPE = 31
};
enum attribute {
    POINTWISE_MODE = 0,
    POINTWISE_MATH_TYPE = 1,
    POINTWISE_AXIS = 9,
    HEURISTICS_MODE = 200,
    HEURISTICS_GRAPH = 201,
    HEURISTICS_RESULTS = 202,
    CONFIG_ENGINE = 300,
    CONFIG_WORKSPACE_SIZE = 303,
    PLAN_HANDLE = 400,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE_SIZE = 402,
    OP_POINTWISE_DESC = 750,
    OP_POINTWISE_X = 751,
    OP_POINTWISE_B = 752,
    OP_POINTWISE_Y = 753,
    OP_POINTWISE_T = 758,
    GRAPH_HANDLE = 800,
    GRAPH_OPS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_VIRTUAL = 907,
    TENSOR_BY_VALUE = 908,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    ENGINE_INDEX = 1301,
    MATMUL_TYPE = 1500,
    OP_MATMUL_A = 1520,
    OP_MATMUL_B = 1521,
    OP_MATMUL_C = 1522,
    OP_MATMUL_DESC = 1523,
    REDUCTION_MODE = 1600,
    REDUCTION_TYPE = 1601,
    OP_REDUCTION_X = 1610,
    OP_REDUCTION_Y = 1611,
    OP_REDUCTION_DESC = 1612,
    OP_RESHAPE_X = 2200,
    OP_RESHAPE_Y = 2201
};
enum attribute_type {
    OF_HANDLE = 0,
    OF_DATA_TYPE = 1,
    OF_BOOLEAN = 2,
    OF_INT64 = 3,
    OF_POINTER = 6,
    OF_HEURISTICS_MODE = 8,
    OF_POINTWISE_MODE = 14,
    OF_DESCRIPTOR = 15,
    OF_REDUCTION_MODE = 18
};
enum data_type { FLOAT = 0, INT32 = 4, BFLOAT16 = 9, BOOLEAN = 11 };
enum pointwise_mode {
    ADD = 0,
    MUL = 1,
    DIV = 6,
    SUB = 9,
    EXP = 13,
    LOG = 15,
    IDENTITY = 21,
    CMP_GE = 303,
    GEN_INDEX = 501,
    BINARY_SELECT = 601
};
enum reduction_mode { SUM = 0, MAXIMUM = 3 };

// The functions of an opened libcudnn.
struct library {
    size_t version; // 91900 for 9.19.0
    char path[512];
    size_t (*get_version)(void);
    const char *(*get_error_string)(int status);
    void (*get_last_error)(char *message, size_t size);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*create_descriptor)(int type, descriptor *out);
    int (*destroy_descriptor)(descriptor d);
    int (*set_attribute)(descriptor d, int name, int type, int64_t count, const void *values);
    int (*get_attribute)(descriptor d, int name, int type, int64_t room, int64_t *count, void *values);
    int (*finalize)(descriptor d);
    int (*execute)(void *handle, descriptor plan, descriptor pack);
};

// Opens libcudnn.so.9 once per process: $MX8_CUDNN_LIBRARY, else where the loader looks, else the site-packages beside
// each python3 of the PATH. NULL without one, and then `why` says so.
const struct library *open_library(char *why, size_t why_size);

struct tensor {
    descriptor d;
    int64_t id, dim[4], stride[4];
};

enum { MAX_DESCRIPTORS = 192, MAX_OPERATIONS = 40, FIRST_INNER_ID = 1000 };

struct graph {
    const struct library *lib;
    descriptor owned[MAX_DESCRIPTORS], operations[MAX_OPERATIONS];
    int n_owned, n_operations;
    int64_t next_id;
    char failure[320]; // "" while all is well; the first failure
};

void begin_graph(struct graph *g, const struct library *lib);
void end_graph(struct graph *g); // destroys what the graph describes, its plans excepted

// A tensor of the caller's memory, known to run_plan by its id.
struct tensor outer(struct graph *g, int64_t id, const int64_t (&dim)[4], const int64_t (&stride)[4], int type);
// One f32 in host memory, passed when the plan runs.
struct tensor scalar(struct graph *g, int64_t id);
// A packed intermediate that never reaches memory.
struct tensor inner(struct graph *g, int64_t d0, int64_t d1, int64_t d2, int64_t d3, int type = FLOAT);
struct tensor inner_strided(struct graph *g, const int64_t (&dim)[4], const int64_t (&stride)[4], int type);

void multiply(struct graph *g, const char *what, const tensor &a, const tensor &b, const tensor &c);
void reduce(struct graph *g, const char *what, int mode, const tensor &x, const tensor &y);
void reshape(struct graph *g, const char *what, const tensor &x, const tensor &y);
// y = mode(x), mode(x, b) or t ? x : b.
void apply(struct graph *g, const char *what, int mode, const tensor &y, const tensor &x, const tensor *b = NULL,
    const tensor *t = NULL, int math_type = FLOAT, int64_t axis = -1);

struct plan {
    descriptor d;
    int64_t workspace, engine;
    int tried; // configurations that cuDNN offered before this one
};

// The first configuration of cuDNN's heuristics that compiles, which takes about a second. The graph must outlive the
// plan. False: g->failure says why.
bool make_plan(struct graph *g, void *handle, struct plan *out);

// Whether cuDNN accepts the tensors and operations; needs no device.
bool check_graph(struct graph *g);

// The workspace of the configuration that make_plan tries first, without compiling it.
bool ask_workspace(struct graph *g, void *handle, int64_t *bytes);

// Values: device memory by id, and addresses of host scalars. `failure` becomes "", or what failed.
void run_plan(const struct library *lib, void *handle, const struct plan *plan, const int64_t *ids, void *const *values,
    int count, void *workspace, char *failure, size_t failure_size);

} // namespace cudnn
