/* libmx8: OCP-MX quantizers, scale layouts, dense and grouped matrix products with gradients, on CPU and CUDA. */
#ifndef MX8_H
#define MX8_H
#include "mx8/status.h"
#include "mx8/tensor.h"
#include "mx8/formats.h"
#include "mx8/context.h"
#include "mx8/ops.h"
#include "mx8/quant.h"
#endif
