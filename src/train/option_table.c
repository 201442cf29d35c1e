/* The option table of a training job: torchtitan's sections, keys and defaults (September 2025), then mx8's own. Two
 * marks in the help are read by job.c. ONLY: mx8 has just the default, anything else is an error at start. IDLE:
 * belongs to a feature that is off or absent here, so that its value changes nothing. */
#include "train/job.h"
#include "train/resolve.h"

#define INT(k, v, lo, hi, h) .key = k, .type = MX8_OPT_INT, .value = v, .min = lo, .max = hi, .help = h
#define FLOAT(k, v, lo, hi, h) .key = k, .type = MX8_OPT_FLOAT, .value = v, .min = lo, .max = hi, .help = h
#define BOOL(k, v, h) .key = k, .type = MX8_OPT_BOOL, .value = v, .help = h
#define TEXT(k, v, h) .key = k, .type = MX8_OPT_TEXT, .value = v, .help = h
#define LIST(k, v, h) .key = k, .type = MX8_OPT_LIST, .value = v, .help = h
#define CHOICE(k, v, c, h) .key = k, .type = MX8_OPT_CHOICE, .value = v, .choices = c, .help = h

#define ONLY MX8_MARK_ONLY
#define IDLE MX8_MARK_IDLE
#define MANY 9e15 /* an upper limit that doubles hold exactly */

/* Architecture and training shape have no default of their own: unset, they are what model.flavor says. */
#define FLAVOR "; unset: as the flavor says"

const struct mx8_option mx8i_option_table[] = {
    {TEXT("job.config_file", "", "TOML file with these sections; flags override it")},
    {TEXT("job.dump_folder", "./outputs", "folder for metrics.jsonl, run.json and checkpoints")},
    {TEXT("job.description", "", "one line about the job, for the log and run.json")},
    {BOOL("job.print_args", "false", "log every option that was set"), .alias = "debug.print_config"},
    {CHOICE("job.device", "cpu", "cpu|cuda", "where to train"), .alias = "device"},
    {INT("job.threads", "0", 0, 4096, "CPU threads; 0: OMP_NUM_THREADS, else every core this process may use")},
    {BOOL("job.dry_run", "false", "print the memory plan and stop"), .alias = "dry_run"},

    {BOOL("profiling.enable_profiling", "false", ONLY "no profiler")},
    {TEXT("profiling.save_traces_folder", "profile_traces", IDLE "only with profiling")},
    {INT("profiling.profile_freq", "10", 0, 0, IDLE "only with profiling")},
    {BOOL("profiling.enable_memory_snapshot", "false", ONLY "--dry-run prints the memory plan")},
    {TEXT("profiling.save_memory_snapshot_folder", "memory_snapshot", IDLE "only with memory snapshots")},

    {INT("metrics.log_freq", "10", 1, MANY, "log step 1 and every step that is a multiple of this")},
    {BOOL("metrics.enable_tensorboard", "false", ONLY "metrics.jsonl holds every step; see mx8 report")},
    {BOOL("metrics.disable_color_printing", "false", "plain log lines")},
    {TEXT("metrics.save_tb_folder", "tb", IDLE "only with TensorBoard")},
    {BOOL("metrics.save_for_all_ranks", "false", IDLE "one process")},
    {BOOL("metrics.enable_wandb", "false", ONLY "metrics.jsonl holds every step")},

    {TEXT("model.name", "llama4", ONLY "the Llama4 architecture with Mixture of Experts")},
    {TEXT("model.flavor", "demo", "architecture preset; mx8 info lists them")},
    {TEXT("model.hf_assets_path", "./tests/assets/tokenizer", ONLY "text is read as bytes, other tokens from shards")},
    {TEXT("model.tokenizer_path", "", ONLY "text is read as bytes, other tokens from shards")},
    {LIST("model.converters", "", "mx, or quantize.linear.mx, quantize.grouped_mm.mx; empty: no MXFP8")},
    {BOOL("model.print_after_conversion", "false", "list every tensor, converted or not, at start")},
    {INT("model.dim", "", 1, MANY, "model dimension D" FLAVOR)},
    {INT("model.n_layers", "", 1, MANY, "transformer blocks" FLAVOR)},
    {INT("model.n_heads", "", 1, MANY, "query heads" FLAVOR)},
    {INT("model.n_kv_heads", "", 1, MANY, "key and value heads; none: n_heads" FLAVOR), .choices = "none"},
    {INT("model.vocab_size", "", 1, MANY, "vocabulary V; bytes of text need 258" FLAVOR)},
    {INT("model.multiple_of", "", 1, MANY, "hidden sizes are rounded up to a multiple of this" FLAVOR)},
    {FLOAT("model.ffn_dim_multiplier", "", 1e-9, 1e9, "factor of the hidden size, or none" FLAVOR), .choices = "none"},
    {FLOAT("model.norm_eps", "", 0, 1, "epsilon of RMSNorm" FLAVOR)},
    {FLOAT("model.rope_theta", "", 1, 1e15, "base of the rotary embedding" FLAVOR)},
    {BOOL("model.depth_init", "", "initial output projections shrink with the layer's own depth" FLAVOR)},
    {CHOICE("model.attn_mask_type", "", "causal|block_causal", "block_causal: attention stays in a document" FLAVOR)},
    {INT("model.every_n_layers_nope", "", 0, MANY, "iRoPE: every n-th layer has no RoPE; none or 0: off" FLAVOR),
        .choices = "none"},
    {INT("model.fixed_attn_block_size", "", 1, MANY, "iRoPE: attention chunk of the other layers" FLAVOR)},
    {INT("model.interleave_moe_layer_step", "", 1, MANY, "every n-th layer is MoE" FLAVOR)},

    {INT("moe.num_experts", "", 1, 65536, "routed experts E" FLAVOR)},
    {INT("moe.num_shared_experts", "", 0, 65536, "experts that see every token" FLAVOR)},
    {INT("moe.top_k", "", 1, 65536, "experts a token goes to" FLAVOR)},
    {CHOICE("moe.score_func", "", "sigmoid|softmax", "of the router's logits" FLAVOR)},
    {BOOL("moe.route_norm", "", "scores of the chosen experts add up to 1" FLAVOR)},
    {FLOAT("moe.route_scale", "", -1e9, 1e9, "factor of the scores" FLAVOR)},
    {BOOL("moe.score_before_experts", "", "scores multiply the experts' input, not their output" FLAVOR)},
    {FLOAT("moe.load_balance_coeff", "", 0, 1e9, "step of the expert bias, or none" FLAVOR), .choices = "none"},
    {BOOL("moe.auto_scale_hidden_dim", "", "expert hidden size / (top_k + shared experts)" FLAVOR)},

    {CHOICE("optimizer.name", "AdamW", "AdamW|Adam", ONLY "decoupled weight decay")},
    {FLOAT("optimizer.lr", "8e-4", 0, 1e6, "learning rate at its plateau")},
    {FLOAT("optimizer.beta1", "0.9", 0, 1, "decay of the first moment")},
    {FLOAT("optimizer.beta2", "0.95", 0, 1, "decay of the second moment")},
    {FLOAT("optimizer.eps", "1e-8", 0, 1, "added to the root of the second moment")},
    {FLOAT("optimizer.weight_decay", "0.1", 0, 1e6, "of every weight, norms and embedding included")},
    {CHOICE("optimizer.implementation", "fused", "fused|foreach|for-loop", IDLE "always one pass over all weights")},
    {BOOL("optimizer.early_step_in_backward", "false", ONLY "the optimizer runs after the clip")},

    {INT("lr_scheduler.warmup_steps", "200", 0, MANY, "linear warmup; clamped to training.steps")},
    {FLOAT("lr_scheduler.decay_ratio", "", 0, 1, "part of the steps that decays; unset: all after the warmup"),
        .choices = "none"},
    {CHOICE("lr_scheduler.decay_type", "linear", "linear|sqrt|cosine", "shape of the decay")},
    {FLOAT("lr_scheduler.min_lr_factor", "0", 0, 1, "the decay ends at this times optimizer.lr")},

    {TEXT("training.dataset", "auto", "auto (look at the path), text, shards, random; c4 names need dataset_path")},
    {LIST("training.dataset_path", "",
        "file or folder of text, or of token shards (*.bin); several are mixed by weight, as in web=0.7,books=0.3, or "
        "without weights by size; unset: /usr/include")},
    {INT("training.dataset_bytes", "", 0, MANY,
        "most text to read under each path, 0: all; unset: 8 MiB of /usr/include, else all")},
    {BOOL("training.shuffle", "false", "samples of each pass over the data in an order of their own, from the seed")},
    {BOOL("training.prefetch", "true", "a thread reads the next batch while the model computes; the bits are the same")},
    {INT("training.eos_id", "", 0, MANY, "token that ends documents in shards; unset: as manifest.json says, else 257")},
    {INT("training.local_batch_size", "", 1, MANY, "sequences of one forward pass" FLAVOR)},
    {INT("training.global_batch_size", "-1", -1, MANY, "sequences of one step (the rest is accumulated); -1: local")},
    {INT("training.seq_len", "", 1, MANY, "tokens of a sequence" FLAVOR)},
    {FLOAT("training.max_norm", "1.0", 0, 1e30, "gradients are clipped to this global norm")},
    {INT("training.steps", "10000", 1, MANY, "optimizer steps")},
    {BOOL("training.enable_cpu_offload", "false", ONLY "weights stay on the device")},
    {CHOICE("training.mixed_precision_param", "bfloat16", "bfloat16|float32", "activations and weight copies")},
    {CHOICE("training.mixed_precision_reduce", "float32", "float32", "gradients are summed in float32")},
    {INT("training.gc_freq", "50", 0, 0, IDLE "nothing to collect")},
    {BOOL("training.gc_debug", "false", IDLE "nothing to collect")},
    {INT("training.seed", "0", 0, MANY, "of initial weights, the shuffle and random data"), .alias = "debug.seed"},
    {BOOL("training.deterministic", "false", IDLE "always: same seed, same bits, any thread count"),
        .alias = "debug.deterministic"},
    {CHOICE("training.on_nan", "stop", "stop|skip|continue", "when the loss or the gradient norm is not finite")},

    {INT("parallelism.data_parallel_replicate_degree", "1", 0, 0, ONLY "one process")},
    {INT("parallelism.data_parallel_shard_degree", "-1", -1, MANY, "processes that share weights; -1: what is there")},
    {CHOICE("parallelism.fsdp_reshard_after_forward", "default", "default|always|never", IDLE "one process")},
    {INT("parallelism.tensor_parallel_degree", "1", 0, 0, ONLY "no tensor parallelism")},
    {BOOL("parallelism.disable_loss_parallel", "false", IDLE "only with tensor parallelism")},
    {BOOL("parallelism.enable_async_tensor_parallel", "false", ONLY "no tensor parallelism")},
    {BOOL("parallelism.enable_compiled_autograd", "false", ONLY "the backward pass is C already")},
    {INT("parallelism.pipeline_parallel_degree", "1", 0, 0, ONLY "no pipeline parallelism")},
    {LIST("parallelism.pipeline_parallel_split_points", "", ONLY "no pipeline parallelism")},
    {LIST("parallelism.module_fqns_per_model_part", "", ONLY "no pipeline parallelism")},
    {INT("parallelism.pipeline_parallel_first_stage_less_layers", "1", 0, 0, IDLE "only with pipeline parallelism")},
    {INT("parallelism.pipeline_parallel_last_stage_less_layers", "1", 0, 0, IDLE "only with pipeline parallelism")},
    {INT("parallelism.pipeline_parallel_layers_per_stage", "", 0, 0, ONLY "no pipeline parallelism")},
    {TEXT("parallelism.pipeline_parallel_schedule", "1F1B", IDLE "only with pipeline parallelism")},
    {TEXT("parallelism.pipeline_parallel_schedule_csv", "", IDLE "only with pipeline parallelism")},
    {INT("parallelism.pipeline_parallel_microbatch_size", "1", 0, 0, IDLE "only with pipeline parallelism")},
    {INT("parallelism.context_parallel_degree", "1", 0, 0, ONLY "no context parallelism")},
    {CHOICE("parallelism.context_parallel_rotate_method", "allgather", "allgather|alltoall", IDLE "one process")},
    {INT("parallelism.expert_parallel_degree", "1", 0, 0, ONLY "no expert parallelism")},
    {INT("parallelism.expert_tensor_parallel_degree", "1", 0, 0, ONLY "no expert tensor parallelism")},

    {BOOL("checkpoint.enable", "false", "save the final weights under dump_folder/checkpoint.folder/step-N")},
    {TEXT("checkpoint.folder", "checkpoint", "folder below job.dump_folder")},
    {INT("checkpoint.interval", "500", 1, MANY, "when set, at least training.steps: only final weights are saved")},
    {TEXT("checkpoint.initial_load_path", "", "start weights: a safetensors file, or a folder with model.safetensors")},
    {BOOL("checkpoint.initial_load_model_only", "true", ONLY "weights are loaded, not optimizer states")},
    {BOOL("checkpoint.initial_load_in_hf", "false", ONLY "torchtitan's tensor names")},
    {BOOL("checkpoint.last_save_model_only", "true", ONLY "weights are saved, not optimizer states")},
    {BOOL("checkpoint.last_save_in_hf", "false", ONLY "torchtitan's tensor names")},
    {CHOICE("checkpoint.export_dtype", "float32", "float32|bfloat16", "of the saved weights")},
    {CHOICE("checkpoint.async_mode", "disabled", "disabled|async|async_with_pinned_mem", ONLY "saved at the end")},
    {INT("checkpoint.keep_latest_k", "10", 0, 0, IDLE "one checkpoint, at the end")},
    {INT("checkpoint.load_step", "-1", 0, 0, ONLY "no resuming; see checkpoint.initial_load_path")},
    {LIST("checkpoint.exclude_from_loading", "", ONLY "all weights are loaded")},
    {BOOL("checkpoint.enable_first_step_checkpoint", "false", ONLY "only final weights are saved")},
    {BOOL("checkpoint.create_seed_checkpoint", "false", ONLY "initial weights depend on training.seed alone")},

    {CHOICE("activation_checkpoint.mode", "selective", "selective|full|none", "blocks whose forward pass runs again")},
    {TEXT("activation_checkpoint.selective_ac_option", "2", "selective: every n-th block; op is not supported")},
    {LIST("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "moe.router.gate",
        IDLE "only with op")},
    {BOOL("activation_checkpoint.early_stop", "false", IDLE "blocks are run again as a whole")},

    {BOOL("compile.enable", "false", "CUDA: capture the step as a graph; nothing to do on the CPU")},
    {LIST("compile.components", "model,loss", IDLE "the whole step")},

    {BOOL("float8.enable_fsdp_float8_all_gather", "false", IDLE "only with the float8 converter")},
    {BOOL("float8.precompute_float8_dynamic_scale_for_fsdp", "false", IDLE "only with the float8 converter")},
    {TEXT("float8.recipe_name", "", IDLE "only with the float8 converter")},
    {LIST("float8.filter_fqns", "", IDLE "only with the float8 converter")},
    {BOOL("float8.emulate", "false", IDLE "only with the float8 converter")},
    {LIST("float8.moe_fqns_prototype", "", IDLE "only with the float8 converter")},

    {CHOICE("mx.mxfp8_dim1_cast_kernel_choice", "triton", "triton|cuda|torch", IDLE "one quantizer a device"),
        .alias = "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"},
    {TEXT("mx.recipe_name", "mxfp8_cublas",
         "mxfp8_cublas, mxfp8_cublas_rceil, mxfp8_rceil, mxfp8_rceil_wgrad_with_hp, mxfp8_emulated, "
         "mxfp8_emulated_rceil, mxfp8; all scale by mx.scale_rule"),
        .alias = "quantize.linear.mx.recipe_name quantize.grouped_mm.mx.recipe_name"},
    {LIST("mx.filter_fqns", "output", "linears whose name contains one of these stay unconverted"),
        .alias = "quantize.linear.mx.filter_fqns"},
    {LIST("mx.moe_fqns_prototype", "", "with converter mx: experts whose name contains one of these are converted")},
    {LIST("quantize.linear.mx.fqns", "", "only linears whose name contains one of these; empty: all but the filtered")},
    {LIST("quantize.grouped_mm.mx.fqns", "experts", "experts whose name contains one of these")},
    {CHOICE("mx.scale_rule", "rceil", "rceil|floor|ceil|even", "how a block's scale follows from its largest value")},
    {CHOICE("mx.scale_group", "auto", "auto|32|128|256",
        "activations: elements whose block scales are forced equal; auto: 32, on CUDA 256")},
    {CHOICE("mx.tile_rows", "1", "1|32|128", "activations and gradients: rows that share a scale")},
    {CHOICE("mx.col_tile_rows", "auto", "auto|1|32|128",
        "activations in the weight gradient: columns that share a scale; auto: mx.tile_rows, 32 on CUDA")},
    {CHOICE("mx.weight_scale_group", "auto", "auto|32|128|256",
        "weights: elements whose block scales are forced equal; auto: 32, on CUDA 256")},
    {CHOICE("mx.weight_tile_rows", "auto", "auto|1|32|128", "weights: rows that share a scale; auto: 1, on CUDA 32")},
    {CHOICE("mx.format", "e4m3", "e4m3|e5m2", "8-bit format of all quantized tensors")},
    {BOOL("mx.wgrad_hp", "false", "weight gradients from the unquantized operands")},
    {BOOL("mx.exact", "false", "dequantize, then multiply: the slow reference; mxfp8_emulated sets it")},

    {INT("comm.init_timeout_seconds", "300", 0, 0, IDLE "one process")},
    {INT("comm.train_timeout_seconds", "100", 0, 0, IDLE "one process")},
    {INT("comm.trace_buf_size", "20000", 0, 0, IDLE "one process")},
    {TEXT("comm.save_traces_folder", "comm_traces", IDLE "one process")},

    {BOOL("memory_estimation.enable", "false", ONLY "--dry-run prints the memory plan")},
    {BOOL("memory_estimation.disable_fake_mode", "false", IDLE "only with memory_estimation")},

    {BOOL("fault_tolerance.enable", "false", ONLY "no fault tolerance")},
    {TEXT("fault_tolerance.process_group", "gloo", IDLE "only with fault tolerance")},
    {INT("fault_tolerance.process_group_timeout_ms", "10000", 0, 0, IDLE "only with fault tolerance")},
    {INT("fault_tolerance.replica_id", "0", 0, 0, IDLE "only with fault tolerance")},
    {INT("fault_tolerance.group_size", "0", 0, 0, IDLE "only with fault tolerance")},
    {INT("fault_tolerance.min_replica_size", "1", 0, 0, IDLE "only with fault tolerance")},
    {TEXT("fault_tolerance.semi_sync_method", "", ONLY "no fault tolerance")},

    {TEXT("experimental.custom_import", "", ONLY "no Python at run time")},
    {TEXT("experimental.custom_args_module", "", ONLY "no Python at run time")},

    {BOOL("validation.enable", "false", "measure the loss on a validation set while training")},
    {TEXT("validation.dataset", "c4_validation", "auto, text, shards, random; c4 names need dataset_path")},
    {LIST("validation.dataset_path", "", "what is validated with, written as training.dataset_path is")},
    {INT("validation.local_batch_size", "", 1, MANY, "sequences of a validation step; unset: as training's")},
    {INT("validation.seq_len", "", 1, MANY, "tokens of its sequences, at most training's; unset: as training's")},
    {INT("validation.freq", "10", 1, MANY, "validate after step 1, after every multiple of this, and after the last")},
    {INT("validation.steps", "-1", -1, MANY, "steps of one validation, from the set's start; -1: all of it once")},

    {BOOL("debug.force_load_balance", "false", "benchmarks: tokens go to the experts round robin"),
        .alias = "debug.moe_force_load_balance training.debug_moe_force_load_balance"},
};

const int32_t mx8i_option_count = (int32_t)(sizeof mx8i_option_table / sizeof mx8i_option_table[0]);
